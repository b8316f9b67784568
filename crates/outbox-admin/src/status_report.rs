//! The report of `walrelay status`: the slot, its WAL, dispatch state, and everything that is
//! unfinished. The shell adds the headline and the next step, which name commands.

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;
use walrelay_errors::Code;
use walrelay_outbox_replay::{
    AdminError, HolderActivity, PausingReplay, SlotOperation, TopicReplay, describe_unfinished,
    read_operation, read_slot_holder, refuse_other_slot, visible_replays,
};
use walrelay_outbox_store::{
    DispatchStore, IncrementalCount, SlotFigures, read_publication_gap, read_survey,
};
use walrelay_pg_client::{SqlClient, sql};
use walrelay_pg_replication::{SlotError, read_slot};
use walrelay_relay::observe::report::{RelayReport, SlotReport};

use crate::table_sizes::TableSize;

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The slot is lost. Its unconfirmed changes can no longer be read from the WAL.
    #[error("slot {slot:?} {how}")]
    SlotLost { slot: String, how: String },
    #[error(transparent)]
    Store(#[from] AdminError),
}

/// The status of an outbox: of its slot, or of all its shards.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    /// The worst problem in one line, or that everything flows.
    pub headline: String,
    pub severity: Severity,
    pub next_step: Option<NextStep>,
    /// The shard, if the outbox has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// The slot. None in a report of several shards.
    #[serde(flatten)]
    pub slot: Option<SlotReport>,
    /// Age of the oldest row that is not published: an estimate from the slot and dispatch state.
    pub oldest_unpublished_seconds: Option<f64>,
    /// `--wal-budget` of this command.
    pub wal_budget_bytes: Option<u64>,
    /// The amount of WAL that the server retains for a slot. None if unlimited.
    pub wal_limit_bytes: Option<u64>,
    /// Topics with unpublished rows in dispatch state.
    pub failing_topics: Vec<FailingTopic>,
    pub operation: Option<OperationReport>,
    /// In-place replays that pause keys of the slot.
    pub paused_by: Vec<PausingReplay>,
    /// Rows of in-place replays that the relay still publishes.
    pub replayed_rows: u64,
    /// Unfinished replays and backfills to a topic.
    pub replays: Vec<TopicReplay>,
    /// Consumers with an unfinished rebuild, in the database of the outbox.
    pub rebuilds: Vec<RebuildReport>,
    /// The backlog of each consumer whose database is known.
    pub consumers: Vec<ConsumerBacklog>,
    /// The size on disk of each table that exists, with its partitions.
    pub tables: Vec<TableSize>,
    /// The reports of the shards, if the outbox has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<StatusReport>,
    /// The answer of the relay, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelayAnswer>,
}

/// How bad a problem is, in ascending order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Everything flows.
    #[default]
    Good,
    /// Somebody should check soon.
    Attention,
    /// Rows do not flow, or may be lost soon.
    Bad,
}

/// The recommended next step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextStep {
    /// The error code, if the problem has one.
    pub code: Option<String>,
    /// The step in words, with the command to run.
    pub text: String,
    #[serde(skip)]
    pub scope: StepScope,
}

/// The slots that a step is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StepScope {
    #[default]
    Slot,
    AllShards,
}

impl NextStep {
    /// Creates a step of a problem without an error code.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    #[must_use]
    pub fn of(code: Code, text: impl Into<String>) -> Self {
        Self { code: Some(code.name().to_owned()), ..Self::new(text) }
    }
}

/// The unpublished rows of one topic in dispatch state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailingTopic {
    /// Full name of the topic.
    pub topic: String,
    /// Rows that will be published again.
    pub retrying: u64,
    /// Rows that need an operator.
    pub dead: u64,
    /// Seconds since the oldest of them was recorded.
    pub oldest_seconds: f64,
    /// The code of the row that changed last: a gRPC code, or a reason why rows are dead.
    pub last_error_code: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// A copy of an anchor replaces the slot.
    #[default]
    Reset,
    /// A new slot replaces a lost slot.
    Recovery,
    Release,
    Resharding,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationReport {
    pub kind: OperationKind,
    /// The operation, and why it waits.
    pub text: String,
    /// The command that finishes it. None while a relay does.
    pub finished_by: Option<String>,
    /// Whether its anchor is gone, so that the command cancels it.
    pub is_anchor_gone: bool,
}

/// A consumer with an unfinished rebuild.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebuildReport {
    pub consumer: String,
    /// The progress, and the next step.
    pub report: String,
}

