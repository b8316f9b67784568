//! The report of `/status`: one slot, its lag, its headroom and the parked rows, and the state of
//! this relay.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use walrelay_core::HeavyKey;
use walrelay_outbox_store::{
    AnchorStatus, DispatchCounts, PublishedRows, Reason, RelayRow, SlotFigures, StoredCondition,
};
use walrelay_pg_replication::{SlotState, WalStatus, Writer};

/// The slot, its WAL, and dispatch state. Fields are `None` if the slot does not exist, or if the
/// server does not show them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON")]
pub struct SlotReport {
    pub slot: String,
    /// Whether a session streams the slot.
    pub active: bool,
    pub active_pid: Option<i32>,
    /// `wal_status` of the slot.
    pub wal_status: Option<String>,
    /// Whether the slot is lost. It is also lost if another slot has its name.
    pub lost: bool,
    /// Why the server invalidated the slot.
    pub invalidation_reason: Option<String>,
    /// Whether the slot is synchronised to standbys.
    pub failover: Option<bool>,
    pub wal_end: Option<String>,
    pub confirmed_flush_lsn: Option<String>,
    /// The oldest WAL that the server retains for the slot.
    pub restart_lsn: Option<String>,
    /// Bytes of WAL after the confirmed position.
    pub lag_bytes: Option<u64>,
    /// Age of the confirmed position.
    pub lag_seconds: Option<f64>,
    /// Seconds that the oldest commit has waited for a synchronous standby.
    pub commit_wait_seconds: f64,
    /// Bytes of WAL that the server retains for the slot.
    pub retained_bytes: Option<u64>,
    /// Retained bytes that are already confirmed.
    pub pinned_bytes: Option<u64>,
    /// The transaction that retains confirmed WAL.
    pub pinned_by: Option<WriterReport>,
    /// Bytes of WAL until the slot is lost. None if unlimited.
    pub safe_wal_bytes: Option<i64>,
    pub condition: Option<ConditionReport>,
    pub anchors: Vec<AnchorReport>,
    /// The settled position on record.
    pub settled_lsn: Option<String>,
    /// When the settled position was recorded.
    pub settled_at: Option<String>,
    /// Seconds since then, by the server's clock.
    pub settled_seconds: Option<f64>,
    /// Transactions since the last settled one.
    pub settled_transactions: Option<u64>,
    /// Rows that Pub/Sub has stored. None if there was none yet.
    pub published: Option<PublishedReport>,
    /// Rows in dispatch state. None if dispatch state was not read.
    pub dispatch: Option<DispatchReport>,
    /// The last recent failure that only an operator can fix.
    pub refused: Option<RefusalReport>,
    pub spilled: SpilledReport,
    pub not_due: NotDueReport,
}

/// The rows that Pub/Sub has stored since the record of the slot exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedReport {
    pub rows: u64,
    /// Those of this day in UTC.
    pub today: u64,
    /// Seconds since the last one, by the server's clock.
    pub last_seconds: f64,
}

impl From<PublishedRows> for PublishedReport {
    fn from(PublishedRows { rows, today, age }: PublishedRows) -> Self {
        Self { rows, today, last_seconds: age.as_secs_f64() }
    }
}

/// The transaction that has been writing for longest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriterReport {
    /// Process id. None for a prepared transaction.
    pub pid: Option<i32>,
    /// Name of a prepared transaction.
    pub prepared: Option<String>,
    /// Seconds since the transaction began.
    pub seconds: Option<f64>,
}

/// The condition that a relay has recorded in its own row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConditionReport {
    pub phase: String,
    /// Why rows did not flow.
    pub reasons: Vec<Reason>,
    /// Process id of the session that recorded it. None if the relay waited without a session.
    pub streaming_pid: Option<i32>,
    /// Seconds since then.
    pub seconds: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnchorReport {
    pub anchor: String,
    /// Whether its WAL was removed.
    pub lost: bool,
    /// Age of its position.
    pub age_seconds: Option<u64>,
    /// Bytes of WAL that the server retains for it.
    pub retained_bytes: Option<u64>,
    /// Bytes of WAL until it is lost. None if unlimited.
    pub safe_wal_bytes: Option<i64>,
}

