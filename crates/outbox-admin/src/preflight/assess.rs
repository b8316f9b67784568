//! Converts facts into findings about the server, the slot and the publication.

use std::time::Duration;

use walrelay_errors::Code;
use walrelay_outbox_replay::{
    ReleaseStage, SQL_ASCII_FIX, SQL_ASCII_RISK, UNCHECKED_ENCODING, loss,
};
use walrelay_outbox_store::DEFINITION_TABLE;
use walrelay_pg_replication::{
    Operation, PublicationScope, PublicationState, SlotState, WalStatus,
};

use super::facts::{
    Facts, LeftoverRecord, RelationKind, ReleaseFacts, SchemaAccess, ServerFacts, ServerHost,
    ServerMode, TableFacts,
};
use super::finding::{FIX_OF_CODE, Finding, Findings};
use super::limits::limit_findings;
use super::request::{ColumnRole, PreflightRequest};
use super::shards::{is_of_another_number, shard_findings};
use super::similar_names::missing;
use super::tables::{may_read, outbox_findings, relay_table_findings};

/// The oldest supported major version, the first with row filters that also skips empty
/// transactions.
const SERVER_VERSION_MIN: u32 = 15;

/// With less retained WAL than this, a busy project loses an idle slot within an hour. Supabase's
/// default is this value.
const SLOT_WAL_KEEP_BYTES_MIN: u64 = 4 << 30;

/// With less WAL than this until a slot or an anchor is lost, an operator has to act now. The same
/// holds for less than a quarter of the slot's limit. The alert has the same threshold.
pub const HEADROOM_BYTES_MIN: i64 = 1 << 30;

/// Returns all findings, in the order of setup.
#[must_use]
pub fn assess(request: &PreflightRequest, facts: &Facts) -> Vec<Finding> {
    let mut findings = Findings::default();
    server_findings(&mut findings, facts);
    if is_not_set_up(facts) {
        set_up_finding(&mut findings, request, facts);
        capacity_findings(&mut findings, facts);
        let has_table = facts.outbox_tables.iter().any(|table| table.found.is_some());
        // Otherwise a table of a similar name may be the outbox, or this is a consumer's database.
        if has_table || !facts.neighbours.tables.is_empty() {
            outbox_findings(&mut findings, request, facts);
        }
        return findings.into_list();
    }
    let start = findings.len();
    definition_findings(&mut findings, request, facts);
    let is_ours = findings.is_fine_since(start);
    capacity_findings(&mut findings, facts);
    // Otherwise, tables and publication may be another outbox's, and a fix would change them.
    if is_ours {
        outbox_findings(&mut findings, request, facts);
        shard_findings(&mut findings, request, facts);
    }
    // If the outbox has another number of shards, the objects of this number are missing on
    // purpose.
    if !is_of_another_number(request, facts) {
        if is_ours {
            publication_findings(&mut findings, request, facts);
        }
        slot_findings(&mut findings, request, facts);
    }
    relay_table_findings(&mut findings, facts);
    identity_findings(&mut findings, facts);
    leftover_findings(&mut findings, facts);
    findings.into_list()
}

/// Returns whether nothing exists that `walrelay init` makes. Then each object that is missing has
/// one cause. An outbox table may exist, because an application may have made it.
fn is_not_set_up(facts: &Facts) -> bool {
    let role_can_see = facts.schema != SchemaAccess::Denied;
    let tables = facts.relay_tables.iter().any(|table| table.found.is_some());
    role_can_see && !tables && facts.publication.is_none() && facts.slot.is_none()
}

fn set_up_finding(findings: &mut Findings, request: &PreflightRequest, facts: &Facts) {
    let definition = &request.definition;
    findings.error(
        Code::DispatchTableMissing,
        &format!("database {}", facts.server.database),
        format!(
            "is not set up: the tables of the relay, publication {} and slot {} do not exist",
            definition.publication, definition.slot
        ),
        FIX_OF_CODE,
    );
}

