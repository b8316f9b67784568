//! The preflight check before a session: does the server match the configuration?

use crate::preflight::{
    CheckResult, ColumnRole, ExpectedColumn, Finding, PreflightRequest, preflight,
};
use walrelay_core::{ColumnAliases, ColumnUse, Field, RouterConfig};
use walrelay_outbox_store::{Definition, KeyPiece, ShardKey};
use walrelay_pg_client::SqlClient;

use walrelay_errors::{Action, Code, ErrorContext};
use walrelay_relay::error::RelayError;
use walrelay_relay::settings::RelaySettings;

/// Rejects a server that is not set up for this relay, and logs warnings about possible problems.
///
/// # Errors
///
/// All findings at once, each with the fix of its case.
pub async fn gate(sql: &SqlClient, relay: &RelaySettings) -> Result<(), RelayError> {
    let mut findings = preflight(sql, &preflight_request(relay)).await?;
    // The relay opens its replication connection first. A server may have other rules than ours.
    findings.retain(|it| it.error_code() != Some(Code::ReplicationPermissionMissing));
    let is_warning = |it: &&Finding| matches!(it.result, CheckResult::Warning(_));
    for finding in findings.iter().filter(is_warning) {
        tracing::debug!(subject = finding.subject, fix = finding.fix, "{}", finding.message);
    }
    let codes = findings.iter().filter_map(Finding::error_code);
    let Some(code) = Code::gravest(codes) else { return Ok(()) };
    match code.action(ErrorContext::FirstStart) {
        // A promotion fixes this finding and every finding that follows from it.
        Action::Reconnect if code == Code::ServerIsStandby => Err(RelayError::InRecovery),
        // A later step waits for conditions that end by themselves.
        Action::Reconnect | Action::StandBy | Action::Wait => Ok(()),
        Action::Stop(_) => {
            let errors = findings.iter().filter(|finding| finding.error_code().is_some());
            let summary = errors.map(text).collect::<Vec<_>>().join("; ");
            Err(RelayError::Setup { code, summary })
        }
    }
}

fn text(finding: &Finding) -> String {
    let Finding { subject, message, fix, .. } = finding;
    match fix.is_empty() {
        true => format!("{subject}: {message}"),
        false => format!("{subject}: {message} (fix: {fix})"),
    }
}

#[must_use]
pub fn preflight_request(relay: &RelaySettings) -> PreflightRequest {
    let columns = &relay.router.columns;
    let fields = Field::ALL.iter().filter_map(|field| {
        let role = match field {
            Field::Payload => ColumnRole::Payload,
            Field::Id
            | Field::AggregateType
            | Field::AggregateId
            | Field::EventType
            | Field::Version
            | Field::SchemaVersion
            | Field::Headers
            | Field::OccurredAt => ColumnRole::Required,
        };
        Some((columns.of(*field)?.clone(), ColumnUse::Field(*field), role))
    });
    let of_templates = [
        (&relay.router.topic, ColumnUse::TopicTemplate),
        (&relay.router.ordering_key, ColumnUse::OrderingKey),
    ];
    let templates = of_templates.into_iter().flat_map(|(template, used_by)| {
        let resolved = template.columns().filter_map(|name| columns.resolve(name));
        resolved.map(move |names| (names, used_by, ColumnRole::Required))
    });
    let attributes = columns.attributes.iter();
    let attributes = attributes
        .map(|(name, _)| (ColumnAliases::parse(name), ColumnUse::Attribute, ColumnRole::Required));
    let mut expected: Vec<ExpectedColumn> = Vec::new();
    for (names, used_by, role) in fields.chain(templates).chain(attributes) {
        let names: Vec<String> = names.iter().map(str::to_owned).collect();
        if expected.iter().all(|known| known.names != names) {
            expected.push(ExpectedColumn { names, used_by, role });
        }
    }
    let shard_key = shard_key(&relay.router);
    let definition = Definition::of(&relay.outbox, columns);
    PreflightRequest { outbox: relay.outbox.clone(), definition, shard_key, columns: expected }
}

/// Returns the columns that distribute rows among shards: the ordering key, or the event id if rows
/// have no ordering key. Returns `None` if all rows share one key.
#[must_use]
pub fn shard_key(router: &RouterConfig) -> Option<ShardKey> {
    let names = |names: ColumnAliases| names.iter().map(str::to_owned).collect();
    let parts = router.ordering_key.parts();
    if parts.is_empty() {
        return Some(ShardKey { pieces: vec![KeyPiece::Column(names(router.columns.id.clone()))] });
    }
    let piece = |part: Result<&str, &str>| match part {
        Ok(literal) => Some(KeyPiece::Literal(literal.to_owned())),
        Err(column) => router.columns.resolve(column).map(|it| KeyPiece::Column(names(it))),
    };
    let pieces: Vec<KeyPiece> = parts.into_iter().filter_map(piece).collect();
    let has_column = pieces.iter().any(|it| matches!(it, KeyPiece::Column(_)));
    has_column.then_some(ShardKey { pieces })
}