/// Numbers of rows in dispatch state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DispatchReport {
    pub retrying: u64,
    /// Rows that need an operator.
    pub dead: u64,
    pub published: u64,
    pub discarded: u64,
}

/// A failed attempt that only an operator can fix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusalReport {
    pub topic: String,
    /// The gRPC code.
    pub code: String,
    /// Time of the failure.
    pub at: String,
}

/// Rows that were spilled to dispatch state, because nothing could be published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpilledReport {
    pub rows: u64,
    /// When the first one was recorded.
    pub since: Option<String>,
    /// The last recent failure.
    pub refused_at: Option<String>,
    /// The last recent failure without an answer.
    pub unanswered_at: Option<String>,
}

/// Rows that back off, or that a relay has claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotDueReport {
    pub rows: u64,
    /// When the last one is due.
    pub until: Option<String>,
}

/// The answer of `/status`: the last report about the slot, and the state of this relay.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceReport {
    /// The slot. None before the first measurement.
    #[serde(flatten)]
    pub slot: Option<SlotReport>,
    pub relay: RelayReport,
}

/// The state of one relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayReport {
    pub phase: String,
    /// Whether rows flow.
    pub ready: bool,
    /// Why rows do not flow.
    pub reasons: Vec<Reason>,
    pub operation: Option<String>,
    /// Seconds since the watermark moved or nothing was outstanding.
    pub seconds_since_progress: f64,
    /// Rows that Pub/Sub stored per second, measured over the last seconds.
    pub published_per_second: Option<f64>,
    pub wal_budget: Option<WalBudgetReport>,
    pub heaviest_keys: Vec<HeavyKeyReport>,
}

/// `--wal-budget` and the retained WAL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON")]
pub struct WalBudgetReport {
    /// Bytes between the settled position and the end of the WAL.
    pub retained_bytes: u64,
    pub budget_bytes: u64,
    /// The amount of WAL that the server retains for a slot. None if unlimited.
    pub limit_bytes: Option<u64>,
    pub spilling: bool,
    /// Whether spilling is paused because it writes more WAL than it releases.
    pub futile: bool,
}

/// A busy ordering key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeavyKeyReport {
    pub topic: String,
    pub ordering_key: String,
    pub bytes_per_second: u64,
    pub rows_per_second: u64,
}

impl From<&HeavyKey> for HeavyKeyReport {
    fn from(key: &HeavyKey) -> Self {
        Self {
            topic: key.topic.to_string(),
            ordering_key: key.ordering_key.to_string(),
            bytes_per_second: key.bytes_per_second,
            rows_per_second: key.rows_per_second,
        }
    }
}

/// A relay that streams records its position after five seconds and after 4 MiB of WAL, unless a row
/// waits. These are twice as much.
const RECORD_SECONDS_MAX: f64 = 10.0;
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// The relay's own records cause this much WAL.
const OWN_WAL_BYTES: u64 = 1 << 10;

impl SlotReport {
    /// Whether rows may wait in the WAL that is not confirmed, as far as the server shows. Other WAL
    /// is most of it on an idle outbox.
    #[must_use]
    pub fn may_hold_rows(&self) -> bool {
        let Some(lag) = self.lag_bytes else { return false };
        let is_recorded =
            self.active && self.settled_seconds.is_some_and(|seconds| seconds < RECORD_SECONDS_MAX);
        lag >= if is_recorded { RECORD_BYTES_MAX } else { OWN_WAL_BYTES }
    }

    /// Returns the report for `/status`, or `None` if the slot does not exist.
    #[must_use]
    pub fn of(survey: &SlotFigures) -> Option<Self> {
        let SlotFigures { slot, oldest_writer, relay_row, .. } = survey;
        let slot = slot.as_ref()?;
        let is_another = relay_row.as_ref().is_some_and(|row| row.describes_another_slot(slot));
        let of_slot = Self::of_slot(slot);
        Some(Self {
            pinned_by: oldest_writer.as_ref().map(WriterReport::of),
            lost: of_slot.lost || is_another,
            ..of_slot.with_record(survey)
        })
    }