fn server_findings(findings: &mut Findings, facts: &Facts) {
    let server = &facts.server;
    let major = server.version_num / 10_000;
    if major < SERVER_VERSION_MIN {
        findings.error(
            Code::ServerTooOld,
            "server",
            format!("Postgres {major} is not supported"),
            format!("upgrade to Postgres {SERVER_VERSION_MIN} or later"),
        );
    } else {
        findings.ok("server-version", "server", format!("Postgres {major}"));
    }
    if server.host == ServerHost::Supabase {
        findings.ok(
            "server-host",
            "server",
            "this is Supabase: settings are changed with its CLI, and an upgrade or a restore drops the slot",
        );
    }
    if server.mode == ServerMode::Standby {
        findings.error(
            Code::ServerIsStandby,
            "server",
            "it is a standby: neither slot nor dispatch state can be written here",
            "connect to the primary",
        );
    }
    if server.wal_level == "logical" {
        findings.ok("wal-level", "setting wal_level", "is logical");
    } else {
        findings.error(
            Code::WalLevelNotLogical,
            "setting wal_level",
            format!("is {}, but logical decoding needs `logical`", server.wal_level),
            change_setting(server, "wal_level", "logical", Restart::Needed),
        );
    }
    encoding_findings(findings, server);
    let subject = format!("role {}", facts.role.name);
    if facts.role.may_replicate {
        findings.ok("replication-permission", &subject, "may replicate");
    } else {
        findings.error(
            Code::ReplicationPermissionMissing,
            &subject,
            "has no REPLICATION attribute",
            replication_fix(server, &facts.role.name),
        );
    }
}

/// Reports an outbox that is not the one on record. Without the table there is no record yet, which
/// is a finding of its own.
fn definition_findings(findings: &mut Findings, request: &PreflightRequest, facts: &Facts) {
    let subject = format!("slot {}", request.definition.slot);
    if !may_read(&facts.relay_tables, DEFINITION_TABLE) {
        return;
    }
    let Some(recorded) = &facts.definition else {
        let message =
            "has no outbox on record in this schema: it may be the slot of another outbox";
        return findings.error(Code::OutboxUndefined, &subject, message, FIX_OF_CODE);
    };
    match request.definition.difference_from(recorded) {
        Some(what) => findings.error(
            Code::OutboxDiffers,
            &subject,
            format!("differs from its record: {what}"),
            FIX_OF_CODE,
        ),
        None => findings.ok("definition", &subject, "is the slot of the outbox on record"),
    }
}

fn encoding_findings(findings: &mut Findings, server: &ServerFacts) {
    if server.encoding == UNCHECKED_ENCODING {
        findings.warning(
            Code::DatabaseEncodingUnchecked,
            &format!("database {}", server.database),
            SQL_ASCII_RISK,
            SQL_ASCII_FIX,
        );
    }
}

fn replication_fix(server: &ServerFacts, role: &str) -> String {
    match server.host {
        ServerHost::Supabase if server.version_num < 170_000 => {
            "connect as the role postgres, which has it: on Supabase before Postgres 17 no other role can get it"
                .to_owned()
        }
        ServerHost::Supabase => {
            "connect as the role postgres, or create a role WITH LOGIN REPLICATION".to_owned()
        }
        ServerHost::Other => {
            let role = walrelay_pg_client::quote_identifier(role);
            format!("as a superuser: ALTER ROLE {role} REPLICATION")
        }
    }
}

enum Restart {
    Needed,
    NotNeeded,
}

/// Returns how an operator of this server changes a setting.
fn change_setting(server: &ServerFacts, name: &str, value: &str, restart: Restart) -> String {
    match (server.host, restart) {
        (ServerHost::Supabase, _) => format!(
            "supabase --experimental --project-ref <ref> postgres-config update --config {name}={value}"
        ),
        (ServerHost::Other, Restart::Needed) => {
            format!("ALTER SYSTEM SET {name} = '{value}', then restart the server")
        }
        (ServerHost::Other, Restart::NotNeeded) => {
            format!("ALTER SYSTEM SET {name} = '{value}', then SELECT pg_reload_conf()")
        }
    }
}

fn capacity_findings(findings: &mut Findings, facts: &Facts) {
    slot_count_findings(findings, facts);
    sender_count_findings(findings, &facts.server);
    retention_findings(findings, &facts.server);
    timeout_findings(findings, &facts.server);
    limit_findings(findings, facts);
}

fn slot_count_findings(findings: &mut Findings, facts: &Facts) {
    let (used, max) = (facts.server.replication_slots, facts.server.replication_slots_max);
    let subject = "setting max_replication_slots";
    if facts.slot.is_some() || used < max {
        findings.ok("replication-slots", subject, format!("{used} of {max} in use"));
        return;
    }
    let more = (max + 5).to_string();
    let fix = change_setting(&facts.server, "max_replication_slots", &more, Restart::Needed);
    let message = format!("all {max} slots are in use, and ours is not among them");
    findings.error(Code::SlotsExhausted, subject, message, fix);
}

