//! Sets up the database for `walrelay init`: tables, then the publication, then the slot.
//!
//! `init --sql` prints [`InitPlan::script`], and [`init`] runs the same statements. Each statement
//! checks by itself what already exists, so the plan needs no connection and is safe to run again.
//!
//! The order matters. The server reads a publication as of the position that it decodes. A slot
//! that is older than its publication fails at the first change, for ever. The plan refuses to
//! create such a slot.

mod definition;
mod rows_guard;
mod slot_guard;
pub(crate) mod unstreamed_guard;

use std::collections::BTreeMap;

use serde::Serialize;
use tokio_postgres::Client;
use walrelay_core::ColumnNames;
use walrelay_outbox_replay::{AdminError, LostSlot, read_loss, refuse_other_slot};
use walrelay_outbox_store::{
    Definition, Migration, Outbox, SLOT_WITH_OLDEST, ShardKey, migrations,
};
use walrelay_pg_client::{
    QualifiedName, SCHEMA, in_schema, quote_identifier, quote_literal, schema, sql, table_literals,
};
use walrelay_pg_replication::{
    Failover, check_failover, check_slot_name, read_publication, read_slot,
};

pub(crate) use self::definition::define;
use self::definition::table_exists;
use crate::partitions::{PartitionSpan, registration_sql};
use crate::sharding::read_sharding;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitOptions {
    pub outbox: Outbox,
    pub columns: ColumnNames,
    /// The key that distributes rows among shards, if the outbox is one of several shards.
    pub shard_key: Option<ShardKey>,
    pub failover: Failover,
    pub earlier_rows: EarlierRows,
    pub making: SlotCreation,
    /// The span of a partition, if missing tables are created as partitioned tables.
    pub partition_by: Option<PartitionSpan>,
}

impl InitOptions {
    /// Returns the options that refuse everything an operator has to decide.
    #[must_use]
    pub fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            columns: ColumnNames::default(),
            shard_key: None,
            failover: Failover::No,
            earlier_rows: EarlierRows::Refuse,
            making: SlotCreation::Slot,
            partition_by: None,
        }
    }
}

/// How to handle rows that are in the outbox before its first slot. The slot does not stream them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EarlierRows {
    /// Refuse, because the operator has not chosen.
    #[default]
    Refuse,
    /// Create the slot, which leaves them unpublished.
    Leave,
}

/// Whether `init` creates the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotCreation {
    #[default]
    Slot,
    /// `init` creates a slot that was recorded before, so its absence is no loss.
    RecordedSlot,
    /// A backfill creates the slot, together with a snapshot of the earlier rows.
    AllButSlot,
}

/// The result of an `init`. Each entry has a kind and a name: `table public.app_outbox`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct InitReport {
    pub created: Vec<String>,
    /// Objects that existed before and did not change.
    pub already_there: Vec<String>,
}

/// The statements of an `init`, in order. Each runs on its own, because a slot cannot be created in
/// a transaction that has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitPlan {
    steps: Vec<InitStep>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitStep {
    pub title: String,
    /// One statement, atomic and safe to run again.
    pub sql: String,
}