    /// Returns the part of the report that the relay has recorded about itself.
    #[must_use]
    pub fn of_relay_row(row: &RelayRow, active_pid: Option<i32>) -> Self {
        Self {
            active: active_pid.is_some(),
            active_pid,
            condition: row.condition.as_ref().map(ConditionReport::of),
            settled_lsn: Some(row.settled_lsn.to_string()),
            ..Self::default()
        }
    }

    /// Returns the report while an operation replaces the slot.
    #[must_use]
    pub fn without_slot(slot: &str, survey: &SlotFigures) -> Self {
        Self { slot: slot.to_owned(), ..Self::default() }.with_record(survey)
    }

    /// Returns the part of the report that comes from the slot alone.
    #[must_use]
    pub fn of_slot(state: &SlotState) -> Self {
        Self {
            slot: state.name.clone(),
            active: state.active_pid.is_some(),
            active_pid: state.active_pid,
            wal_status: state.wal_status.map(|status| wal_status(status).to_owned()),
            lost: state.is_lost(),
            invalidation_reason: state.invalidation_reason.clone(),
            failover: state.failover,
            wal_end: Some(state.wal_end.to_string()),
            confirmed_flush_lsn: state.confirmed_flush_lsn.map(|lsn| lsn.to_string()),
            restart_lsn: state.restart_lsn.map(|lsn| lsn.to_string()),
            lag_bytes: state.lag_bytes(),
            retained_bytes: state.retained_bytes(),
            pinned_bytes: state.pinned_bytes(),
            safe_wal_bytes: state.safe_wal_size,
            ..Self::default()
        }
    }

    /// Adds the record of the slot and the counts of dispatch state.
    fn with_record(self, survey: &SlotFigures) -> Self {
        let SlotFigures { counts, lag_seconds, relay_row, anchors, .. } = survey;
        let row = relay_row.as_ref();
        let waiting = &counts.waiting;
        let moment = |at: Option<SystemTime>| at.map(rfc3339);
        let refused = waiting.refused.as_ref().map(|refused| RefusalReport {
            topic: refused.topic.clone(),
            code: refused.code.clone(),
            at: refused.at.clone(),
        });
        Self {
            condition: row.and_then(|row| row.condition.as_ref()).map(ConditionReport::of),
            anchors: anchors.iter().map(AnchorReport::of).collect(),
            lag_seconds: *lag_seconds,
            commit_wait_seconds: survey.commit_wait_seconds,
            settled_lsn: row.map(|row| row.settled_lsn.to_string()),
            settled_at: row.map(|row| rfc3339(row.updated_at)),
            settled_seconds: row.map(|row| row.age.as_secs_f64()),
            settled_transactions: row.and_then(RelayRow::horizon_age),
            published: row.and_then(|row| row.published).map(PublishedReport::from),
            dispatch: Some(DispatchReport::of(counts)),
            refused,
            spilled: SpilledReport {
                rows: waiting.spilled,
                since: moment(waiting.spilled_since),
                refused_at: moment(waiting.refused_at),
                unanswered_at: moment(waiting.unanswered_at),
            },
            not_due: NotDueReport { rows: waiting.not_due, until: moment(waiting.not_due_until) },
            ..self
        }
    }
}

impl DispatchReport {
    fn of(counts: &DispatchCounts) -> Self {
        Self {
            retrying: counts.retrying,
            dead: counts.dead,
            published: counts.published,
            discarded: counts.discarded,
        }
    }
}

impl ConditionReport {
    fn of(StoredCondition { phase, reasons, streaming_pid, age }: &StoredCondition) -> Self {
        Self {
            phase: phase.clone(),
            reasons: reasons.clone(),
            streaming_pid: *streaming_pid,
            seconds: age.as_secs_f64(),
        }
    }
}

impl AnchorReport {
    fn of(AnchorStatus { name, slot, age }: &AnchorStatus) -> Self {
        Self {
            anchor: name.clone(),
            lost: slot.is_lost(),
            age_seconds: age.map(|age| age.as_secs()),
            retained_bytes: slot.retained_bytes(),
            safe_wal_bytes: slot.safe_wal_size,
        }
    }
}

impl WriterReport {
    fn of(Writer { pid, prepared, seconds }: &Writer) -> Self {
        Self { pid: *pid, prepared: prepared.clone(), seconds: *seconds }
    }
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
