//! `walrelay prune`: deletes outbox rows that are old, confirmed and not parked; of a partitioned outbox whole
//! partitions where all rows are.
//!
//! Confirmed is known without an LSN in the table: every committed transaction below `settled_xid`
//! of `app_outbox_relay` is settled. A row whose transaction cannot be compared with it stays.

use walrelay_outbox_admin::{AdminError, read_operation};
use walrelay_outbox_store::{read_history, recovering_slot};
use walrelay_pg_client::{
    PgError, QualifiedName, RowUse, ServerError, ServerErrorKind, SqlClient, connect_sql,
    quote_identifier, refuse_hidden_rows,
};

use super::before::{every_shard, refuse_unrecorded};
use super::columns::column_of;
use super::replay::record;
use crate::config::{PruneConfig, Pruning};
use crate::error::Error;
use crate::output::print;

/// Rows deleted in one transaction: small enough to hold locks for moments.
const BATCH_ROWS: u64 = 10_000;

/// Dropping a partition holds up writers of all of them: so long at most, twice.
const PARTITION_PATIENCE: &str =
    "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '5s'";

/// Deletes, table by table, and prints how many rows are gone.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, or the relay has not recorded yet what is settled.
pub async fn execute(config: PruneConfig) -> Result<(), Error> {
    let mut client = connect_sql(&config.database.connect).await?;
    let done = prune(&mut client, &config).await;
    client.close().await;
    done
}

/// Which rows of a table may go.
struct Condition {
    table: QualifiedName,
    /// About a row of `c`; `$1` is the age in seconds.
    text: String,
    seconds: f64,
}

async fn prune(client: &mut SqlClient, config: &PruneConfig) -> Result<(), Error> {
    // Each shard has rows of its own to be settled; one that never ran has settled none.
    for shard in every_shard(client, &config.database.outbox).await? {
        refuse_unrecorded(client, &shard.slot).await?;
        refuse_other_history(client, &shard.slot).await?;
    }
    let rows = match config.pruning {
        Pruning::Counted => RowUse::Read,
        Pruning::Done => RowUse::Delete,
    };
    refuse_hidden_rows(client, &config.database.outbox.tables, rows).await?;
    // A recovery that is not finished reads rows that look settled to nobody.
    if let Some(recovering) = recovering_slot(client).await? {
        let begun = read_operation(client, &recovering).await?;
        let what = begun.map_or_else(String::new, |begun| begun.describe(&recovering));
        return Err(AdminError::OperationUnfinished { slot: recovering, what }.into());
    }
    // The history of a key that is held may still have to be read from the table.
    refuse_while_any_is_held(client, &config.database.outbox.tables).await?;
    refuse_while_any_is_backfilled(client, &config.database.outbox.tables).await?;
    for table in &config.database.outbox.tables {
        let id = column_of(client, table, &config.columns.id).await?;
        let occurred_at = match &config.columns.occurred_at {
            Some(names) => column_of(client, table, names).await?,
            None => String::new(),
        };
        let condition = Condition {
            table: table.clone(),
            text: condition(&id, &occurred_at),
            seconds: config.older_than.as_secs_f64(),
        };
        match config.pruning {
            Pruning::Counted => count(client, &condition).await?,
            Pruning::Done => {
                drop_partitions(client, &condition).await?;
                delete(client, &condition).await?;
            }
        }
    }
    Ok(())
}

/// Refuses while keys of any slot are held for a replay in place.
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
                hint: record::how_to_end(command, id),
            })
        }
    }
}

