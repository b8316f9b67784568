//! Reads facts from the server.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use walrelay_core::ColumnAliases;
use walrelay_outbox_replay::{
    AdminError, SettledRecord, SlotOperation, describe_unfinished, read_operation, read_settled,
    read_slot_holder,
};
use walrelay_outbox_store::{
    DEFINITION_TABLE, Outbox, RELAY_TABLES, Shard, UNSTREAMED_SQL, Unstreamed, read_definition,
};
use walrelay_pg_client::{IS_HIDDEN, QualifiedName, SqlText, own_table, sql};
use walrelay_pg_replication::{read_publication, read_slot, read_system_identifier};

use super::facts::{
    ExistingNames, Facts, FoundTable, LeftoverRecord, RelationKind, ReleaseFacts, RoleFacts,
    SchemaAccess, ServerFacts, ServerHost, ServerMode, TableFacts,
};
use super::limits::reported_settings;
use super::request::PreflightRequest;
use super::tables::{TimeWarning, may_read, time_problem};
use crate::sharding::{expected_filter, read_sharding};

/// Reads every fact that [`super::assess`] needs. Writes nothing.
///
/// # Errors
///
/// A missing privilege is a fact, not an error.
pub async fn gather(client: &Client, request: &PreflightRequest) -> Result<Facts, AdminError> {
    let (server, role) = server_and_role(client).await?;
    let slot = read_slot(client, &request.outbox.slot).await?;
    let holder = match slot.as_ref().and_then(|slot| slot.active_pid) {
        Some(pid) => Some(read_slot_holder(client, pid).await?),
        None => None,
    };
    let publication = read_publication(client, &request.outbox.publication).await?;
    let mut outbox_tables = Vec::with_capacity(request.outbox.tables.len());
    for name in &request.outbox.tables {
        outbox_tables.push(table(client, name.clone(), &request.outbox.publication).await?);
    }
    let mut relay_tables = Vec::with_capacity(RELAY_TABLES.len());
    for name in RELAY_TABLES {
        let mut table = table(client, own_table(name), &request.outbox.publication).await?;
        if let Some(found) = table.found.as_mut().filter(|_| name == DEFINITION_TABLE) {
            // The relay only reads it.
            found.missing_rights.retain(|right| right == "SELECT");
            found.hidden_from.retain(|command| command == "SELECT");
        }
        relay_tables.push(table);
    }
    let definition = match may_read(&relay_tables, DEFINITION_TABLE) {
        true => read_definition(client, request.outbox.base_slot()).await?,
        false => None,
    };
    let schema = schema_access(client).await?;
    let (relay_row, leftover_records) = match may_read(&relay_tables, "app_outbox_relay") {
        true => (
            read_settled(client, &request.outbox.slot).await?,
            leftover_records(client, &request.outbox).await?,
        ),
        false => (None, Vec::new()),
    };
    let release = release(client, &request.outbox.slot, relay_row.as_ref()).await?;
    let is_complete = slot.is_some()
        && publication.is_some()
        && outbox_tables.iter().all(|table| table.found.is_some());
    let neighbours = match is_complete {
        true => ExistingNames::default(),
        false => neighbours(client).await?,
    };
    Ok(Facts {
        server,
        role,
        slot,
        holder,
        publication,
        outbox_tables,
        schema,
        relay_tables,
        definition,
        relay_row,
        leftover_records,
        release,
        sharding: read_sharding(client, &request.outbox).await?,
        filters: filters(client, request).await?,
        neighbours,
    })
}

async fn filters(
    client: &Client,
    request: &PreflightRequest,
) -> Result<Vec<Option<String>>, AdminError> {
    let Outbox { tables, shard, .. } = &request.outbox;
    let Some(key) = request.shard_key.as_ref().filter(|_| !shard.is_whole()) else {
        return Ok(Vec::new());
    };
    let mut filters = Vec::with_capacity(tables.len());
    for table in tables {
        filters.push(expected_filter(client, key, table, *shard).await?);
    }
    Ok(filters)
}

