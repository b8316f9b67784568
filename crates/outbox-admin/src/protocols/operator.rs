//! The steps and changes of these protocols, and the session in which one runs.

use std::time::Duration;

use pgoutput_parser::Lsn;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use walrelay_outbox_replay::SlotOperation;
use walrelay_outbox_replay::operation_resumer::OperationResumer;
use walrelay_outbox_replay::operation_resumer::outcome::Outcome;
use walrelay_outbox_replay::operator::{Consent, StepSink};
use walrelay_pg_client::{ConnectConfig, SqlClient, backend_pid, run_cancellable};
use walrelay_relay::observe::health::Health;
use walrelay_relay::shutdown::Shutdown;

use super::protocol_error::ProtocolError;
use super::routes::InvalidTopicRows;
use super::set_up::AnsweredRows;
use super::skipped_rows::SkippedRows;
use super::table_rows::TableRows;
use crate::preflight::TimeWarning;

pub trait Operator: StepSink<Step> + Consent<Change> {}

impl<T: StepSink<Step> + Consent<Change>> Operator for T {}

/// A finished step of a protocol, or a fact that the operator needs during it.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum Step {
    /// The new shards own the rows.
    ShardsSwitched { at: Lsn, handed_over: u64 },
    /// A shard's slot and publication are dropped.
    ShardDropped(DroppedShard),
    /// The change of the shard count is cancelled.
    ReshardCancelled,
    /// These rows are skipped if the operator agrees.
    RowsSkipped(SkippedRows),
    /// The first slot does not stream these rows, and the operator agreed to that.
    EarlierRowsLeft { slot: String, rows: Vec<TableRows> },
    /// The existing slot is now a failover slot.
    FailoverEnabled { slot: String },
    /// An earlier operation on the slot is finished.
    OperationFinished { slot: String, operation: SlotOperation },
    /// An earlier operation is finished by the relay.
    OperationLeftToRelay { slot: String, operation: SlotOperation },
    /// An earlier operation is cancelled, because no process works on it.
    OperationCancelled { slot: String, operation: SlotOperation },
    /// The slot exists, and the relay publishes these rows first.
    RowsLeftToRelay {
        slot: String,
        operation: SlotOperation,
        rows: Vec<TableRows>,
        /// Whether an earlier run began the backfill.
        is_earlier: bool,
    },
    /// A relay has published the existing rows.
    BackfillDone,
    /// Another process sets up an outbox in this database, and the set-up waits for it.
    OtherSetUp,
    /// An object of the outbox was created.
    Created(String),
    /// An object of the outbox existed before.
    AlreadyThere(String),
    /// The objects of the outbox exist. The database accepts text in no particular encoding.
    EncodingUnchecked { database: String },
    /// The objects of the outbox exist. The column of the event's time has a problem.
    TimeColumn(TimeWarning),
    /// The other publisher may have set this column in rows that it failed to publish, because the
    /// table has these columns.
    MayHaveFailedRows { table: String, column: String, columns: Vec<String> },
    /// Pub/Sub refuses the name of a topic, with this error.
    TopicRefused(String),
    /// The outbox is empty, so its topics are unknown.
    TopicsUnknown,
    /// Rows lead to topics that can never exist.
    RowsWithoutTopic(InvalidTopicRows),
    /// The rows that were deleted from a table.
    RowsDeleted(TableRows),
    /// A partition was dropped with all of its rows.
    PartitionDropped { table: String, partition: String },
}

/// A change that needs the operator's consent, with counts of the affected rows or bytes.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum Change {
    /// Publishes the rows for which the condition is true, and never the others, because another
    /// publisher has done so.
    TakeAsPublished { condition: String, rows: Vec<AnsweredRows> },
    /// Replaces the slots of the outbox by others.
    Reshard { new: Vec<String>, old: Vec<String> },
    /// Drops the slots that a cancelled change of the shard count has created.
    CancelReshard { new: Vec<String> },
    /// Drops the slots that a change of the shard count has replaced.
    DropOldShards { old: Vec<String> },
    /// Publishes everything, and drops the slot with its anchors.
    ReleaseSlot { slot: String, anchors: usize },
    /// Drops a slot. A lost slot has no rows.
    DropSlot { slot: String, rows: u64 },
    /// Moves the slot past rows.
    AdvanceSlot { slot: String, to: Lsn, rows: u64 },
    /// Moves the slot back to an anchor. This much WAL is published again.
    ResetSlot { slot: String, to: Lsn, bytes: u64 },
    /// Creates a slot in place of a lost one. `rows` are unknown if the operator names a time.
    RecoverSlot { slot: String, rows: Option<Vec<TableRows>> },
    /// Moves an anchor. The WAL before its new position can no longer be replayed.
    AdvanceAnchor { anchor: String, to: Lsn, bytes: u64 },
    /// Drops an anchor. The WAL that it retains can no longer be replayed.
    DropAnchor { anchor: String, bytes: u64 },
    /// Forgets the versions of aggregates whose ids are never used again.
    ForgetAggregates { aggregate_type: String, aggregates: u64 },
    /// Deletes old rows.
    Prune { tables: Vec<PrunableTable> },
}

