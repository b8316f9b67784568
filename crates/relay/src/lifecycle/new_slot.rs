//! The new slot of a recovery, and the snapshot of what it does not stream.

use pgoutput_parser::Lsn;
use walrelay_postgres::{
    ConnectConfig, Failover, Filling, Recovery, ReplicationConnection, SqlClient, StoreError,
    connect_sql, drop_slot, note_filling, quote_identifier, quote_literal,
};

use crate::error::RelayError;
use crate::failpoint;
use crate::policy::Kind;

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
    let rows = replication.simple_query(&sql).await.map_err(RelayError::Connect)?;
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
    let row = importing.query_one("SELECT pg_current_snapshot()::text", &[]).await;
    let snapshot: String = row.map_err(&failed)?.get(0);
    importing.batch_execute("COMMIT").await.map_err(&failed)?;
    importing.close().await;
    let filling = Filling { consistent_point, snapshot };
    note_filling(client, slot, &filling).await.map_err(RelayError::Survey)?;
    failpoint::hit("recovery-noted");
    Ok(filling)
}