/// The events that a consumer has received and not applied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerBacklog {
    pub consumer: String,
    /// Why the backlog is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub paused: bool,
    /// Events that will be applied again.
    pub retrying: u64,
    /// Events that need an operator.
    pub dead: u64,
    /// Keys whose events wait for an earlier event.
    pub keys_held: u64,
    /// Age of the oldest event that is not applied.
    pub oldest_waiting_seconds: Option<f64>,
    pub received_last_minute: u64,
}

/// The answer of the relay to `--relay`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayAnswer {
    /// Why the relay did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
    /// The state of the relay. None if it did not answer.
    #[serde(flatten)]
    pub report: Option<RelayReport>,
}

impl StatusReport {
    /// Creates the report of a slot, without the unfinished work around it.
    #[must_use]
    pub fn of_slot(slot: SlotReport) -> Self {
        Self { slot: Some(slot), ..Self::default() }
    }

    /// Returns the age of the oldest unpublished row: in dispatch state, or in the WAL that the
    /// slot has not confirmed.
    fn oldest_unpublished(&self) -> Option<f64> {
        let pending = self.failing_topics.iter().filter(|topic| topic.retrying > 0);
        let recorded = pending.map(|topic| topic.oldest_seconds);
        let slot = self.slot.as_ref();
        let unconfirmed = slot.filter(|slot| slot.may_hold_rows());
        // The server's lag is that of its last reply, so it stays small behind a stuck row. The
        // relay records its position every few seconds while rows are settled.
        let in_wal = unconfirmed.into_iter().flat_map(|it| [it.lag_seconds, it.settled_seconds]);
        recorded.chain(in_wal.flatten()).max_by(f64::total_cmp)
    }
}

/// Returns the command that finishes an operation. Only the caller knows its own commands.
pub type CommandOf = fn(&SlotOperation) -> String;

