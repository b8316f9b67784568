//! What `walrelay init` does to the database: tables, then the publication, then the slot.
//!
//! One plan serves both ways: [`InitPlan::script`] is what `init --sql` prints, and [`init`] runs the
//! same statements. Each looks for itself at what is already there, so the plan needs no connection
//! and is safe to run again.
//!
//! The order matters. The server looks a publication up as of the position it decodes, so a slot
//! that is older than its publication fails on the first change, for ever; the plan refuses to make
//! one.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::lost::{LostSlot, read_loss};
use crate::migrations::migrations;
use crate::names::{QualifiedName, quote_identifier, quote_literal};
use crate::outbox::Outbox;
use crate::publication::read_publication;
use crate::relay_row::delete_relay_row;
use crate::slot::{Failover, check_failover, check_slot_name, drop_slot, read_slot};
use crate::store_error::{LOST_SLOT_FIX, StoreError};

/// What to set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitOptions {
    /// The slot and the publication to create, and the tables it publishes.
    pub outbox: Outbox,
    /// Only rows for which this SQL expression holds are published: one shard of several.
    pub row_filter: Option<String>,
    /// Whether the slot is synchronised to standbys.
    pub failover: Failover,
    /// What to do when the slot was lost: it existed, and is missing or invalidated.
    pub on_lost: OnLost,
    /// Whether the slot is made here.
    pub making: Making,
}

/// Whether an `init` makes the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Making {
    /// It does.
    #[default]
    Slot,
    /// A backfill makes it, together with a snapshot of what was there before.
    AllButSlot,
}

/// What to do when the slot was lost: it existed, and is missing or invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLost {
    /// Refuse: a new slot would hide that rows are missing.
    #[default]
    Refuse,
    /// Make a new slot, and give up what the old one had not settled.
    Accept,
}

/// What was set up. Each entry names its kind and itself: `table public.app_outbox`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InitReport {
    /// What is new.
    pub created: Vec<String>,
    /// What was there before, and was left as it is.
    pub already_there: Vec<String>,
}

/// The statements of an `init`, in order. Each is run on its own: a slot cannot be created in a
/// transaction that has written something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitPlan {
    steps: Vec<InitStep>,
}

/// One statement of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitStep {
    /// What it is for.
    pub title: String,
    /// One statement, atomic and safe to run again.
    pub sql: String,
}

impl InitPlan {
    /// The plan for these options.
    ///
    /// # Errors
    ///
    /// The slot's name cannot be one.
    pub fn new(options: &InitOptions) -> Result<Self, StoreError> {
        check_slot_name(&options.outbox.slot)?;
        let mut steps: Vec<InitStep> = migrations(&options.outbox.tables)
            .into_iter()
            .map(|migration| InitStep {
                title: format!("{}: {}", migration.file, names(&migration.tables)),
                sql: migration.sql,
            })
            .collect();
        steps.push(InitStep {
            title: format!("publication {}", options.outbox.publication),
            sql: publication_sql(options),
        });
        if options.on_lost == OnLost::Refuse {
            let title = format!("slot {}: not in place of one that was lost", options.outbox.slot);
            steps.push(InitStep { title, sql: guard_sql(options) });
        }
        if options.making == Making::Slot {
            steps.push(InitStep {
                title: format!("slot {}", options.outbox.slot),
                sql: slot_sql(options),
            });
        }
        Ok(Self { steps })
    }

    /// The statements.
    #[must_use]
    pub fn steps(&self) -> &[InitStep] {
        &self.steps
    }

    /// All statements as one script for `psql`, to be run without `--single-transaction`.
    #[must_use]
    pub fn script(&self) -> String {
        self.steps
            .iter()
            .map(|step| format!("-- {}\n{}\n\n", comment(&step.title), step.sql.trim_end()))
            .collect()
    }
}