fn sender_count_findings(findings: &mut Findings, server: &ServerFacts) {
    let (used, max) = (server.wal_senders, server.wal_senders_max);
    let subject = "setting max_wal_senders";
    if used < max {
        findings.ok("wal-senders", subject, format!("{used} of {max} in use"));
        return;
    }
    let fix = change_setting(server, "max_wal_senders", &(max + 5).to_string(), Restart::Needed);
    let message = format!("all {max} replication connections are in use");
    findings.warning(Code::ConnectionsExhausted, subject, message, fix);
}

fn retention_findings(findings: &mut Findings, server: &ServerFacts) {
    let subject = "setting max_slot_wal_keep_size";
    match server.slot_wal_keep_bytes {
        Some(bytes) if bytes < SLOT_WAL_KEEP_BYTES_MIN => findings.warning(
            Code::WalRetentionUnsuitable,
            subject,
            format!("the slot is lost once it is {} behind", megabytes(bytes)),
            change_setting(server, "max_slot_wal_keep_size", "16GB", Restart::NotNeeded),
        ),
        Some(bytes) => findings.ok("wal-retention", subject, megabytes(bytes)),
        None => findings.warning(
            Code::WalRetentionUnsuitable,
            subject,
            "is unlimited: a slot that nobody reads retains WAL until the disk is full and the server stops",
            change_setting(server, "max_slot_wal_keep_size", "16GB", Restart::NotNeeded),
        ),
    }
}

fn timeout_findings(findings: &mut Findings, server: &ServerFacts) {
    let subject = "setting wal_sender_timeout";
    match server.wal_sender_timeout {
        Some(timeout) => findings.ok("wal-sender-timeout", subject, format!("{timeout:?}")),
        None => findings.warning(
            Code::WalSenderTimeoutOff,
            subject,
            "is off: a relay that vanished would hold the slot for ever",
            change_setting(server, "wal_sender_timeout", "60s", Restart::NotNeeded),
        ),
    }
}

fn publication_findings(findings: &mut Findings, request: &PreflightRequest, facts: &Facts) {
    let subject = format!("publication {}", request.outbox.publication);
    let Some(publication) = &facts.publication else {
        let is_gone = facts.relay_row.as_ref().is_some_and(|row| row.publication_gap.is_some());
        let fix = if is_gone {
            "recover the slot, which creates the publication again; or name the publication of the slot"
        } else if facts.slot.is_some() {
            "name the publication of the slot; a publication that is created now would be younger than the slot, which \
             then fails on every change in between"
        } else {
            FIX_OF_CODE
        };
        let message = missing(&request.outbox.publication, &facts.neighbours.publications);
        findings.error(Code::PublicationMissing, &subject, message, fix);
        return;
    };
    let start = findings.len();
    operations_findings(findings, &subject, publication);
    let name = walrelay_pg_client::quote_identifier(&publication.name);
    match &publication.scope {
        PublicationScope::AllTables => findings.error(
            Code::PublicationUnsuitable,
            &subject,
            "is FOR ALL TABLES: rows of tables that are no outbox would reach the relay, which refuses them",
            "create another publication FOR TABLE, and a slot of its own",
        ),
        PublicationScope::Listed { schemas } if !schemas.is_empty() => findings.error(
            Code::PublicationUnsuitable,
            &subject,
            format!("covers all tables of {}: rows of tables that are no outbox would reach the relay, which refuses them", schemas.join(", ")),
            format!("ALTER PUBLICATION {name} DROP TABLES IN SCHEMA …, ADD TABLE …"),
        ),
        PublicationScope::Listed { .. } => {}
    }
    for table in facts.outbox_tables.iter().filter(|table| table.found.is_some()) {
        table_findings(findings, &subject, publication, request, table);
    }
    let found = facts.outbox_tables.iter().filter_map(|table| table.found.as_ref());
    let unstreamed = found.filter_map(|found| found.unstreamed.as_ref());
    let unstreamed: Vec<&String> = unstreamed.flat_map(|it| &it.names).collect();
    for published in &publication.tables {
        // Without this entry, the rows of a child would still be unpublished. The finding about its
        // parent has the fix.
        let is_unstreamed = unstreamed.contains(&&published.name.to_string());
        if !request.outbox.tables.contains(&published.name) && !is_unstreamed {
            findings.error(
                Code::PublicationUnsuitable,
                &subject,
                format!("also publishes {}, which is not among the outbox tables", published.name),
                format!(
                    "ALTER PUBLICATION {name} DROP TABLE {0}, or configure {0} as an outbox table",
                    published.name
                ),
            );
        }
    }
    if findings.is_fine_since(start) {
        findings.ok("publication", &subject, "publishes the inserts of every outbox table");
    }
}