async fn server_and_role(client: &Client) -> Result<(ServerFacts, RoleFacts), AdminError> {
    let row = client
        .query_typed_one(&SERVER, &[(&reported_settings(), Type::TEXT_ARRAY)])
        .await
        .map_err(AdminError::sql("read the server's settings"))?;
    let number = |column| row.get::<_, i64>(column);
    // `pg_settings` uses megabytes and milliseconds here. -1 and 0 mean off.
    let keep_megabytes = u64::try_from(number("slot_wal_keep_megabytes")).ok();
    let timeout_millis = u64::try_from(number("wal_sender_timeout_millis")).unwrap_or_default();
    let (limits, values): (Vec<String>, Vec<String>) = (row.get("limits"), row.get("limit_values"));
    let server = ServerFacts {
        version_num: u32::try_from(number("version_num")).unwrap_or_default(),
        database: row.get("database"),
        encoding: row.get("encoding"),
        mode: if row.get("in_recovery") { ServerMode::Standby } else { ServerMode::Primary },
        host: if row.get("is_supabase") { ServerHost::Supabase } else { ServerHost::Other },
        wal_level: row.get("wal_level"),
        replication_slots_max: number("replication_slots_max"),
        replication_slots: number("replication_slots"),
        wal_senders_max: number("wal_senders_max"),
        wal_senders: number("wal_senders"),
        slot_wal_keep_bytes: keep_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20)),
        wal_sender_timeout: (timeout_millis > 0).then(|| Duration::from_millis(timeout_millis)),
        local_time_zone: local_time_zone(client).await?,
        limits: limits.into_iter().zip(values).collect(),
        system_identifier: read_system_identifier(client).await?,
    };
    let password_left: Option<f64> = row.get("password_left");
    let role = RoleFacts {
        name: row.get("role"),
        may_replicate: row.get("may_replicate"),
        connections_max: row.get("connections_max"),
        password_left: password_left.and_then(|left| Duration::try_from_secs_f64(left).ok()),
    };
    Ok((server, role))
}

/// Warns about the columns of the event's time, for `init`. See [`time_problem`].
pub(crate) async fn time_warnings(
    client: &Client,
    outbox: &Outbox,
    names: Option<&ColumnAliases>,
) -> Result<Vec<TimeWarning>, AdminError> {
    let zone = local_time_zone(client).await?;
    let mut warnings = Vec::new();
    for name in &outbox.tables {
        let TableFacts { name, found } = table(client, name.clone(), &outbox.publication).await?;
        let Some(found) = found else { continue };
        let mut named = names.into_iter().flat_map(ColumnAliases::iter);
        let column = named.find_map(|it| found.columns.iter().find(|(column, _)| column == it));
        let problem = column.and_then(|column| time_problem(&name, column, zone.as_deref()));
        warnings.extend(problem.map(|(problem, fix)| TimeWarning {
            table: name.to_string(),
            problem,
            fix,
        }));
    }
    Ok(warnings)
}

/// Returns the time zone of new sessions, unless it is UTC.
async fn local_time_zone(client: &Client) -> Result<Option<String>, AdminError> {
    let row = client.query_typed_opt(sql!("gather.sql", "local_time_zone"), &[]).await;
    let row = row.map_err(AdminError::sql("read the time zone of the server"))?;
    Ok(row.map(|row| row.get("time_zone")))
}

async fn table(
    client: &Client,
    name: QualifiedName,
    publication: &str,
) -> Result<TableFacts, AdminError> {
    let parameters = [
        (&name.schema() as _, Type::TEXT),
        (&name.table() as _, Type::TEXT),
        (&publication as _, Type::TEXT),
    ];
    let row = client
        .query_typed_opt(&table_question(), &parameters)
        .await
        .map_err(AdminError::sql(format!("read table {name} from the catalog")))?;
    Ok(TableFacts { found: row.as_ref().map(found_table), name })
}

fn found_table(row: &Row) -> FoundTable {
    let kind = match (row.get("relkind"), row.get("relpersistence")) {
        ("r", "u") => RelationKind::Unlogged,
        ("r", _) => RelationKind::Table,
        ("p", _) => RelationKind::Partitioned,
        _ => RelationKind::Other,
    };
    let names: Vec<String> = row.get("column_names");
    let types: Vec<String> = row.get("column_types");
    FoundTable {
        kind,
        columns: names.into_iter().zip(types).collect(),
        unpublished: row.get("unpublished_columns"),
        unstreamed: Unstreamed::of_row(row),
        missing_rights: row.get("missing_rights"),
        hidden_from: row.get("hidden_from"),
    }
}

