//! `walrelay prune`: deletes outbox rows that are old, confirmed and not parked.
//!
//! Confirmed is known without an LSN in the table: every committed transaction below `settled_xid`
//! of `app_outbox_relay` is settled. A row whose transaction cannot be compared with it stays.

use walrelay_postgres::{
    PgError, QualifiedName, ServerError, ServerErrorKind, SqlClient, StoreError, connect_sql,
    quote_identifier, recovering_slot,
};

use super::before::refuse_unrecorded;
use super::columns::column_of;
use crate::config::PruneConfig;
use crate::error::Error;
use crate::output::print;

/// Rows deleted in one transaction: small enough to hold locks for moments.
const BATCH_ROWS: u64 = 10_000;

/// Deletes, table by table, and prints how many rows are gone.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, or the relay has not recorded yet what is settled.
pub async fn execute(config: PruneConfig) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let done = prune(&client, &config).await;
    client.close().await;
    done
}

async fn prune(client: &SqlClient, config: &PruneConfig) -> Result<(), Error> {
    let slot = &config.database.outbox.slot;
    refuse_unrecorded(client, slot).await?;
    // A recovery that is not finished reads rows that look settled to nobody.
    if let Some(recovering) = recovering_slot(client).await? {
        let what = "a recovery".to_owned();
        return Err(StoreError::OperationUnfinished { slot: recovering, what }.into());
    }
    let seconds = config.older_than.as_secs_f64();
    for table in &config.database.outbox.tables {
        let id = column_of(client, table, &config.columns.id).await?;
        let occurred_at = match &config.columns.occurred_at {
            Some(names) => column_of(client, table, names).await?,
            None => String::new(),
        };
        let sql = delete_sql(table, &id, &occurred_at);
        let mut total = 0;
        loop {
            let refused = |error| refusal(table, error);
            let deleted = client.execute(&sql, &[&seconds]).await.map_err(refused)?;
            total += deleted;
            if deleted < BATCH_ROWS {
                break;
            }
        }
        print(&format!("{total} row(s) deleted from {table}\n"))?;
    }
    Ok(())
}

/// The rights that pruning needs are others than the relay's.
fn refusal(table: &QualifiedName, error: tokio_postgres::Error) -> Error {
    let error = PgError::from(error);
    let kind = error.server().map(ServerError::kind);
    match kind == Some(ServerErrorKind::Privilege) {
        true => Error::PruneDenied { table: table.to_string(), source: Box::new(error) },
        false => error.into(),
    }
}

/// Every relay on record counts, so that a second one still finds its rows for a recovery. A row's
/// table stands beside its ctid, because partitions have ctids of their own.
fn delete_sql(table: &QualifiedName, id: &str, occurred_at: &str) -> String {
    let (id, occurred_at) = (quote_identifier(id), quote_identifier(occurred_at));
    format!(
        "DELETE FROM {table} o USING (
           SELECT c.tableoid AS part, c.ctid AS place FROM {table} c
            WHERE c.{occurred_at} < now() - make_interval(secs => $1)
              AND age(c.xmin) > (SELECT max(age(r.settled_xid::xid)) FROM public.app_outbox_relay r)
              AND NOT EXISTS (SELECT FROM public.app_outbox_dispatch d
                               WHERE d.event_id = c.{id}::text AND d.status IN ('retrying', 'dead'))
            LIMIT {BATCH_ROWS}) old
          WHERE o.tableoid = old.part AND o.ctid = old.place"
    )
}
