//! `walrelay prune`: deletes outbox rows that are old, confirmed and not parked. Of a partitioned
//! outbox it drops whole partitions in which all rows may go.
//!
//! The table has no LSN, but every committed transaction below `settled_xid` of `app_outbox_relay`
//! is settled. Rows whose transaction id cannot be compared with `settled_xid` stay.

use std::time::Duration;

use walrelay_core::ColumnNames;
use walrelay_outbox_admin::lifecycle::retention::{PruneStep, PruneSteps};
use walrelay_outbox_admin::{AdminError, read_operation};
use walrelay_outbox_store::{Outbox, read_recorded_system_identifier, recovering_slot};
use walrelay_pg_client::{
    PgError, QualifiedName, ServerError, ServerErrorKind, SqlClient, TableAccess, connect_sql,
    quote_identifier, refuse_hidden_rows,
};

use walrelay_relay::shutdown::Shutdown;

use super::replay::record;
use super::shared::columns::column_of;
use super::shared::consent::may_change;
use super::shared::preconditions::{every_shard, refuse_unrecorded};
use crate::config::{ChangeMode, PruneConfig};
use crate::error::Error;
use crate::output::print;

/// Rows deleted in one transaction, few enough to hold locks only briefly.
const BATCH_ROWS: u64 = 10_000;

/// Timeouts for dropping a partition, because the lock blocks writers of all partitions. The check
/// and the DROP may each take the statement timeout.
const PARTITION_PATIENCE: &str =
    "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '5s'";

/// Deletes rows table by table, and prints their number.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, or the relay has not yet recorded which rows are settled.
pub async fn execute(config: PruneConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let mut client = connect_sql(&config.database.connect).await?;
    let done = prune(&mut client, &config, shutdown).await;
    client.close().await;
    done
}

/// The rows of a table that may be deleted.
struct Condition {
    table: QualifiedName,
    /// SQL condition on a row of `c`, where `$1` is the age in seconds.
    text: String,
    seconds: f64,
}

async fn prune(
    client: &mut SqlClient,
    config: &PruneConfig,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let outbox = &config.database.outbox;
    let access = match config.mode {
        ChangeMode::DryRun => TableAccess::Read,
        ChangeMode::Agreed | ChangeMode::Ask => TableAccess::Delete,
    };
    refuse_unready(client, outbox, access).await?;
    let conditions = conditions_on(client, (outbox, &config.columns), config.older_than).await?;
    match config.mode {
        ChangeMode::DryRun => {
            for condition in &conditions {
                report(client, condition).await?;
            }
            return Ok(());
        }
        ChangeMode::Agreed => {}
        ChangeMode::Ask => {
            let mut rows = 0;
            for condition in &conditions {
                rows += count(client, condition).await?;
            }
            let what = format!("delete {rows} row(s) of the outbox");
            may_change((&what, config.mode), shutdown).await?;
        }
    }
    for condition in &conditions {
        let table = &condition.table;
        for partition in drop_partitions(client, condition).await? {
            print(&format!("dropped: partition {partition} of {table}\n"))?;
        }
        let mut total = 0;
        loop {
            let deleted = delete_batch(client, condition).await?;
            total += deleted;
            if deleted < BATCH_ROWS {
                break;
            }
        }
        print(&format!("{total} row(s) deleted from {table}\n"))?;
    }
    Ok(())
}

/// The steps of `run --prune-older-than`, under the same conditions as the command.
#[derive(Debug, Clone)]
pub(super) struct OutboxSteps {
    pub(super) outbox: Outbox,
    pub(super) columns: ColumnNames,
    pub(super) older_than: Duration,
}

impl PruneSteps for OutboxSteps {
    type Error = Error;

    async fn step(&self, client: &mut SqlClient) -> Result<PruneStep, Error> {
        let Self { outbox, columns, older_than } = self;
        refuse_unready(client, outbox, TableAccess::Delete).await?;
        let mut step = PruneStep { rows: 0, partitions: 0, has_more: false };
        for condition in conditions_on(client, (outbox, columns), *older_than).await? {
            for partition in drop_partitions(client, &condition).await? {
                tracing::info!(partition, "a partition with only old rows is dropped");
                step.partitions += 1;
            }
            let rows = delete_batch(client, &condition).await?;
            step.rows += rows;
            step.has_more |= rows == BATCH_ROWS;
        }
        Ok(step)
    }
}

