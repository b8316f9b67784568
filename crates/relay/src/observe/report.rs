//! The report of `walrelay status` and `/status`: one slot, its lag, its headroom and the parked
//! rows.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use walrelay_outbox_admin::{
    AdminError, PausingReplay, SlotOperation, TopicReplay, describe_unfinished, open_topic_replays,
    pausing_replays, read_operation,
};
use walrelay_outbox_store::{
    AnchorStatus, DispatchStore, IncrementalCount, SlotFigures, StoredCondition, read_survey,
};
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::{SlotError, SlotState, WalStatus, Writer};

/// An error of the status report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The slot is lost. Its unconfirmed changes can no longer be read from the WAL.
    #[error("slot {slot:?} {how}")]
    SlotLost {
        /// The slot.
        slot: String,
        /// How it was lost.
        how: &'static str,
    },
    /// The server refuses a statement.
    #[error(transparent)]
    Store(#[from] AdminError),
}

/// Returns the report of `walrelay status --output json`.
///
/// # Errors
///
/// The server refuses, the slot is missing (lost, if it existed before), or there is no dispatch
/// state.
pub async fn report(client: &SqlClient, slot: &str) -> Result<Map<String, Value>, ReportError> {
    let store = DispatchStore::new(slot.to_owned());
    let mut counting = IncrementalCount::default();
    let mut survey = read_survey(client, &store, &mut counting).await.map_err(AdminError::from)?;
    while survey.is_counting {
        survey = read_survey(client, &store, &mut counting).await.map_err(AdminError::from)?;
    }
    let operation = operation(client, slot, &survey).await?;
    let begun = match &operation {
        Some(operation) => Some(describe_unfinished(client, slot, operation).await?),
        None => None,
    };
    let found = match (report_of(&survey), &operation) {
        (found @ Some(_), _) => found,
        // The report on an upgrade is only that the relay waits for it.
        (None, Some(SlotOperation::Upgrade(_)) | None) => None,
        // During an operation the slot may not exist.
        (None, Some(_)) => Some(report_without_slot(slot, &survey)),
    };
    match found {
        Some(mut report) => {
            report.insert("operation".into(), json!(begun));
            let finishing_command = operation.as_ref().map(SlotOperation::finishing_command);
            report.insert("finished_by".into(), json!(finishing_command));
            let is_vain = match &operation {
                Some(SlotOperation::Reset(reset)) => !reset.has_anchor(client).await?,
                Some(_) | None => false,
            };
            report.insert("is_vain".into(), json!(is_vain));
            let holding = pausing_replays(client, slot).await?;
            report.insert("held".into(), holding.iter().map(held).collect());
            report.insert("replays".into(), replays_of(client, slot).await?);
            Ok(report)
        }
        None if let Some(SlotOperation::Upgrade(_)) = operation => {
            Err(AdminError::UpgradePrepared { slot: slot.to_owned() }.into())
        }
        None if survey.relay_row.is_some() => {
            Err(ReportError::SlotLost { slot: slot.to_owned(), how: "no longer exists" })
        }
        None => Err(AdminError::from(SlotError::SlotMissing { slot: slot.to_owned() }).into()),
    }
}

/// Returns the unfinished replays and backfills of this slot to a topic.
///
/// # Errors
///
/// The server refuses.
pub async fn replays_of(client: &SqlClient, slot: &str) -> Result<Value, AdminError> {
    let replays = open_topic_replays(client, slot).await?;
    Ok(replays.iter().map(replay).collect())
}

/// Returns the unfinished operation that was begun with the slot.
async fn operation(
    client: &SqlClient,
    slot: &str,
    survey: &SlotFigures,
) -> Result<Option<SlotOperation>, AdminError> {
    let has_begun = survey.relay_row.as_ref().is_some_and(|row| row.operation.is_some());
    if has_begun { read_operation(client, slot).await } else { Ok(None) }
}

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
fn report_without_slot(slot: &str, survey: &SlotFigures) -> Map<String, Value> {
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

fn held(PausingReplay { id, command, keys, is_being_done }: &PausingReplay) -> Value {
    json!({ "id": id, "command": command, "keys": keys, "is_being_done": is_being_done })
}

fn replay(TopicReplay { id, command, topic, is_being_done }: &TopicReplay) -> Value {
    json!({ "id": id, "command": command, "to_topic": topic, "is_being_done": is_being_done })
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
