//! Creates the new slot of a recovery, and records the snapshot of the rows that it does not
//! stream.

use std::pin::pin;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep, timeout};
use walrelay_core::{Backoff, Random};
use walrelay_errors::{Chain, Code, Coded};
use walrelay_pg_client::{
    PgError, SqlText, Stream, blockers, cancel_statement, connect_sql, quote_identifier,
    quote_literal, sql,
};
use walrelay_pg_replication::{Failover, ReplicationConnection};
use walrelay_relay::error::RelayError;
use walrelay_relay::failpoint;
use walrelay_relay::seed::random_seed;

use crate::operation::{SlotRecovery, SlotSnapshot, store_slot_snapshot};
use crate::operation_resumer::OperationResumer;
use crate::slot_holder::describe_slot_blockers;

/// Reads the snapshot as text that Postgres can parse again. If transactions rolled back during
/// slot creation, the `xmax` of the exported snapshot may be below its `xmin`, and `pg_snapshot`
/// rejects that. Transactions below `xmin` have ended either way (`XidInMVCCSnapshot` in
/// `snapmgr.c` checks `xmin` first).
static SNAPSHOT: SqlText = SqlText::new(|| sql!("new_slot.sql", "snapshot"));

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
) -> Result<SlotSnapshot, RelayError> {
    let OperationResumer { client, connect, slot, .. } = finisher;
    tracing::info!(slot, "creating a new slot");
    finisher.drop_when_free().await?;
    // Creating a slot waits for the transactions of all writers.
    let without_limit = [("lock_timeout", "0")];
    let replication = ReplicationConnection::connect(connect, &without_limit).await;
    let mut replication = replication.map_err(RelayError::Connect)?;
    let failover = match recovery.failover {
        Failover::Yes => ", FAILOVER true",
        Failover::No => "",
    };
    let statement = format!(
        "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export'{failover})",
        quote_identifier(slot)
    );
    let pid = replication.simple_query("SELECT pg_backend_pid()").await;
    let pid = pid.map_err(RelayError::Connect)?.into_iter().flatten().flatten().next();
    let pid = pid.and_then(|text| text.parse().ok());
    let rows = create_slot(finisher, pid, &mut replication, &statement).await;
    let rows = rows.map_err(RelayError::Connect)?;
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
    let row = importing.query_one(&*SNAPSHOT, &[]).await;
    let snapshot: String = row.map_err(&failed)?.get(0);
    importing.batch_execute("COMMIT").await.map_err(&failed)?;
    importing.close().await;
    let created = SlotSnapshot { consistent_point, snapshot };
    store_slot_snapshot(client, slot, &created).await?;
    failpoint::hit("recovery-noted");
    Ok(created)
}

/// Most attempts to create the slot. The last one follows about 10 seconds after the first.
const ATTEMPTS_MAX: u32 = 6;

const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(5) };

/// The answer of a server on which more transactions commit during the creation than a snapshot can
/// list. A later attempt meets fewer of them.
const SERIALIZATION_FAILURE: &str = "40001";

/// Returns the delay before the next attempt, if the initial snapshot was too large.
fn retry_delay(error: &PgError, attempt: u32, random: u32) -> Option<Duration> {
    let is_too_large = error.server().is_some_and(|answer| answer.code == SERIALIZATION_FAILURE);
    (is_too_large && attempt < ATTEMPTS_MAX).then(|| BACKOFF.delay(attempt, random))
}

/// Creates the slot, again if its initial snapshot is too large. The server has dropped the slot of
/// the failed attempt.
async fn create_slot(
    finisher: &OperationResumer<'_>,
    pid: Option<i32>,
    replication: &mut ReplicationConnection<Stream>,
    statement: &str,
) -> Result<Vec<Vec<Option<String>>>, PgError> {
    let mut random = Random::new(random_seed());
    let mut attempt = 1;
    loop {
        let created = telling(finisher, pid, replication.simple_query(statement)).await;
        let error = match created {
            Ok(rows) => return Ok(rows),
            Err(error) => error,
        };
        let Some(delay) = retry_delay(&error, attempt, random.next_u32()) else {
            return Err(error);
        };
        let error_code = error.code().name();
        tracing::warn!(error_code, error = %Chain(&error), "the new slot is begun again");
        tokio::select! {
            () = sleep(delay) => attempt += 1,
            () = finisher.stop.requested() => return Err(error),
        }
    }
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
            tracing::debug!(error = %Chain(&error), "the new slot cannot be dropped");
        }
        if let Ok(done) = timeout(FIRST_CHECK_DELAY, &mut work).await {
            return done;
        }
    }
    work.await
}

#[cfg(test)]
mod tests {
    use walrelay_pg_client::ServerError;

    use super::*;

    fn refusal(code: &str) -> PgError {
        PgError::Server(Box::new(ServerError {
            severity: "ERROR".to_owned(),
            code: code.to_owned(),
            message: "initial slot snapshot too large".to_owned(),
            detail: None,
            hint: None,
            routine: None,
        }))
    }

    #[test]
    fn a_slot_whose_initial_snapshot_is_too_large_is_created_again_a_few_times() {
        let delay = |code, attempt| retry_delay(&refusal(code), attempt, u32::MAX);
        assert_eq!(delay("40001", 1), Some(Duration::from_millis(250)));
        assert_eq!(delay("40001", ATTEMPTS_MAX - 1), Some(Duration::from_secs(4)));
        assert_eq!(delay("40001", ATTEMPTS_MAX), None, "the last attempt");
        assert_eq!(delay("53400", 1), None, "other errors are not retried");
    }
}