/// Refuses while rows may be needed, or it is not known which rows are settled.
async fn refuse_unready(
    client: &SqlClient,
    outbox: &Outbox,
    access: TableAccess,
) -> Result<(), Error> {
    // Each shard settles its own rows, and a shard that never ran has settled none.
    for shard in every_shard(client, outbox).await? {
        refuse_unrecorded(client, &shard.slot).await?;
        refuse_other_history(client, &shard.slot).await?;
    }
    refuse_hidden_rows(client, &outbox.tables, access).await?;
    // An unfinished recovery reads rows that are below `settled_xid`.
    if let Some(recovering) = recovering_slot(client).await? {
        let begun = read_operation(client, &recovering).await?;
        let what = begun.map_or_else(String::new, |begun| begun.describe(&recovering));
        return Err(AdminError::OperationUnfinished { slot: recovering, what }.into());
    }
    // A replay may still have to read the history of a paused key from the table.
    refuse_while_any_is_held(client, &outbox.tables).await?;
    refuse_while_any_is_backfilled(client, &outbox.tables).await
}

async fn conditions_on(
    client: &SqlClient,
    (outbox, columns): (&Outbox, &ColumnNames),
    older_than: Duration,
) -> Result<Vec<Condition>, Error> {
    let mut conditions = Vec::new();
    for table in &outbox.tables {
        conditions.push(condition_on(client, (columns, table), older_than).await?);
    }
    Ok(conditions)
}

async fn condition_on(
    client: &SqlClient,
    (columns, table): (&ColumnNames, &QualifiedName),
    older_than: Duration,
) -> Result<Condition, Error> {
    let id = column_of(client, table, &columns.id).await?;
    let occurred_at = match &columns.occurred_at {
        Some(names) => column_of(client, table, names).await?,
        None => String::new(),
    };
    Ok(Condition {
        table: table.clone(),
        text: condition(&id, &occurred_at),
        seconds: older_than.as_secs_f64(),
    })
}

/// Refuses while a replay in place pauses keys of any slot.
async fn refuse_while_any_is_held(
    client: &SqlClient,
    tables: &[QualifiedName],
) -> Result<(), Error> {
    let Some(table) = tables.first() else { return Ok(()) };
    let sql = "SELECT slot, replay_id FROM public.app_outbox_hold LIMIT 1";
    match client.query_opt(sql, &[]).await.map_err(|error| refusal(table, error))? {
        None => Ok(()),
        Some(held) => {
            let (whose, id): (&str, &str) = (held.get("slot"), held.get("replay_id"));
            let command = record::command_of(client, id).await;
            Err(Error::Unfinished {
                what: format!(
                    "keys of slot {whose:?} are held for {command} {id}, which is not over"
                ),
                hint: record::unfinished_hint(id),
            })
        }
    }
}

/// Refuses while a backfill to a topic is unfinished, because the backfill has rows left to read.
/// Backfills in place are excluded: they pause the keys whose rows they still have to read.
async fn refuse_while_any_is_backfilled(
    client: &SqlClient,
    tables: &[QualifiedName],
) -> Result<(), Error> {
    let Some(table) = tables.first() else { return Ok(()) };
    let refused = |error| refusal(table, error);
    let sql = "SELECT slot, id FROM public.app_outbox_replay
                WHERE finished_at IS NULL AND anchor = ''
                  AND NOT (request ->> 'in_place')::bool ORDER BY started_at LIMIT 1";
    match client.query_opt(sql, &[]).await.map_err(refused)? {
        None => Ok(()),
        Some(open) => {
            let (whose, id): (&str, &str) = (open.get("slot"), open.get("id"));
            Err(Error::Unfinished {
                what: format!("backfill {id} of slot {whose:?} is not over, and has rows to read"),
                hint: record::unfinished_hint(id),
            })
        }
    }
}

/// Refuses if a relay's record is from another server: its transaction ids mean nothing here.
async fn refuse_other_history(client: &SqlClient, slot: &str) -> Result<(), Error> {
    let here = read_recorded_system_identifier(client, slot).await?;
    let sql = "SELECT slot FROM public.app_outbox_relay WHERE system_identifier <> $1 LIMIT 1";
    let other = client.query_opt(sql, &[&here]).await.map_err(PgError::from)?;
    match other {
        None => Ok(()),
        Some(other) => {
            let problem = "is on record as one of another server: nobody knows which of its rows were published";
            Err(AdminError::SlotLost { slot: other.get(0), problem: problem.to_owned() }.into())
        }
    }
}

/// Returns the SQL condition for rows that may be deleted. It uses the oldest `settled_xid` of all
/// relays, so that each relay can still recover its own rows.
fn condition(id: &str, occurred_at: &str) -> String {
    let (id, occurred_at) = (quote_identifier(id), quote_identifier(occurred_at));
    format!(
        "c.{occurred_at} < now() - make_interval(secs => $1)
         AND age(c.xmin) > (SELECT max(age(r.settled_xid::xid)) FROM public.app_outbox_relay r)
         AND NOT EXISTS (SELECT FROM public.app_outbox_dispatch d
                          WHERE d.event_id = c.{id}::text AND d.status IN ('retrying', 'dead'))"
    )
}