/// Refuses while a backfill to a topic is not over: it reads the rows when it comes to them. What one in place
/// still has to read is held.
async fn refuse_while_any_is_backfilled(
    client: &SqlClient,
    tables: &[QualifiedName],
) -> Result<(), Error> {
    let Some(table) = tables.first() else { return Ok(()) };
    let refused = |error| refusal(table, error);
    let is_there = "SELECT WHERE to_regclass('public.app_outbox_replay') IS NOT NULL";
    if client.query_opt(is_there, &[]).await.map_err(refused)?.is_none() {
        return Ok(());
    }
    let sql = "SELECT slot, id FROM public.app_outbox_replay
                WHERE finished_at IS NULL AND anchor = ''
                  AND NOT coalesce((request ->> 'in_place')::bool, false) ORDER BY started_at LIMIT 1";
    match client.query_opt(sql, &[]).await.map_err(refused)? {
        None => Ok(()),
        Some(open) => {
            let (whose, id): (&str, &str) = (open.get("slot"), open.get("id"));
            Err(Error::Unfinished {
                what: format!("backfill {id} of slot {whose:?} is not over, and has rows to read"),
                hint: record::how_to_end("backfill", id),
            })
        }
    }
}

/// Transaction ids on record say nothing about a server that is another.
async fn refuse_other_history(client: &SqlClient, slot: &str) -> Result<(), Error> {
    let here = read_history(client, slot).await?;
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

/// Every relay on record counts, so that a second one still finds its rows for a recovery.
fn condition(id: &str, occurred_at: &str) -> String {
    let (id, occurred_at) = (quote_identifier(id), quote_identifier(occurred_at));
    format!(
        "c.{occurred_at} < now() - make_interval(secs => $1)
         AND age(c.xmin) > (SELECT max(age(r.settled_xid::xid)) FROM public.app_outbox_relay r)
         AND NOT EXISTS (SELECT FROM public.app_outbox_dispatch d
                          WHERE d.event_id = c.{id}::text AND d.status IN ('retrying', 'dead'))"
    )
}

async fn count(client: &SqlClient, condition: &Condition) -> Result<(), Error> {
    let Condition { table, text, seconds } = condition;
    let refused = |error| refusal(table, error);
    let sql = format!("SELECT count(*) FROM {table} c WHERE {text}");
    let rows: i64 = client.query_one(&sql, &[seconds]).await.map_err(refused)?.get(0);
    print(&format!("{rows} row(s) of {table} would be deleted\n"))?;
    for partition in partitions(client, table).await? {
        if is_all_old(client, (&partition, condition)).await? {
            print(&format!("of these, all of partition {partition}, which would be dropped\n"))?;
        }
    }
    Ok(())
}

/// A row's table stands beside its ctid, because partitions have ctids of their own.
async fn delete(client: &SqlClient, condition: &Condition) -> Result<(), Error> {
    let Condition { table, text, seconds } = condition;
    let sql = format!(
        "DELETE FROM {table} o USING (
           SELECT c.tableoid AS part, c.ctid AS place FROM {table} c WHERE {text} LIMIT {BATCH_ROWS}) old
          WHERE o.tableoid = old.part AND o.ctid = old.place"
    );
    let mut total = 0;
    loop {
        let refused = |error| refusal(table, error);
        let deleted = client.execute(&sql, &[seconds]).await.map_err(refused)?;
        total += deleted;
        if deleted < BATCH_ROWS {
            break;
        }
    }
    print(&format!("{total} row(s) deleted from {table}\n"))
}

/// The partitions that hold rows themselves, oldest name first; not the one for all other values. None of
/// a table that has none.
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

/// Whether a partition has rows, and all of them may go. One that is empty is there for rows to come.
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

/// Looked at twice: without holding anybody up, and again when nobody can write.
async fn drop_partitions(client: &mut SqlClient, condition: &Condition) -> Result<(), Error> {
    let table = &condition.table;
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
            Ok(true) => print(&format!("dropped: partition {partition} of {table}\n"))?,
            Ok(false) => {}
            // Its rows are deleted one by one, like others.
            Err(error) => tracing::warn!(%error, partition, "the partition is not dropped"),
        }
    }
    Ok(())
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

/// The rights that pruning needs are others than the relay's.
fn refusal(table: &QualifiedName, error: tokio_postgres::Error) -> Error {
    let error = PgError::from(error);
    let kind = error.server().map(ServerError::kind);
    match kind == Some(ServerErrorKind::Privilege) {
        true => Error::PruneDenied { table: table.to_string(), source: Box::new(error) },
        false => error.into(),
    }
}