fn operations_findings(findings: &mut Findings, subject: &str, publication: &PublicationState) {
    let name = walrelay_pg_client::quote_identifier(&publication.name);
    let fix = || format!("ALTER PUBLICATION {name} SET (publish = 'insert')");
    if !publication.publishes.contains(&Operation::Insert) {
        findings.error(Code::PublicationUnsuitable, subject, "does not publish inserts", fix());
    }
    let surplus: Vec<&str> = publication
        .publishes
        .iter()
        .filter_map(|operation| match operation {
            Operation::Insert => None,
            Operation::Update => Some("update"),
            Operation::Delete => Some("delete"),
            Operation::Truncate => Some("truncate"),
        })
        .collect();
    if !surplus.is_empty() {
        let message = format!(
            "publishes {} in addition to inserts: such changes carry no event, and the relay ignores them",
            surplus.join(", ")
        );
        findings.warning(Code::PublicationUnsuitable, subject, message, fix());
    }
}

fn table_findings(
    findings: &mut Findings,
    subject: &str,
    publication: &PublicationState,
    request: &PreflightRequest,
    table: &TableFacts,
) {
    let name = walrelay_pg_client::quote_identifier(&publication.name);
    if !publication.covers(&table.name) {
        // The filter of a shard depends on the types of the table's columns.
        let fix = match request.outbox.shard.is_whole() {
            true => format!("ALTER PUBLICATION {name} ADD TABLE ONLY {}", table.name),
            false => FIX_OF_CODE.to_owned(),
        };
        let message = format!("does not publish {}", table.name);
        findings.error(Code::PublicationUnsuitable, subject, message, fix);
    }
    let is_partitioned =
        table.found.as_ref().is_some_and(|found| found.kind == RelationKind::Partitioned);
    if is_partitioned && !publication.via_root {
        findings.error(
            Code::PublicationUnsuitable,
            subject,
            format!("rows of {} would come under the names of its partitions", table.name),
            format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"),
        );
    }
    let Some(published) = publication.listed(&table.name) else { return };
    if let Some(filter) = &published.row_filter
        && request.outbox.shard.is_whole()
    {
        let message = format!("publishes only rows of {} for which {filter}", table.name);
        findings.ok("publication-row-filter", subject, message);
    }
    let Some(columns) = &published.columns else { return };
    for expected in
        request.columns.iter().filter(|c| !c.names.iter().any(|known| columns.contains(known)))
    {
        let message =
            format!("leaves out column {} of {}", expected.names.join(" or "), table.name);
        let fix = "publish all columns: ALTER PUBLICATION … SET TABLE, without a column list";
        match expected.role {
            ColumnRole::Payload | ColumnRole::Required => {
                findings.error(Code::PublicationUnsuitable, subject, message, fix);
            }
            ColumnRole::Optional => {
                findings.warning(Code::PublicationUnsuitable, subject, message, fix);
            }
        }
    }
}

fn slot_findings(findings: &mut Findings, request: &PreflightRequest, facts: &Facts) {
    let subject = format!("slot {}", request.outbox.slot);
    if let Some(release) = facts.release.as_ref().filter(|it| !has_happened(it, &facts.server)) {
        return release_finding(findings, &subject, release);
    }
    // A record of another server is a finding of its own. Its positions are not valid for this
    // server's slot.
    let lost = loss(facts.slot.as_ref(), facts.relay_row.as_ref(), None)
        .filter(|_| !may_be_carried_over(facts));
    if let Some(lost) = &lost {
        findings.error(Code::SlotLost, &subject, &lost.problem, FIX_OF_CODE);
    }
    let begun = facts.relay_row.as_ref().and_then(|row| row.operation.as_ref());
    if let Some(kind) = begun.filter(|kind| *kind != "release") {
        findings.warning(
            Code::OperationUnfinished,
            &subject,
            format!("a {kind} of it was begun and is not finished"),
            FIX_OF_CODE,
        );
    }
    let Some(slot) = &facts.slot else {
        if lost.is_none() && begun.is_none() {
            let message = missing(&request.outbox.slot, &facts.neighbours.slots);
            findings.error(Code::SlotMissing, &subject, message, FIX_OF_CODE);
        }
        return;
    };
    if let Some(problem) = slot.mismatch(&facts.server.database) {
        findings.error(Code::SlotUnsuitable, &subject, problem, FIX_OF_CODE);
        return;
    }
    if lost.is_some() {
        return;
    }
    if let Some(holder) = facts.holder.as_ref().filter(|holder| !holder.is_walrelay()) {
        findings.warning(
            Code::SlotHeld,
            &subject,
            format!("is held by {holder}: a relay started now waits for it"),
            "nothing if that is the running relay; otherwise end that session",
        );
    }
    safe_wal_findings(findings, &subject, slot, &facts.server);
    let lag = slot.lag_bytes().map_or_else(|| "unknown".to_owned(), megabytes);
    let held = facts.holder.as_ref().map(|holder| format!("; held by {holder}"));
    let held = held.unwrap_or_default();
    findings.ok("slot", &subject, format!("is usable; {lag} not confirmed{held}"));
}