impl InitPlan {
    pub fn new(options: &InitOptions) -> Result<Self, AdminError> {
        check_slot_name(&options.outbox.slot)?;
        let mut steps: Vec<InitStep> = migrations(&options.outbox.tables)
            .into_iter()
            .map(|migration| match options.partition_by {
                Some(_) => migration.partitioned(),
                None => migration,
            })
            .map(|migration| InitStep { title: migration_title(&migration), sql: migration.sql })
            .collect();
        steps.extend(options.outbox.tables.iter().map(|table| InitStep {
            title: format!("partitions of {table}, if it is partitioned"),
            sql: registration_sql(table, options.partition_by),
        }));
        steps.extend(options.outbox.tables.iter().map(|table| InitStep {
            title: format!("table {table}: without rows that no slot streams"),
            sql: unstreamed_guard::sql(table),
        }));
        steps.push(publication_step(options));
        // Without the slot, the plan replaces none: the operation that creates it may be on record.
        if options.making == SlotCreation::Slot {
            let title = format!("slot {}: not in place of one that was lost", options.outbox.slot);
            steps.push(InitStep { title, sql: slot_guard::not_lost(&options.outbox.slot) });
        }
        if options.failover == Failover::Yes {
            let title = format!("slot {}: a failover slot, if it is there", options.outbox.slot);
            steps.push(InitStep { title, sql: slot_guard::of_failover(&options.outbox.slot) });
        }
        if options.making != SlotCreation::AllButSlot {
            let slot = &options.outbox.slot;
            let is_guarded = options.earlier_rows == EarlierRows::Refuse;
            if is_guarded {
                let title = format!("slot {slot}: not behind rows that it does not stream");
                steps.push(InitStep { title, sql: rows_guard::before(&options.outbox) });
            }
            steps.push(InitStep { title: format!("slot {slot}"), sql: slot_sql(options) });
            if is_guarded {
                let title = format!("slot {slot}: dropped again if rows came while it was created");
                steps.push(InitStep { title, sql: rows_guard::meanwhile(&options.outbox) });
            }
            // After the slot: until both exist, the record alone would look like a lost slot.
            steps.push(InitStep {
                title: format!("slot {slot}: its record, which shows later whether it was lost"),
                sql: record_sql(options),
            });
        }
        Ok(Self { steps })
    }

