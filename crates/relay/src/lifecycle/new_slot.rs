//! Creates the new slot of a recovery, and records the snapshot of the rows that it does not
//! stream.

use std::pin::pin;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep, timeout};
use walrelay_outbox_admin::{Filling, SlotRecovery, describe_slot_blockers, store_slot_snapshot};
use walrelay_pg_client::{
    PgError, blockers, cancel_statement, connect_sql, quote_identifier, quote_literal,
};
use walrelay_pg_replication::{Failover, ReplicationConnection};

use crate::error::RelayError;
use crate::failpoint;
use crate::lifecycle::operation_resumer::OperationResumer;
use walrelay_errors::{Chain, Code};

/// Reads the snapshot as text that Postgres can parse again. If transactions rolled back during
/// slot creation, the `xmax` of the exported snapshot may be below its `xmin`, and `pg_snapshot`
/// rejects that. Transactions below `xmin` have ended either way (`XidInMVCCSnapshot` in
/// `snapmgr.c` checks `xmin` first).
const SNAPSHOT: &str = "
    SELECT CASE WHEN pg_snapshot_xmin(s) > pg_snapshot_xmax(s)
                THEN format('%s:%s:', pg_snapshot_xmin(s), pg_snapshot_xmin(s))
                ELSE s::text END
      FROM pg_current_snapshot() AS s";

/// The delay before the first check. A slot that waits for no transaction is created sooner.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(500);

/// The interval at which the transactions that block slot creation are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The interval at which those transactions are logged.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Creates the slot and records its snapshot. Like every slot creation, this waits until all open
/// transactions have ended.
pub(crate) async fn create(
    finisher: &OperationResumer<'_>,
    recovery: &SlotRecovery,
) -> Result<Filling, RelayError> {
    let OperationResumer { client, connect, slot, .. } = finisher;
    tracing::info!(slot, "making a new slot");
    finisher.drop_when_free().await?;
    let mut replication =
        ReplicationConnection::connect(connect, &[]).await.map_err(RelayError::Connect)?;
    let failover = match recovery.failover {
        Failover::Yes => ", FAILOVER true",
        Failover::No => "",
    };
    let sql = format!(
        "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export'{failover})",
        quote_identifier(slot)
    );
    let pid = replication.simple_query("SELECT pg_backend_pid()").await;
    let pid = pid.map_err(RelayError::Connect)?.into_iter().flatten().flatten().next();
    let pid = pid.and_then(|text| text.parse().ok());
    let making = replication.simple_query(&sql);
    let rows = telling(finisher, pid, making).await.map_err(RelayError::Connect)?;
    failpoint::hit("recovery-created");
    let mut fields = rows.into_iter().next().unwrap_or_default().into_iter().flatten();
    let (_, point, name) = (fields.next(), fields.next(), fields.next());
    let point = point.and_then(|text| text.parse::<Lsn>().ok());
    let (Some(consistent_point), Some(name)) = (point, name) else {
        return Err(RelayError::Setup {
            code: Code::ProtocolViolation,
            summary: "the server does not say where the new slot begins".to_owned(),
        });
    };
    // The snapshot lives until the next command on the connection that exported it. It lists
    // subtransactions only in the transaction that imports it.
    let importing = connect_sql(connect).await.map_err(RelayError::Connect)?;
    let failed = RelayError::sql("import the snapshot of the new slot");
    let begin = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT {}",
        quote_literal(&name)
    );
    importing.batch_execute(&begin).await.map_err(&failed)?;
    let row = importing.query_one(SNAPSHOT, &[]).await;
    let snapshot: String = row.map_err(&failed)?.get(0);
    importing.batch_execute("COMMIT").await.map_err(&failed)?;
    importing.close().await;
    let filling = Filling { consistent_point, snapshot };
    store_slot_snapshot(client, slot, &filling).await.map_err(RelayError::survey)?;
    failpoint::hit("recovery-noted");
    Ok(filling)
}

/// Awaits `work`, which the server process `pid` executes, and reports the transactions that block
/// it. Without these reports the wait looks like a hang. After a shutdown request it cancels the
/// statement, because the server would otherwise create a slot that no client uses.
async fn telling<T>(
    OperationResumer { client, health, stop, .. }: &OperationResumer<'_>,
    pid: Option<i32>,
    work: impl Future<Output = Result<T, PgError>>,
) -> Result<T, PgError> {
    let mut work = pin!(work);
    let mut pause = FIRST_CHECK_DELAY;
    let mut logged_at: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = stop.requested(), if pid.is_some() => break,
            () = sleep(pause) => {}
        }
        pause = LOOK_EVERY;
        let Some(pid) = pid else { continue };
        match blockers(client, pid).await {
            Ok(waited_for) if waited_for.is_empty() => {}
            Ok(waited_for) => {
                let text = describe_slot_blockers(&waited_for);
                if logged_at.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
                    tracing::warn!("{text}");
                    logged_at = Some(Instant::now());
                }
                health.waits_for(&text);
            }
            Err(error) => tracing::debug!(error = %Chain(&error), "cannot look what is waited for"),
        }
    }
    while let Some(pid) = pid {
        // This statement may itself be interrupted. The next iteration then retries it.
        if let Err(error) = cancel_statement(client, pid).await {
            tracing::debug!(error = %Chain(&error), "the new slot cannot be given up");
        }
        if let Ok(done) = timeout(FIRST_CHECK_DELAY, &mut work).await {
            return done;
        }
    }
    work.await
}