async fn schema_access(client: &Client) -> Result<SchemaAccess, AdminError> {
    let row = client
        .query_typed_one(sql!("gather.sql", "schema_access"), &[])
        .await
        .map_err(AdminError::sql("read the privileges on the schema"))?;
    Ok(match row.get("is_usable") {
        Some(true) => SchemaAccess::Usable,
        Some(false) => SchemaAccess::Denied,
        None => SchemaAccess::Missing,
    })
}

/// Reads the records without a slot. Records of the outbox's own shards have findings of their own.
async fn leftover_records(
    client: &Client,
    outbox: &Outbox,
) -> Result<Vec<LeftoverRecord>, AdminError> {
    let rows = client
        .query_typed(sql!("gather.sql", "leftover_records"), &[(&outbox.slot, Type::TEXT)])
        .await
        .map_err(AdminError::sql("read the records of other slots"))?;
    let records = rows.iter().map(|row| LeftoverRecord {
        slot: row.get("slot"),
        age: Duration::try_from_secs_f64(row.get("age")).unwrap_or_default(),
    });
    let base = outbox.base_slot();
    Ok(records.filter(|record| Shard::of_name(&record.slot, base).is_none()).collect())
}

async fn release(
    client: &Client,
    slot: &str,
    row: Option<&SettledRecord>,
) -> Result<Option<ReleaseFacts>, AdminError> {
    if row.and_then(|row| row.operation.as_deref()) != Some("release") {
        return Ok(None);
    }
    let Some(begun) = read_operation(client, slot).await? else { return Ok(None) };
    let what = describe_unfinished(client, slot, &begun).await?;
    match begun {
        SlotOperation::Release(release) => Ok(Some(ReleaseFacts { release, what })),
        SlotOperation::Reset(_) | SlotOperation::Recovery(_) | SlotOperation::Resharding(_) => {
            Ok(None)
        }
    }
}

/// Reads existing names as suggestions, only if something is missing.
async fn neighbours(client: &Client) -> Result<ExistingNames, AdminError> {
    let row = client
        .query_typed_one(&NEIGHBOURS, &[])
        .await
        .map_err(AdminError::sql("look for names similar to the missing ones"))?;
    Ok(ExistingNames {
        publications: row.get("publications"),
        slots: row.get("slots"),
        tables: row.get("tables"),
    })
}

/// Limited to a few thousand names, because nobody chooses among more.
static NEIGHBOURS: SqlText = SqlText::new(|| sql!("gather.sql", "neighbours"));

static SERVER: SqlText = SqlText::new(|| sql!("gather.sql", "server"));

/// Returns the query for a table. Generated columns are not published. Since Postgres 18 a
/// publication may publish stored ones, as its column `pubgencols` shows, which older servers lack.
/// A privilege on the table needs USAGE on its schema also.
fn table_question() -> String {
    // spliced: constants.
    format!(
        "WITH rights(ordinal, name, command) AS (
  VALUES (1, 'SELECT', 'r'::\"char\"), (2, 'INSERT', 'a'), (3, 'UPDATE', 'w'), (4, 'DELETE', 'd')
)
SELECT c.relpersistence::text AS relpersistence,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum) AS column_names,
       ARRAY(SELECT format_type(base.oid, NULL) FROM pg_catalog.pg_attribute a
              CROSS JOIN LATERAL (
                WITH RECURSIVE types AS (
                  SELECT t.oid, t.typtype, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
                  UNION ALL
                  SELECT t.oid, t.typtype, t.typbasetype
                    FROM types JOIN pg_catalog.pg_type t ON t.oid = types.typbasetype WHERE types.typtype = 'd')
                SELECT oid FROM types WHERE typtype <> 'd') AS base
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum) AS column_types,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
                AND NOT (a.attgenerated = 's' AND EXISTS (
                  SELECT FROM pg_catalog.pg_publication p
                    LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
                   WHERE p.pubname = $3 AND (a.attnum = ANY (r.prattrs::int2[])
                      OR r.prattrs IS NULL AND to_jsonb(p)->>'pubgencols' = 's')))
              ORDER BY a.attnum) AS unpublished_columns,
       {UNSTREAMED_SQL},
       ARRAY(SELECT p.name FROM rights p
              WHERE NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, p.name))
              ORDER BY p.ordinal) AS missing_rights,
       ARRAY(SELECT p.name FROM rights p
              WHERE {IS_HIDDEN}
              ORDER BY p.ordinal) AS hidden_from
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2"
    )
}