    /// Joins several plans. Statements that they share run once.
    #[must_use]
    pub fn joined(plans: impl IntoIterator<Item = Self>) -> Self {
        let mut steps: Vec<InitStep> = Vec::new();
        for step in plans.into_iter().flat_map(|plan| plan.steps) {
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
        Self { steps }
    }

    #[must_use]
    pub fn steps(&self) -> &[InitStep] {
        &self.steps
    }

    /// Returns all statements as one script for `psql`, to be run without `--single-transaction`.
    #[must_use]
    pub fn script(&self) -> String {
        self.steps
            .iter()
            .map(|step| format!("-- {}\n{}\n\n", comment(&step.title), step.sql.trim_end()))
            .collect()
    }
}

/// Returns the step that publishes the tables and puts them on record. In this order, and in one
/// transaction if the statements are sent together: a table that cannot be published is not put on
/// record either.
fn publication_step(options: &InitOptions) -> InitStep {
    let definition = Definition::of(&options.outbox, &options.columns);
    let (publication, slot) = (&options.outbox.publication, &definition.slot);
    let statements = [
        publication_sql(options, &slot_guard::not_older(&options.outbox), &BTreeMap::new()),
        definition.record_sql(),
        note_added_sql(&options.outbox),
    ];
    InitStep {
        title: format!(
            "publication {publication}, and the definition of the outbox of slot {slot}"
        ),
        sql: statements.join("\n"),
    }
}

/// Sets up everything that is missing. Before it creates the slot, the server waits until running
/// transactions have ended.
///
/// # Errors
///
/// A slot of this name exists and cannot be used, or is older than the publication. The server is
/// too old. Earlier statements have taken effect, and the next run continues.
pub async fn init(client: &Client, options: &InitOptions) -> Result<InitReport, AdminError> {
    let plan = InitPlan::new(options)?;
    refuse_other_number(client, &options.outbox).await?;
    check_failover(client, options.failover).await?;
    if let Some(lost) = read_loss(client, &options.outbox.slot).await? {
        return Err(refused(&options.outbox.slot, lost));
    }
    refuse_unusable_slot(client, options).await?;
    let before = parts(client, options).await?;
    for InitStep { title, sql } in plan.steps() {
        client.batch_execute(sql).await.map_err(AdminError::sql(format!("set up {title}")))?;
    }
    // Check again, because some objects are not created for an outbox with custom columns.
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

/// Returns the refusal of a new slot in place of a lost or released one. A recovery would publish
/// all missing rows.
fn refused(slot: &str, lost: LostSlot) -> AdminError {
    let slot = slot.to_owned();
    match lost.is_released() {
        true => AdminError::SlotReleased { slot },
        false => AdminError::SlotLost { slot, problem: lost.problem },
    }
}

/// Refuses a second number of shards, which would publish rows twice and out of order.
pub(crate) async fn refuse_other_number(
    client: &Client,
    outbox: &Outbox,
) -> Result<(), AdminError> {
    let (sharding, wanted) = (read_sharding(client, outbox).await?, outbox.shard.count());
    match sharding.other_than(wanted) {
        Some(count) => Err(AdminError::OtherNumber { count, wanted }),
        None => Ok(()),
    }
}

async fn refuse_unusable_slot(client: &Client, options: &InitOptions) -> Result<(), AdminError> {
    refuse_other_slot(client, &options.outbox.slot).await?;
    if read_slot(client, &options.outbox.slot).await?.is_none() {
        return Ok(());
    }
    if read_publication(client, &options.outbox.publication).await?.is_none() {
        return Err(AdminError::SlotBeforePublication {
            slot: options.outbox.slot.clone(),
            publication: options.outbox.publication.clone(),
        });
    }
    Ok(())
}

/// An object that a plan sets up, and whether it exists.
struct Part {
    name: String,
    is_present: bool,
}

async fn parts(client: &Client, options: &InitOptions) -> Result<Vec<Part>, AdminError> {
    let mut parts = Vec::new();
    if !schema().is_public() {
        let row = client
            .query_typed_one(
                in_schema!("SELECT to_regnamespace('public') IS NOT NULL AS is_present"),
                &[],
            )
            .await
            .map_err(AdminError::sql(format!("look for schema {SCHEMA}")))?;
        parts.push(Part { name: format!("schema {SCHEMA}"), is_present: row.get("is_present") });
    }
    for table in migrations(&options.outbox.tables).into_iter().flat_map(|m| m.tables) {
        let is_present = table_exists(client, &table).await?;
        parts.push(Part { name: format!("table {table}"), is_present });
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

/// Returns SQL that creates the publication, or adds missing tables to it. Never drops a
/// publication, because a slot fails for ever at WAL from a time without its publication.
///
/// `publish_via_partition_root` has no effect on a table without partitions. For a partitioned
/// table it is needed, because rows would otherwise arrive under the partitions' names, which
/// nobody has configured.
///
/// `before_creation` runs before the publication is created. `row_filters` are those of tables without
/// shards, by the quoted name of the table.
fn publication_sql(
    options: &InitOptions,
    before_creation: &str,
    row_filters: &BTreeMap<String, String>,
) -> String {
    let Outbox { publication, tables, shard, .. } = &options.outbox;
    let literal = quote_literal(publication);
    let key = options.shard_key.as_ref().filter(|_| !shard.is_whole());
    let (filters, create, add) = match key {
        Some(key) => filtered(options, key),
        None => plain(options, row_filters),
    };
    let is_guarded = options.earlier_rows == EarlierRows::Refuse && !before_creation.is_empty();
    let additions: String = tables
        .iter()
        .zip(add)
        .map(|(table, statement)| {
            let rows_guard = match is_guarded {
                true => rows_guard::of_added(table, &options.outbox.slot),
                false => String::new(),
            };
            // spliced: names of the publication and its tables.
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
    {rows_guard}
    {statement};
  END IF;",
                relation = quote_literal(&table.to_string()),
            )
        })
        .collect();
    // spliced: names of the publication and its tables.
    format!(
        "DO $walrelay$
{filters}BEGIN
  {refusal}
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = {literal}) THEN
    {before_creation}
    {create};
    RETURN;
  END IF;
{additions}
END
$walrelay$;",
        refusal = if key.is_some() { refusal() } else { "" },
    )
}

/// Returns SQL that creates the publication of an outbox without shards, or adds missing tables,
/// for a slot that is created next. The tables have these row filters.
pub(crate) fn restoring_sql(outbox: &Outbox, row_filters: &BTreeMap<String, String>) -> String {
    publication_sql(&InitOptions::new(outbox.clone()), "", row_filters)
}

/// A null would make the whole statement null, and the server's error would not explain it.
fn refusal() -> &'static str {
    sql!("init.sql", "refuse_indivisible_tables")
}

/// The publication's options: inserts only.
const PUBLISHED: &str = "WITH (publish = 'insert', publish_via_partition_root = true)";

/// Returns the parts of a publication of whole tables: no declarations, the creation, and how to
/// add each table.
fn plain(
    options: &InitOptions,
    row_filters: &BTreeMap<String, String>,
) -> (String, String, Vec<String>) {
    let Outbox { publication, tables, .. } = &options.outbox;
    let name = quote_identifier(publication);
    // Without ONLY, the server would add the inheritance children of a table.
    let entry = |table: &QualifiedName| match row_filters.get(&table.to_string()) {
        Some(row_filter) => format!("ONLY {table} WHERE ({row_filter})"),
        None => format!("ONLY {table}"),
    };
    let entries: Vec<String> = tables.iter().map(entry).collect();
    let listed = entries.join(", ");
    let create = format!("CREATE PUBLICATION {name} FOR TABLE {listed}\n      {PUBLISHED}");
    let add = entries.iter().map(|one| format!("ALTER PUBLICATION {name} ADD TABLE {one}"));
    (String::new(), create, add.collect())
}

/// Returns the same parts for one shard. The filters depend on the types of columns, so the server
/// writes them. The tables exist by then.
fn filtered(options: &InitOptions, key: &ShardKey) -> (String, String, Vec<String>) {
    let Outbox { publication, tables, shard, .. } = &options.outbox;
    let name = quote_identifier(publication);
    let declared: Vec<String> =
        tables.iter().map(|table| format!("    {}", key.filter_sql(table, *shard))).collect();
    let filters = format!(
        "DECLARE
  tables text[] := ARRAY[{}];
  filters text[] := ARRAY[
{}];
",
        table_literals(tables),
        declared.join(",\n")
    );
    let entry = |(number, table): (usize, &QualifiedName)| {
        let table = quote_literal(&format!("ONLY {table} WHERE ("));
        format!("{table} || filters[{}] || ')'", number + 1)
    };
    let entries: Vec<String> = tables.iter().enumerate().map(entry).collect();
    let create = format!(
        "EXECUTE {} || {} || {}",
        quote_literal(&format!("CREATE PUBLICATION {name} FOR TABLE ")),
        entries.join(" || ', ' || "),
        quote_literal(&format!(" {PUBLISHED}"))
    );
    let alter = quote_literal(&format!("ALTER PUBLICATION {name} ADD TABLE "));
    let add = entries.iter().map(|it| format!("EXECUTE {alter} || {it}")).collect();
    (filters, create, add)
}

fn slot_sql(options: &InitOptions) -> String {
    let slot = quote_literal(&options.outbox.slot);
    let failover = match options.failover {
        Failover::No => "",
        Failover::Yes => ", true",
    };
    // The call is in the select list under a condition without columns. The server evaluates that
    // condition first, once, and does not call the function if the slot exists. The function waits for
    // running transactions, for any `lock_timeout`.
    // spliced: the name of the slot, in a script that takes no parameters.
    format!(
        "SELECT pg_create_logical_replication_slot({slot}, 'pgoutput', false, false{failover}) AS created
 WHERE set_config('lock_timeout', '0', true) = '0'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot});"
    )
}

