//! Findings about tables: the producers' tables and the relay's own.

use walrelay_core::{ColumnUse, Field};
use walrelay_errors::Code;
use walrelay_outbox_store::{DEFINITION_TABLE, RELAY_TABLES, REPLAY_TABLES, UNLOGGED};
use walrelay_pg_client::{QualifiedName, SCHEMA, quote_identifier, schema};

use super::facts::{Facts, FoundTable, RelationKind, SchemaAccess, TableFacts};
use super::finding::{FIX_OF_CODE, Findings};
use super::request::{ColumnRole, ExpectedColumn, PreflightRequest};
use super::similar_names::missing;

/// Types whose bytes or text are the payload exactly as the producer wrote it.
const PAYLOAD_TYPES: [&str; 6] = ["jsonb", "json", "bytea", "text", "character varying", "xml"];

pub(super) fn outbox_findings(findings: &mut Findings, request: &PreflightRequest, facts: &Facts) {
    for TableFacts { name, found } in &facts.outbox_tables {
        let subject = format!("table {name}");
        let Some(found) = found else {
            let message = missing_outbox(name, &facts.neighbours.tables);
            findings.error(Code::OutboxTableMissing, &subject, message, FIX_OF_CODE);
            continue;
        };
        let start = findings.len();
        match found.kind {
            RelationKind::Table | RelationKind::Partitioned => {}
            RelationKind::Unlogged => findings.error(
                Code::OutboxTableUnsuitable,
                &subject,
                "is unlogged: its rows are not in the WAL",
                format!("ALTER TABLE {name} SET LOGGED"),
            ),
            RelationKind::Other => findings.error(
                Code::OutboxTableUnsuitable,
                &subject,
                "is not a table, so it cannot be published",
                "name the table itself as the outbox",
            ),
        }
        if let Some(unstreamed) = &found.unstreamed {
            let (problem, fix) = (unstreamed.problem(), unstreamed.fix(&name.to_string()));
            findings.error(Code::OutboxTableUnsuitable, &subject, problem, fix);
        }
        for expected in &request.columns {
            column_findings(findings, &subject, found, expected);
            if expected.used_by != ColumnUse::Field(Field::OccurredAt) {
                continue;
            }
            let zone = facts.server.local_time_zone.as_deref();
            let named = found.columns.iter().find(|(column, _)| expected.names.contains(column));
            if let Some((problem, fix)) = named.and_then(|it| time_problem(name, it, zone)) {
                findings.warning(Code::OutboxTableUnsuitable, &subject, problem, fix);
            }
        }
        if findings.is_fine_since(start) {
            findings.ok("outbox-table", &subject, "has every column that is needed");
        }
    }
}

/// A warning about the column of the event's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeWarning {
    /// The table, quoted.
    pub table: String,
    /// The problem, to be read after the table.
    pub problem: String,
    pub fix: String,
}

/// Returns the problem with a column of the event's time and its fix, if there is one. `zone` is the
/// time zone of new sessions, or None if it is UTC.
pub(super) fn time_problem(
    table: &QualifiedName,
    (column, column_type): &(String, String),
    zone: Option<&str>,
) -> Option<(String, String)> {
    let quoted = quote_identifier(column);
    match (column_type.as_str(), zone) {
        ("timestamp with time zone", _) | ("timestamp without time zone" | "date", None) => None,
        ("timestamp without time zone" | "date", Some(zone)) => Some((
            format!(
                "column {column} is {column_type}, so its values are published as UTC, and sessions write them in {zone}"
            ),
            // spliced: the names, in a text for a person.
            format!(
                "ALTER TABLE {table} ALTER COLUMN {quoted} TYPE timestamptz, which reads existing values in the time zone of \
                 the session; or write times in UTC"
            ),
        )),
        _ => Some((
            format!(
                "column {column} is {column_type}, not a timestamp: no command can select rows by their time, and prune refuses"
            ),
            "name a column of the type timestamptz as the time of the event".to_owned(),
        )),
    }
}

/// Returns the message about a missing outbox. If the database has a consumer's tables and none of
/// the relay's, it is the wrong database.
fn missing_outbox(name: &QualifiedName, there: &[String]) -> String {
    let has = |table: &str| there.contains(&format!("{}.{table}", schema().name()));
    if has("app_inbox_consumer") && !has("app_outbox_relay") {
        return "does not exist: this looks like a consumer's database".to_owned();
    }
    let others: Vec<String> = there.iter().filter(|it| !is_ours(it)).cloned().collect();
    missing(&name.to_string(), &others)
}

/// Returns whether this is a walrelay table other than an outbox.
fn is_ours(table: &str) -> bool {
    let (in_schema, name) = table.split_once('.').unwrap_or(("", table));
    let is_kept = || {
        let is_inbox = name == "app_inbox" || name.starts_with("app_inbox_");
        is_inbox || RELAY_TABLES.iter().chain(&REPLAY_TABLES).any(|&ours| ours == name)
    };
    let is_of_functions = [
        "app_outbox_aggregate",
        "app_outbox_key",
        "app_outbox_snapshot",
        "app_outbox_partitioning",
    ]
    .contains(&name);
    is_of_functions || (in_schema == schema().name() && is_kept())
}