async fn count(client: &SqlClient, condition: &Condition) -> Result<i64, Error> {
    let Condition { table, text, seconds } = condition;
    let refused = |error| refusal(table, error);
    let sql = format!("SELECT count(*) FROM {table} c WHERE {text}");
    Ok(client.query_one(&sql, &[seconds]).await.map_err(refused)?.get(0))
}

/// Prints what would be deleted.
async fn report(client: &SqlClient, condition: &Condition) -> Result<(), Error> {
    let table = &condition.table;
    let rows = count(client, condition).await?;
    print(&format!("{rows} row(s) of {table} would be deleted\n"))?;
    for partition in partitions(client, table).await? {
        if is_all_old(client, (&partition, condition)).await? {
            print(&format!("of these, all of partition {partition}, which would be dropped\n"))?;
        }
    }
    Ok(())
}

/// Deletes rows in one transaction, at most [`BATCH_ROWS`]. The row's table is compared together
/// with its ctid, because ctids are unique only within one partition.
async fn delete_batch(client: &SqlClient, condition: &Condition) -> Result<u64, Error> {
    let Condition { table, text, seconds } = condition;
    let sql = format!(
        "DELETE FROM {table} o USING (
           SELECT c.tableoid AS part, c.ctid AS place FROM {table} c WHERE {text} LIMIT {BATCH_ROWS}) old
          WHERE o.tableoid = old.part AND o.ctid = old.place"
    );
    client.execute(&sql, &[seconds]).await.map_err(|error| refusal(table, error))
}

/// Returns the leaf partitions in name order, without the default partition. Returns none for a
/// table without partitions.
async fn partitions(client: &SqlClient, table: &QualifiedName) -> Result<Vec<String>, Error> {
    let sql = "SELECT t.relid::regclass::text
                 FROM pg_partition_tree($1::text::regclass) t
                 JOIN pg_class c ON c.oid = t.relid
                WHERE t.isleaf AND t.level > 0 AND c.relkind = 'r'
                  AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
                ORDER BY 1";
    let found = client.query(sql, &[&table.to_string()]).await.map_err(PgError::from)?;
    Ok(found.iter().map(|row| row.get(0)).collect())
}

/// Returns whether a partition has rows, and all of them may go. An empty partition stays for rows
/// to come.
async fn is_all_old(
    client: &SqlClient,
    (partition, condition): (&str, &Condition),
) -> Result<bool, Error> {
    let Condition { table, text, seconds } = condition;
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {partition}) AND NOT EXISTS (SELECT FROM {partition} c WHERE NOT ({text}))"
    );
    let refused = |error| refusal(table, error);
    Ok(client.query_one(&sql, &[seconds]).await.map_err(refused)?.get(0))
}

/// Drops partitions in which all rows may go, and returns their names. Checks each partition first
/// without a lock, and again under the lock that stops writers.
async fn drop_partitions(client: &SqlClient, condition: &Condition) -> Result<Vec<String>, Error> {
    let table = &condition.table;
    let mut gone = Vec::new();
    for partition in partitions(client, table).await? {
        if !is_all_old(client, (&partition, condition)).await? {
            continue;
        }
        let locked =
            format!("BEGIN; {PARTITION_PATIENCE}; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        let dropped = match client.batch_execute(&locked).await {
            Err(error) => Err(refusal(table, error)),
            Ok(()) => drop_locked(client, (&partition, condition)).await,
        };
        let end = if matches!(dropped, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(end).await.map_err(PgError::from)?;
        match dropped {
            Ok(true) => gone.push(partition),
            Ok(false) => {}
            // `delete_batch` then deletes the partition's rows like all other rows.
            Err(error) => tracing::warn!(%error, partition, "the partition is not dropped"),
        }
    }
    Ok(gone)
}

async fn drop_locked(
    client: &SqlClient,
    (partition, condition): (&str, &Condition),
) -> Result<bool, Error> {
    if !is_all_old(client, (partition, condition)).await? {
        return Ok(false);
    }
    let refused = |error| refusal(&condition.table, error);
    client.batch_execute(&format!("DROP TABLE {partition}")).await.map_err(refused)?;
    Ok(true)
}

/// Maps a permission error: `prune` needs other permissions than the relay.
fn refusal(table: &QualifiedName, error: tokio_postgres::Error) -> Error {
    let error = PgError::from(error);
    let kind = error.server().map(ServerError::kind);
    match kind == Some(ServerErrorKind::Privilege) {
        true => Error::PruneDenied { table: table.to_string(), source: Box::new(error) },
        false => error.into(),
    }
}