/// Records the slot in `app_outbox_relay`, as the first session of a relay does. From then on a
/// missing slot is a lost slot, and a change of the publication is noticed. A role that may not read
/// the system identifier leaves the record to the relay.
fn record_sql(options: &InitOptions) -> String {
    let slot = quote_literal(&options.outbox.slot);
    let tables = table_literals(&options.outbox.tables);
    let published = published_tables(&options.outbox);
    let slot_with_oldest = SLOT_WITH_OLDEST.trim_end().replace("$1", &slot);
    // spliced: the names of the slot, its publication and its tables, in a script without parameters.
    format!(
        "DO $walrelay$
BEGIN
  IF has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
    INSERT INTO {SCHEMA}.app_outbox_relay
           (slot, system_identifier, timeline, generation, settled_lsn, settled_xid, failover, origin, publication)
    SELECT slot_name, (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
           ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int,
           1, confirmed_flush_lsn, oldest,
           failover,
           jsonb_build_object(
             'database', (SELECT oid::text FROM pg_database WHERE datname = current_database()),
             'tables', (SELECT jsonb_object_agg(name, to_regclass(name)::oid::text)
                          FROM unnest(ARRAY[{tables}]::text[]) AS name)),
           (SELECT jsonb_build_object(
                     'name', p.pubname, 'system', (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
                     'database', (SELECT oid::text FROM pg_database WHERE datname = current_database()),
                     'tables', {IDENTITIES}, 'filters', {ROW_FILTERS})
              FROM {published}
             GROUP BY p.oid, p.pubname)
      FROM ({slot_with_oldest}) AS slot
     WHERE confirmed_flush_lsn IS NOT NULL AND oldest IS NOT NULL
    ON CONFLICT (slot) DO NOTHING;
  END IF;
END
$walrelay$;"
    )
}

/// SQL for the tables of a publication by name, each with the identity that the relay's watch
/// compares.
const IDENTITIES: &str = "jsonb_object_agg(format('%I.%I', n.nspname, c.relname),
                                                format('%s %s %s %s %s', p.oid, p.xmin, c.oid, r.oid, r.xmin))";

/// SQL for the row filters of a publication by table, so that a recovery can restore them.
const ROW_FILTERS: &str = "coalesce(jsonb_object_agg(format('%I.%I', n.nspname, c.relname),
                                       pg_get_expr(r.prqual, r.prrelid)) FILTER (WHERE r.prqual IS NOT NULL), '{}')";