fn column_findings(
    findings: &mut Findings,
    subject: &str,
    found: &FoundTable,
    expected: &ExpectedColumn,
) {
    let ExpectedColumn { names, used_by, role } = expected;
    let column = found.columns.iter().find(|(column, _)| names.contains(column));
    match (column, role) {
        (None, ColumnRole::Payload | ColumnRole::Required) => {
            let there: Vec<&str> = found.columns.iter().map(|(known, _)| known.as_str()).collect();
            findings.error(
                Code::OutboxColumnMissing,
                subject,
                format!("has no column {}", names.join(" or ")),
                format!("name the right column for the {used_by}; there are {}", there.join(", ")),
            );
        }
        (Some((name, _)), ColumnRole::Payload | ColumnRole::Required)
            if found.unpublished.contains(name) =>
        {
            findings.error(
                Code::OutboxColumnMissing,
                subject,
                format!("column {name} is generated, and generated columns are not published"),
                format!("name another column for the {used_by}, or make it an ordinary column that the producer or a trigger fills"),
            );
        }
        (Some((name, column_type)), ColumnRole::Payload)
            if !PAYLOAD_TYPES.contains(&column_type.as_str()) =>
        {
            findings.warning(
                Code::PayloadTypeConverted,
                subject,
                format!("column {name} is {column_type}: its text form is published"),
                "bytea is published verbatim; jsonb, json and text as UTF-8",
            );
        }
        (Some(_), _) | (None, ColumnRole::Optional) => {}
    }
}

/// Reports that the role cannot use the schema, in place of findings about each table in it.
fn schema_finding(findings: &mut Findings, facts: &Facts, role: &str) {
    let subject = format!("schema {SCHEMA}");
    if facts.schema == SchemaAccess::Denied {
        let fix = format!("as its owner: GRANT USAGE ON SCHEMA {SCHEMA} TO {role}");
        let message = format!("role {role} lacks USAGE");
        return findings.error(Code::DispatchPermissionMissing, &subject, message, fix);
    }
    let elsewhere =
        facts.neighbours.tables.iter().find_map(|it| it.strip_suffix(".app_outbox_relay"));
    let message = match elsewhere {
        Some(other) => format!("does not exist, and schema {other} has the relay's tables"),
        None => "does not exist".to_owned(),
    };
    findings.error(Code::DispatchTableMissing, &subject, message, FIX_OF_CODE);
}

/// Returns whether the relay's own table of this name exists, and the role may read it.
pub(super) fn may_read(relay_tables: &[TableFacts], name: &str) -> bool {
    relay_tables
        .iter()
        .find(|table| table.name.table() == name)
        .and_then(|table| table.found.as_ref())
        .is_some_and(|found| !found.missing_rights.iter().any(|right| right == "SELECT"))
}

/// The privileges that the relay needs on its own table of this name.
fn rights_on(table: &QualifiedName) -> &'static str {
    match table.table() == DEFINITION_TABLE {
        true => "SELECT",
        false => "SELECT, INSERT, UPDATE, DELETE",
    }
}

pub(super) fn relay_table_findings(findings: &mut Findings, facts: &Facts) {
    let role = quote_identifier(&facts.role.name);
    let start = findings.len();
    if facts.schema != SchemaAccess::Usable {
        return schema_finding(findings, facts, &role);
    }
    for TableFacts { name, found } in &facts.relay_tables {
        let subject = format!("table {name}");
        let Some(found) = found else {
            let message = "does not exist";
            findings.error(Code::DispatchTableMissing, &subject, message, FIX_OF_CODE);
            continue;
        };
        if found.kind == RelationKind::Unlogged {
            findings.error(
                Code::DispatchTableUnlogged,
                &subject,
                UNLOGGED,
                format!("as its owner: ALTER TABLE {name} SET LOGGED"),
            );
        }
        if !found.missing_rights.is_empty() {
            let rights = found.missing_rights.join(", ");
            findings.error(
                Code::DispatchPermissionMissing,
                &subject,
                format!("role {role} lacks {rights}"),
                format!("as its owner: GRANT {} ON {name} TO {role}", rights_on(name)),
            );
        }
        if !found.hidden_from.is_empty() {
            let commands = found.hidden_from.join(", ");
            findings.error(
                Code::DispatchRowsHidden,
                &subject,
                format!("row level security hides its rows from role {role} for {commands}"),
                format!("as its owner: CREATE POLICY walrelay ON {name} TO {role} USING (true) WITH CHECK (true)"),
            );
        }
    }
    if findings.is_fine_since(start) {
        findings.ok("dispatch-tables", "dispatch tables", "exist and are accessible");
    }
}