/// Reads the report of one slot, without headline and next step.
///
/// # Errors
///
/// The slot is missing (lost, if it existed before), or there is no dispatch state.
pub async fn read_status(
    client: &SqlClient,
    slot: &str,
    command_of: CommandOf,
) -> Result<StatusReport, ReportError> {
    let store = DispatchStore::new(slot.to_owned());
    let mut counting = IncrementalCount::default();
    let mut survey = read_survey(client, &store, &mut counting).await.map_err(AdminError::from)?;
    while survey.is_counting {
        survey = read_survey(client, &store, &mut counting).await.map_err(AdminError::from)?;
    }
    refuse_other_slot(client, slot).await?;
    let operation = operation(client, slot, &survey).await?;
    if let Some(how) = read_publication_gap(client, slot).await.map_err(AdminError::from)? {
        return Err(ReportError::SlotLost { slot: slot.to_owned(), how });
    }
    let slot_report = match (SlotReport::of(&survey), &operation) {
        (Some(found), _) => found,
        (None, Some(SlotOperation::Release(_))) => {
            return Err(AdminError::SlotReleased { slot: slot.to_owned() }.into());
        }
        // During an operation the slot may not exist.
        (None, Some(_)) => SlotReport::without_slot(slot, &survey),
        (None, None) if survey.relay_row.is_some() => {
            let how = "no longer exists".to_owned();
            return Err(ReportError::SlotLost { slot: slot.to_owned(), how });
        }
        (None, None) => {
            return Err(AdminError::from(SlotError::SlotMissing { slot: slot.to_owned() }).into());
        }
    };
    let operation = match &operation {
        Some(operation) => Some(describe(client, slot, operation, command_of).await?),
        None => None,
    };
    let unfinished = visible_replays(client, slot).await?;
    let report = StatusReport {
        failing_topics: failing_topics(client, slot).await?,
        operation,
        paused_by: PausingReplay::among(&unfinished),
        replayed_rows: replayed_rows(client, slot).await?,
        replays: TopicReplay::among(&unfinished),
        ..StatusReport::of_slot(slot_report)
    };
    Ok(StatusReport { oldest_unpublished_seconds: report.oldest_unpublished(), ..report })
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

async fn describe(
    client: &SqlClient,
    slot: &str,
    operation: &SlotOperation,
    command_of: CommandOf,
) -> Result<OperationReport, AdminError> {
    let (kind, is_anchor_gone) = match operation {
        SlotOperation::Reset(reset) => (OperationKind::Reset, !reset.has_anchor(client).await?),
        SlotOperation::Recovery(_) => (OperationKind::Recovery, false),
        SlotOperation::Release(_) => (OperationKind::Release, false),
        SlotOperation::Resharding(_) => (OperationKind::Resharding, false),
    };
    let text = describe_unfinished(client, slot, operation).await?;
    let is_at_work = kind == OperationKind::Recovery && is_streamed(client, slot).await?;
    let finished_by = (!is_at_work).then(|| command_of(operation));
    Ok(OperationReport { kind, text, finished_by, is_anchor_gone })
}

/// Returns whether a relay streams the slot. It then publishes the rows of a recovery.
async fn is_streamed(client: &SqlClient, slot: &str) -> Result<bool, AdminError> {
    match read_slot(client, slot).await?.and_then(|it| it.active_pid) {
        Some(pid) => Ok(read_slot_holder(client, pid).await?.does == HolderActivity::Streams),
        None => Ok(false),
    }
}

/// Counts the rows of in-place replays that have met no failure yet.
async fn replayed_rows(client: &SqlClient, slot: &str) -> Result<u64, AdminError> {
    let sql = sql!("status_report.sql", "replayed_rows");
    let row = client.query_typed_one(sql, &[(&slot, Type::TEXT)]).await;
    let row = row.map_err(AdminError::sql("count the rows of replays"))?;
    Ok(row.get::<_, i64>("rows").unsigned_abs())
}

/// Returns the topics with the most unpublished rows in dispatch state, at most twenty.
async fn failing_topics(client: &SqlClient, slot: &str) -> Result<Vec<FailingTopic>, AdminError> {
    let sql = sql!("status_report.sql", "failing_topics");
    let rows = client
        .query_typed(sql, &[(&slot, Type::TEXT)])
        .await
        .map_err(AdminError::sql("read the failing topics"))?;
    let topics = rows.iter().map(|row| FailingTopic {
        topic: row.get("topic"),
        retrying: row.get::<_, i64>("retrying").unsigned_abs(),
        dead: row.get::<_, i64>("dead").unsigned_abs(),
        oldest_seconds: row.get("oldest_seconds"),
        last_error_code: row.get("last_error_code"),
    });
    Ok(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unpublished_row_is_in_dispatch_state_or_in_the_wal() {
        let topic = |retrying, dead, oldest_seconds| FailingTopic {
            retrying,
            dead,
            oldest_seconds,
            ..FailingTopic::default()
        };
        let slot = |lag_bytes, lag_seconds| SlotReport {
            lag_bytes: Some(lag_bytes),
            lag_seconds,
            settled_seconds: Some(8.0),
            ..SlotReport::default()
        };
        let cases = [
            (slot(0, Some(0.0)), vec![], None),
            // A relay that streams has recorded its position a moment ago, so nothing waits.
            (SlotReport { active: true, ..slot(9 << 10, Some(9.5)) }, vec![], None),
            (SlotReport { active: true, ..slot(9 << 20, Some(9.5)) }, vec![], Some(9.5)),
            (slot(4096, Some(9.5)), vec![], Some(9.5)),
            (slot(4096, None), vec![], Some(8.0)),
            // One row is stuck, and later rows are answered.
            (slot(4096, Some(0.4)), vec![], Some(8.0)),
            (slot(0, Some(0.0)), vec![topic(2, 0, 40.0)], Some(40.0)),
            (slot(4096, Some(70.0)), vec![topic(2, 0, 40.0)], Some(70.0)),
            // Dead rows are not pending.
            (slot(0, Some(0.0)), vec![topic(0, 3, 400.0)], None),
        ];
        for (found, failing_topics, expected) in cases {
            let report = StatusReport { failing_topics, ..StatusReport::of_slot(found) };
            assert_eq!(report.oldest_unpublished(), expected, "{report:?}");
        }
    }

    #[test]
    fn the_json_is_one_object_with_the_fields_of_the_slot() {
        let slot = SlotReport { slot: "walrelay".to_owned(), ..SlotReport::default() };
        let report = StatusReport {
            next_step: Some(NextStep::of(Code::SlotLost, "walrelay slot recover")),
            ..StatusReport::of_slot(slot)
        };
        let json = serde_json::json!(report);
        assert_eq!(json["slot"], "walrelay");
        assert_eq!(json["next_step"]["code"], "slot-lost");
        assert_eq!(json["severity"], "good");
        assert!(json.get("shards").is_none() && json.get("relay").is_none(), "{json}");
        assert_eq!(serde_json::from_value::<StatusReport>(json).unwrap(), report);
    }
}