/// The rows of a table that may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunableTable {
    pub table: String,
    pub rows: u64,
    /// Partitions in which all rows may be deleted. They are dropped.
    pub partitions: Vec<String>,
}

/// A slot that is dropped with its publication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DroppedShard {
    pub slot: String,
    pub publication: String,
    /// Whether the publication was dropped also. It is left if the role does not own it.
    pub publication_dropped: bool,
}

/// How long a command waits for another process that works on the same operation.
const OTHER_PROCESS_MAX: Duration = Duration::from_secs(10);

/// The interval at which the command looks whether that process is done.
const OTHER_PROCESS_PAUSE: Duration = Duration::from_millis(200);

/// The session of a protocol, its operator, and its stop request.
#[derive(Debug, Clone, Copy)]
pub struct AdminSession<'a, O> {
    /// The session that holds the locks of the protocol.
    pub client: &'a SqlClient,
    /// Opens additional connections.
    pub connect: &'a ConnectConfig,
    pub operator: &'a O,
    pub stop: &'a Shutdown,
}

impl<'a, O: Operator> AdminSession<'a, O> {
    pub(super) fn report(&self, step: &Step) -> Result<(), ProtocolError> {
        self.operator.report(step).map_err(ProtocolError::Operator)
    }

    /// Asks for consent to the change. The change is counted only if the operator sees it.
    pub(super) async fn agree(
        &self,
        change: impl AsyncFnOnce() -> Result<Change, ProtocolError>,
    ) -> Result<bool, ProtocolError> {
        if self.operator.has_agreed() {
            return Ok(true);
        }
        let change = change().await?;
        self.operator.may_change(&change).await.map_err(ProtocolError::Operator)
    }

    pub(super) fn resumer<'b>(&'b self, slot: &'b str, health: &'b Health) -> OperationResumer<'b> {
        let Self { client, connect, stop, .. } = self;
        OperationResumer { client, connect, slot, health, stop }
    }

    /// Finishes the operation on record. If another process works on it, waits for that process. A
    /// running relay takes a new operation within milliseconds.
    ///
    /// # Errors
    ///
    /// The other process takes too long, or another command must finish the operation.
    pub(super) async fn finish_operation(&self, slot: &str) -> Result<Outcome, ProtocolError> {
        let until = Instant::now() + OTHER_PROCESS_MAX;
        loop {
            let done = self.resumer(slot, &Health::new()).finish().await?;
            let Outcome::Elsewhere { operation, what } = done else { return Ok(done) };
            // The slot exists. The relay that works on the operation publishes its rows.
            if matches!(&operation, SlotOperation::Recovery(it) if !it.parts.is_empty()) {
                return Ok(Outcome::Pending(operation));
            }
            // Other commands finish the other operations.
            let may_end = matches!(operation, SlotOperation::Recovery(_) | SlotOperation::Reset(_));
            if !may_end || Instant::now() >= until {
                return Err(operation.unfinished(slot, what).into());
            }
            sleep(OTHER_PROCESS_PAUSE).await;
        }
    }

    /// Runs `work` in this session, and cancels its statement at a stop request.
    pub(super) async fn cancellable<T>(
        &self,
        work: impl Future<Output = Result<T, ProtocolError>>,
    ) -> Result<T, ProtocolError> {
        let pid = backend_pid(self.client).await?;
        let done = run_cancellable(self.connect, pid, work, self.stop.requested());
        Box::pin(done).await.unwrap_or(Err(ProtocolError::Interrupted))
    }
}
