//! The work that lanes request from the caller: settle tickets, record rows, store outcomes.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::PublishFailure;
use crate::lanes::lane::{LaneId, Origin, Row};
use crate::message::Message;
use crate::tracker::Ticket;

/// The requested work. [`Lanes`](crate::Lanes) collects it, and the pipeline drains it after each
/// call.
#[derive(Debug, Default)]
pub struct LaneOutputs {
    /// Rows from the slot that Pub/Sub stored, each with the memory that it frees, in bytes.
    pub settled: Vec<(Ticket, usize)>,
    /// Rows from the slot to record in dispatch state. They are settled once they are durable
    /// there.
    pub rows_to_record: Vec<RowToRecord>,
    /// Outcomes of rows that were claimed from dispatch state.
    pub finished: Vec<Finished>,
}

/// A row to record in dispatch state.
#[derive(Debug)]
pub struct RowToRecord {
    /// The parked lane that waits until the row is durable. `None` if the key continues without
    /// parking.
    pub lane: Option<LaneId>,
    /// The whole message.
    pub message: Message,
    /// The ticket to settle once the row is durable (I2).
    pub ticket: Ticket,
    /// Why the row is recorded.
    pub reason: RecordReason,
}

/// Why a row is recorded in dispatch state.
#[derive(Debug, Clone)]
pub enum RecordReason {
    /// The lane of the row was stuck. Only the first row of a key gets a retry time.
    Stuck {
        /// The last failure of the publish.
        failure: Arc<PublishFailure>,
        /// The delay until the key is retried.
        next_attempt_in: Option<Duration>,
    },
    /// The row retains too much WAL while nothing is stored. Only the first row of a key gets a
    /// time.
    Spilled {
        /// The last failure of the row or of its key. `None` if no row of the key was tried.
        failure: Option<Arc<PublishFailure>>,
        /// The delay until the key is retried.
        next_attempt_in: Option<Duration>,
    },
    /// Earlier rows of the key are in dispatch state.
    Queued,
    /// The row can never be published.
    Dead {
        /// The reason.
        failure: Arc<PublishFailure>,
    },
}

impl RecordReason {
    /// The delay until the row is retried. `None` for a dead row and for one queued behind another.
    #[must_use]
    pub const fn next_attempt_in(&self) -> Option<Duration> {
        match self {
            Self::Stuck { next_attempt_in, .. } | Self::Spilled { next_attempt_in, .. } => {
                *next_attempt_in
            }
            Self::Queued | Self::Dead { .. } => None,
        }
    }
}

/// Why rows are moved out of a lane.
#[derive(Debug, Clone)]
pub(crate) enum ParkCause {
    /// Pub/Sub refuses the rows.
    Refused(Arc<PublishFailure>),
    /// The rows retain too much WAL. Holds the failure, if they were also refused.
    Spilled(Option<Arc<PublishFailure>>),
}

impl ParkCause {
    pub(crate) fn refused(failure: &PublishFailure) -> Self {
        Self::Refused(Arc::new(failure.clone()))
    }
}

/// The outcome of a row that was claimed from dispatch state.
#[derive(Debug)]
pub struct Finished {
    /// The row. Its memory is freed once this outcome is handed over.
    pub message: Message,
    /// The outcome that dispatch state stores.
    pub outcome: Outcome,
}

/// The outcome that dispatch state stores for a claimed row.
#[derive(Debug)]
pub enum Outcome {
    /// Pub/Sub stored the row.
    Published {
        /// The message id that Pub/Sub assigned.
        message_id: String,
    },
    /// The row will be retried.
    Again {
        /// Attempts so far.
        attempts: u32,
        /// The delay before the retry. `None` for rows behind the head of their key.
        after: Option<Duration>,
        /// The failure. `None` if the row itself was not tried.
        failure: Option<Arc<PublishFailure>>,
        /// Whether the row caused the failure. A spilled row stays spilled until it causes a
        /// failure itself.
        blame: FailureCause,
    },
    /// The row can never be published, or has used up its attempts.
    Dead {
        /// Attempts so far.
        attempts: u32,
        /// The last failure.
        failure: Arc<PublishFailure>,
    },
}

impl Outcome {
    /// The outcome of a row that was claimed but not tried. The number of attempts is unchanged.
    #[must_use]
    pub const fn released(attempts: u32) -> Self {
        Self::Again { attempts, after: None, failure: None, blame: FailureCause::Nobody }
    }
}

/// Whether a failed delivery says something about its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// Pub/Sub refused the row itself: it stored others meanwhile, or an operator has to fix the
    /// topic.
    Row,
    /// An outage or a transient failure, as far as is known, or the row was not tried.
    Nobody,
}

/// The meaning of a refusal for one claimed row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    Again { after: Option<Duration>, blame: FailureCause },
    Dead,
}

impl LaneOutputs {
    pub(crate) fn row_stored(&mut self, row: Row, message_id: String) {
        match row.origin {
            Origin::Live(ticket) => self.settled.push((ticket, row.message.memory())),
            Origin::Claimed { .. } => self.finished.push(Finished {
                message: row.message,
                outcome: Outcome::Published { message_id },
            }),
        }
    }
}

impl RowToRecord {
    pub(crate) fn queued(lane: LaneId, row: Row) -> Self {
        Self::new(Some(lane), row, RecordReason::Queued)
    }

    pub(crate) fn aside(
        lane: LaneId,
        row: Row,
        why: &ParkCause,
        next_attempt_in: Option<Duration>,
    ) -> Self {
        let reason = match why {
            ParkCause::Refused(failure) => {
                RecordReason::Stuck { failure: Arc::clone(failure), next_attempt_in }
            }
            // Only the first row of a key stores the failure: each copy would write more WAL.
            ParkCause::Spilled(failure) => RecordReason::Spilled {
                failure: failure.as_ref().filter(|_| next_attempt_in.is_some()).map(Arc::clone),
                next_attempt_in,
            },
        };
        Self::new(Some(lane), row, reason)
    }

    pub(crate) fn dead(lane: Option<LaneId>, row: Row, failure: &PublishFailure) -> Self {
        Self::new(lane, row, RecordReason::Dead { failure: Arc::new(failure.clone()) })
    }

    fn new(lane: Option<LaneId>, row: Row, reason: RecordReason) -> Self {
        let Origin::Live(ticket) = row.origin else {
            panic!("I2: a row of dispatch state recorded there again");
        };
        Self { lane, message: row.message, ticket, reason }
    }
}

impl Finished {
    pub(crate) fn dead(message: Message, attempts: u32, failure: &PublishFailure) -> Self {
        Self::refused(message, attempts, failure, Verdict::Dead)
    }

    pub(crate) fn refused(
        message: Message,
        attempts: u32,
        failure: &PublishFailure,
        verdict: Verdict,
    ) -> Self {
        let failure = Arc::new(failure.clone());
        let outcome = match verdict {
            Verdict::Again { after, blame } => {
                let of_row = after.is_some().then_some(failure);
                Outcome::Again { attempts, after, failure: of_row, blame }
            }
            Verdict::Dead => Outcome::Dead { attempts, failure },
        };
        Self { message, outcome }
    }

    pub(crate) fn released(row: Row) -> Self {
        let Origin::Claimed { attempts } = row.origin else {
            panic!("I2: a live row released to dispatch state that does not hold it");
        };
        Self { message: row.message, outcome: Outcome::released(attempts) }
    }
}