/// Sets up what is missing. Waits, for the slot, until running transactions have ended.
///
/// # Errors
///
/// A slot of this name exists and cannot be used, or is older than the publication; the server is too
/// old; or the server refused. What came before has taken effect, and running it again goes on.
pub async fn init(client: &Client, options: &InitOptions) -> Result<InitReport, StoreError> {
    let plan = InitPlan::new(options)?;
    check_failover(client, options.failover).await?;
    let lost = read_loss(client, &options.outbox.slot).await?;
    if let Some(lost) = &lost {
        give_up(client, options, lost).await?;
    }
    refuse_unusable_slot(client, options).await?;
    let before = parts(client, options).await?;
    for InitStep { title, sql } in plan.steps() {
        client.batch_execute(sql).await.map_err(StoreError::sql(format!("set up {title}")))?;
    }
    if lost.is_some() {
        // Last of all: until the new slot stands, the record keeps everybody from going on.
        delete_relay_row(client, &options.outbox.slot).await?;
    }
    // Looked at again: beside an outbox with columns of its own some things are not made.
    let after = parts(client, options).await?;
    let is_there = |name: &str| after.iter().any(|part| part.name == name && part.is_present);
    let mut report = InitReport::default();
    for Part { name, is_present } in before {
        if is_present {
            report.already_there.push(name);
        } else if is_there(&name) {
            report.created.push(name);
        }
    }
    Ok(report)
}

/// The row filter of shard `index` of `count` (a power of two), by the column of the ordering key.
///
/// A mask and not `abs(..) %`: `abs` of the least integer is an error, raised while decoding, where
/// it would stop the slot for ever.
///
/// # Panics
///
/// When `count` is not a power of two or `index` is not below it.
#[must_use]
pub fn shard_filter(column: &str, index: u32, count: u32) -> String {
    assert!(count.is_power_of_two() && index < count, "shard {index} of {count}");
    format!("(hashtext({}) & {}) = {index}", quote_identifier(column), count - 1)
}

/// Refuses to replace a lost slot, or drops what is left of it when its loss is accepted.
async fn give_up(
    client: &Client,
    options: &InitOptions,
    lost: &LostSlot,
) -> Result<(), StoreError> {
    let slot = &options.outbox.slot;
    if options.on_lost == OnLost::Refuse {
        return Err(StoreError::SlotLost { slot: slot.clone(), problem: lost.problem.clone() });
    }
    match read_slot(client, slot).await? {
        Some(state) if state.is_lost() => drop_slot(client, slot).await,
        Some(_) | None => Ok(()),
    }
}

async fn refuse_unusable_slot(client: &Client, options: &InitOptions) -> Result<(), StoreError> {
    let Some(slot) = read_slot(client, &options.outbox.slot).await? else { return Ok(()) };
    let row = client
        .query_typed_one("SELECT current_database()::text AS name", &[])
        .await
        .map_err(StoreError::sql("read the name of the database"))?;
    if let Some(problem) = slot.mismatch(row.get("name")) {
        return Err(StoreError::SlotUnusable { slot: options.outbox.slot.clone(), problem });
    }
    if read_publication(client, &options.outbox.publication).await?.is_none() {
        return Err(StoreError::SlotBeforePublication {
            slot: options.outbox.slot.clone(),
            publication: options.outbox.publication.clone(),
        });
    }
    Ok(())
}

/// Something a plan sets up, and whether it was there before.
struct Part {
    name: String,
    is_present: bool,
}