/// Returns the relations that [`IDENTITIES`] and [`ROW_FILTERS`] read.
fn published_tables(outbox: &Outbox) -> String {
    // spliced: the names of the publication and its tables, in a script without parameters.
    format!(
        "pg_catalog.pg_publication AS p
             CROSS JOIN unnest(ARRAY[{}]::text[]) AS name
              JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(name)
              JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
              LEFT JOIN pg_catalog.pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = c.oid
             WHERE p.pubname = {}",
        table_literals(&outbox.tables),
        quote_literal(&outbox.publication)
    )
}

/// Returns SQL that notes added tables in the slot's record. If one leaves the publication before a
/// relay has streamed, its rows are missed. A noted table stays as it was noted.
fn note_added_sql(outbox: &Outbox) -> String {
    // spliced: the name of the slot, in a script without parameters.
    format!(
        "UPDATE {SCHEMA}.app_outbox_relay AS relay
   SET publication = jsonb_set(relay.publication, '{{tables}}', added.tables || (relay.publication -> 'tables'))
  FROM (SELECT {IDENTITIES} AS tables
          FROM {}) AS added
 WHERE relay.slot = {} AND relay.publication -> 'tables' IS NOT NULL AND added.tables IS NOT NULL;",
        published_tables(outbox),
        quote_literal(&outbox.slot)
    )
}

/// Returns the title of a migration. A migration without tables creates the schema.
fn migration_title(migration: &Migration) -> String {
    match migration.tables.as_slice() {
        [] => format!("schema {SCHEMA}"),
        tables => format!("{}: {}", migration.file, names(tables)),
    }
}

fn names(tables: &[QualifiedName]) -> String {
    tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns a title as an SQL comment. A line break in a name must not end the comment.
fn comment(title: &str) -> String {
    title.replace(['\n', '\r'], " ")
}
