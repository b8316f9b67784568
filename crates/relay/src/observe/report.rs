//! The report of `/status`: one slot, its lag, its headroom and the parked rows.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use walrelay_outbox_store::{AnchorStatus, SlotFigures, StoredCondition};
use walrelay_pg_replication::{SlotState, WalStatus, Writer};

/// Returns the report for `/status`, or `None` if the slot does not exist.
#[must_use]
pub fn report_of(survey: &SlotFigures) -> Option<Map<String, Value>> {
    let SlotFigures { slot, oldest_writer, relay_row, .. } = survey;
    let mut report = slot_report(slot.as_ref()?);
    report.insert("pinned_by".into(), json!(oldest_writer.as_ref().map(writer)));
    let row = relay_row.as_ref();
    if slot.as_ref().zip(row).is_some_and(|(slot, row)| row.describes_another_slot(slot)) {
        report.insert("lost".into(), json!(true));
    }
    insert_common_fields(&mut report, survey);
    Some(report)
}

/// Returns the report while an operation replaces the slot.
#[must_use]
pub fn report_without_slot(slot: &str, survey: &SlotFigures) -> Map<String, Value> {
    let fields = [("slot", json!(slot)), ("active", json!(false)), ("lost", json!(false))];
    let named = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut report: Map<String, Value> = named.collect();
    insert_common_fields(&mut report, survey);
    report
}

/// Adds the record of the slot and the counts of dispatch state.
fn insert_common_fields(report: &mut Map<String, Value>, survey: &SlotFigures) {
    let SlotFigures { counts, lag_seconds, relay_row, anchors, .. } = survey;
    let row = relay_row.as_ref();
    let condition = row.and_then(|row| row.condition.as_ref());
    report.insert("noted".into(), json!(condition.map(noted)));
    report.insert("anchors".into(), anchors.iter().map(anchor).collect());
    report.insert("operation".into(), json!(row.and_then(|row| row.operation.as_ref())));
    report.insert("lag_seconds".into(), json!(lag_seconds));
    report.insert("settled_lsn".into(), json!(row.map(|row| row.settled_lsn.to_string())));
    report.insert("settled_at".into(), json!(row.map(|row| rfc3339(row.updated_at))));
    report.insert("settled_seconds".into(), json!(row.map(|row| row.age.as_secs_f64())));
    report.insert(
        "dispatch".into(),
        json!({
            "retrying": counts.retrying,
            "dead": counts.dead,
            "published": counts.published,
            "discarded": counts.discarded,
        }),
    );
    let waiting = &counts.waiting;
    let moment = |at: Option<SystemTime>| at.map(rfc3339);
    let spilled = json!({
        "rows": waiting.spilled,
        "since": moment(waiting.spilled_since),
        "refused_at": moment(waiting.refused_at),
        "unanswered_at": moment(waiting.unanswered_at),
    });
    let not_due = json!({ "rows": waiting.not_due, "until": moment(waiting.not_due_until) });
    let refused = waiting
        .refused
        .as_ref()
        .map(|refused| json!({ "topic": refused.topic, "code": refused.code, "at": refused.at }));
    report.insert("refused".into(), json!(refused));
    report.insert("spilled".into(), spilled);
    report.insert("not_due".into(), not_due);
}

/// Returns the noted condition of the relay, and the server process that streamed for it then.
fn noted(StoredCondition { phase, reasons, streaming_pid, age }: &StoredCondition) -> Value {
    json!({
        "phase": phase,
        "reasons": reasons,
        "streaming_pid": streaming_pid,
        "seconds": age.as_secs_f64(),
    })
}

fn anchor(AnchorStatus { name, slot, age }: &AnchorStatus) -> Value {
    json!({
        "anchor": name,
        "lost": slot.is_lost(),
        "age_seconds": age.map(|age| age.as_secs()),
        "retained_bytes": slot.retained_bytes(),
        "safe_wal_bytes": slot.safe_wal_size,
    })
}

fn writer(Writer { pid, prepared, seconds }: &Writer) -> Value {
    json!({ "pid": pid, "prepared": prepared, "seconds": seconds })
}

/// Returns the part of the report that comes from the slot alone.
pub fn slot_report(state: &SlotState) -> Map<String, Value> {
    let fields = [
        ("slot", json!(state.name)),
        ("active", json!(state.active_pid.is_some())),
        ("active_pid", json!(state.active_pid)),
        ("wal_status", json!(state.wal_status.map(wal_status))),
        ("lost", json!(state.is_lost())),
        ("invalidation_reason", json!(state.invalidation_reason)),
        ("failover", json!(state.failover)),
        ("wal_end", json!(state.wal_end.to_string())),
        ("confirmed_flush_lsn", json!(state.confirmed_flush_lsn.map(|lsn| lsn.to_string()))),
        ("restart_lsn", json!(state.restart_lsn.map(|lsn| lsn.to_string()))),
        ("lag_bytes", json!(state.lag_bytes())),
        ("retained_bytes", json!(state.retained_bytes())),
        ("pinned_bytes", json!(state.pinned_bytes())),
        ("safe_wal_bytes", json!(state.safe_wal_size)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the name of the status in `pg_replication_slots`.
#[must_use]
pub const fn wal_status(status: WalStatus) -> &'static str {
    match status {
        WalStatus::Reserved => "reserved",
        WalStatus::Extended => "extended",
        WalStatus::Unreserved => "unreserved",
        WalStatus::Lost => "lost",
    }
}

/// Formats a time as RFC 3339, for example `2026-01-31T12:00:00Z`.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    prost_types::Timestamp::from(at).to_string()
}

/// Parses an RFC 3339 time. Returns `None` if the text is not valid.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    text.parse::<prost_types::Timestamp>().ok()?.try_into().ok()
}