/// Reports a release. Relays wait, and the slot is not lost.
fn release_finding(findings: &mut Findings, subject: &str, begun: &ReleaseFacts) {
    let code = match begun.release.stage {
        ReleaseStage::Draining => Code::ReleaseInProgress,
        ReleaseStage::Released => Code::SlotReleased,
    };
    findings.error(code, subject, format!("not finished: {}", begun.what), FIX_OF_CODE);
}

/// Returns whether the server has been upgraded or replaced.
fn has_happened(ReleaseFacts { release, .. }: &ReleaseFacts, server: &ServerFacts) -> bool {
    let here = server.system_identifier.as_ref();
    here.is_some_and(|here| *here != release.system_identifier)
        || i32::try_from(server.version_num).is_ok_and(|version| version != release.version)
}

fn safe_wal_findings(
    findings: &mut Findings,
    subject: &str,
    slot: &SlotState,
    server: &ServerFacts,
) {
    let fix = || change_setting(server, "max_slot_wal_keep_size", "16GB", Restart::NotNeeded);
    let room = slot.safe_wal_size;
    if slot.wal_status == Some(WalStatus::Unreserved) || room.is_some_and(|bytes| bytes <= 0) {
        let message = "is lost at the next checkpoint unless it is confirmed first";
        findings.warning(
            Code::SlotAtRisk,
            subject,
            message,
            format!("start the relay now; {}", fix()),
        );
    } else if let Some(bytes) = room.filter(|_| slot.has_less_room_than(HEADROOM_BYTES_MIN)) {
        let left = megabytes(bytes.unsigned_abs());
        findings.warning(
            Code::SlotAtRisk,
            subject,
            format!("is lost after {left} more WAL"),
            fix(),
        );
    }
}

/// Reports a record of another server. Its positions are not valid here, and would make the relay
/// skip rows.
fn identity_findings(findings: &mut Findings, facts: &Facts) {
    let (Some(row), Some(here)) = (&facts.relay_row, &facts.server.system_identifier) else {
        return;
    };
    let there = &row.system_identifier;
    if here == there {
        findings.ok("system-identifier", "system identifier", format!("{here}, the one on record"));
    } else {
        let cause = match may_be_carried_over(facts) {
            true => "pg_upgrade may have carried the slot over",
            false => "this is an upgrade, a copy or a restore of it",
        };
        findings.error(
            Code::PositionsOfAnotherServer,
            "server",
            format!("is {here}, but the recorded positions are of {there}: {cause}"),
            FIX_OF_CODE,
        );
    }
}

/// Reports records without a slot. Each keeps old rows from being deleted.
fn leftover_findings(findings: &mut Findings, facts: &Facts) {
    for LeftoverRecord { slot, age } in &facts.leftover_records {
        let message = format!(
            "does not exist, but its record of {} ago does: the record keeps old rows in the outbox",
            days_or_hours(*age)
        );
        let subject = format!("slot {slot}");
        findings.warning(Code::SlotRecordLeftOver, &subject, message, FIX_OF_CODE);
    }
}

fn days_or_hours(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => "less than an hour".to_owned(),
        hours @ 1..48 => format!("{hours} h"),
        hours => format!("{} days", hours / 24),
    }
}

/// Returns whether pg_upgrade may have kept the slot from the recorded server.
fn may_be_carried_over(facts: &Facts) -> bool {
    let (Some(row), Some(here)) = (&facts.relay_row, &facts.server.system_identifier) else {
        return false;
    };
    let is_usable = facts.slot.as_ref().is_some_and(|slot| !slot.is_lost());
    is_usable && *here != row.system_identifier
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes >> 20)
}
