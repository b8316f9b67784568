//! What the lanes want done outside: tickets to settle, rows to record, outcomes to note.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::PublishFailure;
use crate::lane::{LaneId, Origin, Row};
use crate::message::Message;
use crate::tracker::Ticket;

/// Collected by [`Lanes`](crate::Lanes), drained by the pipeline after each call.
#[derive(Debug, Default)]
pub struct Effects {
    /// Rows from the slot that Pub/Sub stored, each with the memory it gives back.
    pub settled: Vec<(Ticket, usize)>,
    /// Rows from the slot that must be recorded in dispatch state; settled once that is durable.
    pub rows_to_record: Vec<RowToRecord>,
    /// Outcomes of rows that were claimed from dispatch state.
    pub finished: Vec<Finished>,
}

/// A row on its way into dispatch state.
#[derive(Debug)]
pub struct RowToRecord {
    /// The parked lane that waits for it to be durable; none when its key flows on.
    pub lane: Option<LaneId>,
    /// The message, complete in itself.
    pub message: Message,
    /// Settled once the row is durable (I2).
    pub ticket: Ticket,
    /// Why it is recorded.
    pub reason: Reason,
}

/// Why a row is recorded in dispatch state.
#[derive(Debug, Clone)]
pub enum Reason {
    /// Its lane was stuck. Only the first row of a key has a time of its own.
    Stuck {
        /// What Pub/Sub said last.
        failure: Arc<PublishFailure>,
        /// When the key is tried again.
        next_attempt_in: Option<Duration>,
    },
    /// Too much log waits for it, and nothing is stored. Only the first row of a key has a time.
    Spilled {
        /// What Pub/Sub said when it was tried, or of others of its key; none where it was not.
        failure: Option<Arc<PublishFailure>>,
        /// When the key is tried again.
        next_attempt_in: Option<Duration>,
    },
    /// Earlier rows of its key are in dispatch state.
    Queued,
    /// It can never be published.
    Dead {
        /// What is wrong with it.
        failure: Arc<PublishFailure>,
    },
}

impl Reason {
    /// In how long the row is tried again; none for one that waits behind another, or is dead.
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

/// Why a lane's rows are taken out of it.
#[derive(Debug, Clone)]
pub(crate) enum Aside {
    /// They are refused.
    Refused(Arc<PublishFailure>),
    /// Too much log waits for them; and what they were refused with, if they were.
    Spilled(Option<Arc<PublishFailure>>),
}

impl Aside {
    pub(crate) fn refused(failure: &PublishFailure) -> Self {
        Self::Refused(Arc::new(failure.clone()))
    }
}

/// The outcome of a row that was claimed from dispatch state.
#[derive(Debug)]
pub struct Finished {
    /// The row; its memory is given back once this is handed over.
    pub message: Message,
    /// What becomes of it in dispatch state.
    pub outcome: Outcome,
}

/// What is written to dispatch state about a claimed row.
#[derive(Debug)]
pub enum Outcome {
    /// Stored by Pub/Sub under this id.
    Published {
        /// The message id that Pub/Sub gave.
        message_id: String,
    },
    /// To be tried again.
    Again {
        /// Attempts so far.
        attempts: u32,
        /// How long to wait before; `None` for rows behind the head of their key.
        after: Option<Duration>,
        /// What Pub/Sub said; none when the row itself was not tried.
        failure: Option<Arc<PublishFailure>>,
        /// Whose doing that was. A row that was spilled stays one for as long as it is not its own.
        blame: Blame,
    },
    /// It can never be published, or was tried too often.
    Dead {
        /// Attempts so far.
        attempts: u32,
        /// What Pub/Sub said last.
        failure: Arc<PublishFailure>,
    },
}

impl Outcome {
    /// Of a row that was claimed and not tried, with the attempts that it had.
    #[must_use]
    pub const fn released(attempts: u32) -> Self {
        Self::Again { attempts, after: None, failure: None, blame: Blame::Nobody }
    }
}

/// Whether a failed delivery says something about its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The row itself was refused: others were stored meanwhile, or somebody has to act on its topic.
    Row,
    /// An outage or a passing trouble, as far as is known; or it was not tried.
    Nobody,
}

/// What a refusal means for one claimed row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    Again { after: Option<Duration>, blame: Blame },
    Dead,
}

impl Effects {
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
        Self::new(Some(lane), row, Reason::Queued)
    }

    pub(crate) fn aside(
        lane: LaneId,
        row: Row,
        why: &Aside,
        next_attempt_in: Option<Duration>,
    ) -> Self {
        let reason = match why {
            Aside::Refused(failure) => {
                Reason::Stuck { failure: Arc::clone(failure), next_attempt_in }
            }
            // Only of the first of a key: each line in the table is log that waits, too.
            Aside::Spilled(failure) => Reason::Spilled {
                failure: failure.as_ref().filter(|_| next_attempt_in.is_some()).map(Arc::clone),
                next_attempt_in,
            },
        };
        Self::new(Some(lane), row, reason)
    }

    pub(crate) fn dead(lane: Option<LaneId>, row: Row, failure: &PublishFailure) -> Self {
        Self::new(lane, row, Reason::Dead { failure: Arc::new(failure.clone()) })
    }

    fn new(lane: Option<LaneId>, row: Row, reason: Reason) -> Self {
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