async fn parts(client: &Client, options: &InitOptions) -> Result<Vec<Part>, StoreError> {
    let mut parts = Vec::new();
    for table in migrations(&options.outbox.tables).into_iter().flat_map(|m| m.tables) {
        let row = client
            .query_typed_one(
                "SELECT to_regclass($1) IS NOT NULL AS is_present",
                &[(&table.to_string(), Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql(format!("look for table {table}")))?;
        parts.push(Part { name: format!("table {table}"), is_present: row.get("is_present") });
    }
    let publication = read_publication(client, &options.outbox.publication).await?;
    let name = &options.outbox.publication;
    parts.push(Part { name: format!("publication {name}"), is_present: publication.is_some() });
    if let Some(publication) = publication {
        parts.extend(options.outbox.tables.iter().map(|table| Part {
            name: format!("table {table} in publication {name}"),
            is_present: publication.covers(table),
        }));
    }
    let slot = read_slot(client, &options.outbox.slot).await?;
    parts.push(Part { name: format!("slot {}", options.outbox.slot), is_present: slot.is_some() });
    Ok(parts)
}

/// Creates the publication, or adds to it the tables it lacks; never drops one (a slot that meets a
/// stretch of log without its publication fails there for ever).
///
/// `publish_via_partition_root` has no effect on a table without partitions; with them, rows would
/// otherwise come under the names of partitions, which nobody has configured.
fn publication_sql(options: &InitOptions) -> String {
    let Outbox { slot, publication, tables } = &options.outbox;
    let filter = options.row_filter.as_ref().map_or_else(String::new, |f| format!(" WHERE ({f})"));
    let entries: Vec<String> = tables.iter().map(|t| format!("{t}{filter}")).collect();
    let name = quote_identifier(publication);
    let literal = quote_literal(publication);
    let additions: String = tables
        .iter()
        .zip(&entries)
        .map(|(table, entry)| {
            format!(
                "
  IF NOT EXISTS (
    SELECT FROM pg_catalog.pg_publication p
     WHERE p.pubname = {literal} AND (p.puballtables
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
                   WHERE r.prpubid = p.oid AND r.prrelid = {relation}::regclass)
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n
                    JOIN pg_catalog.pg_class c ON c.relnamespace = n.pnnspid
                   WHERE n.pnpubid = p.oid AND c.oid = {relation}::regclass)))
  THEN
    ALTER PUBLICATION {name} ADD TABLE {entry};
  END IF;",
                relation = quote_literal(&table.to_string()),
            )
        })
        .collect();
    format!(
        "DO $walrelay$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = {literal}) THEN
    IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}) THEN
      RAISE EXCEPTION 'slot % is older than publication %, which does not exist', {slot}, {literal}
        USING HINT = 'The slot would fail on every change in between: name its publication, or a new slot.';
    END IF;
    CREATE PUBLICATION {name} FOR TABLE {tables}
      WITH (publish = 'insert', publish_via_partition_root = true);
    RETURN;
  END IF;
{additions}
END
$walrelay$;",
        slot = quote_literal(slot),
        tables = entries.join(", "),
    )
}

/// Refuses to create the slot if it is on record and does not exist: that is a lost slot, and a new
/// one would hide what was lost.
fn guard_sql(options: &InitOptions) -> String {
    let slot = quote_literal(&options.outbox.slot);
    let hint = quote_literal(LOST_SLOT_FIX);
    format!(
        "DO $walrelay$
BEGIN
  IF EXISTS (SELECT FROM public.app_outbox_relay WHERE slot = {slot})
     AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}) THEN
    RAISE EXCEPTION 'slot % is lost: it is on record and does not exist', {slot} USING HINT = {hint};
  END IF;
END
$walrelay$;"
    )
}

fn slot_sql(options: &InitOptions) -> String {
    let slot = quote_literal(&options.outbox.slot);
    let failover = match options.failover {
        Failover::No => "",
        Failover::Yes => ", true",
    };
    // In the select list under a condition without columns: the server tests that first, once, and
    // does not call the function where the slot exists.
    format!(
        "SELECT pg_create_logical_replication_slot({slot}, 'pgoutput', false, false{failover}) AS created
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot});"
    )
}

fn names(tables: &[QualifiedName]) -> String {
    tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A title as a SQL comment, which a line break in a name must not leave.
fn comment(title: &str) -> String {
    title.replace(['\n', '\r'], " ")
}
