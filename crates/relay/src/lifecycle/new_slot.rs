//! The new slot of a recovery, and the snapshot of what it does not stream.

use std::pin::pin;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::timeout;
use walrelay_postgres::{
    ConnectConfig, Failover, Filling, PgError, Recovery, ReplicationConnection, SqlClient,
    StoreError, blockers, connect_sql, drop_slot, note_filling, quote_identifier, quote_literal,
};

use crate::error::RelayError;
use crate::failpoint;
use crate::policy::{Chain, Kind};

/// The snapshot as text that can be read back. Where transactions rolled back while the slot was made,
/// the exported one may end before it begins, and `pg_snapshot` refuses to read that. What lies below
/// `xmin` is over either way (`XidInMVCCSnapshot` in `snapmgr.c` looks there first).
const SNAPSHOT: &str = "
    SELECT CASE WHEN pg_snapshot_xmin(s) > pg_snapshot_xmax(s)
                THEN format('%s:%s:', pg_snapshot_xmin(s), pg_snapshot_xmin(s))
                ELSE s::text END
      FROM pg_current_snapshot() AS s";

/// How often it is told what a new slot waits for.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Makes the slot and puts its snapshot on record. Waits, like every new slot, until the transactions
/// that are open have ended.
pub(crate) async fn create(
    client: &SqlClient,
    connect: &ConnectConfig,
    (slot, recovery): (&str, &Recovery),
) -> Result<Filling, RelayError> {
    tracing::info!(slot, "making a new slot in place of the one that was lost");
    match drop_slot(client, slot).await {
        Ok(()) | Err(StoreError::SlotMissing { .. }) => {}
        Err(error) => return Err(RelayError::Survey(error)),
    }
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
    let rows = telling(client, pid, making).await.map_err(RelayError::Connect)?;
    failpoint::hit("recovery-created");
    let mut fields = rows.into_iter().next().unwrap_or_default().into_iter().flatten();
    let (_, point, name) = (fields.next(), fields.next(), fields.next());
    let point = point.and_then(|text| text.parse::<Lsn>().ok());
    let (Some(consistent_point), Some(name)) = (point, name) else {
        return Err(RelayError::Setup {
            kind: Kind::Protocol,
            summary: "the server does not say where the new slot begins".to_owned(),
        });
    };
    // The snapshot lives until the next command on the connection that exported it. Only in the
    // transaction that imports it does it list subtransactions.
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
    note_filling(client, slot, &filling).await.map_err(RelayError::Survey)?;
    failpoint::hit("recovery-noted");
    Ok(filling)
}

/// Does `work`, which the server process `pid` does, and tells what it waits for. Without a word that
/// looks like a hang.
async fn telling<T>(
    client: &SqlClient,
    pid: Option<i32>,
    work: impl Future<Output = Result<T, PgError>>,
) -> Result<T, PgError> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = timeout(TOLD_EVERY, &mut work).await {
            return done;
        }
        let Some(pid) = pid else { continue };
        match blockers(client, pid).await {
            Ok(who) if who.is_empty() => {}
            Ok(who) => tracing::warn!("the new slot waits for a transaction to end: {who}"),
            Err(error) => tracing::debug!(error = %Chain(&error), "cannot look what is waited for"),
        }
    }
}
