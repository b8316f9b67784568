//! The seam between the relay and dispatch state: what a session reads when it opens, and the
//! commands it gives while it runs.
//!
//! In service it is [`SessionStore`](crate::SessionStore), over the tables; in the simulation a table
//! in memory. One conformance suite runs the same script on both.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use walrelay_core::{ClaimKey, Claimed, Finished, RowToRecord, Topic};

use crate::anchor::AnchorState;
use crate::condition::Condition;
use crate::dispatch::{DispatchCounts, Head, ParkedKey, RecordedPage};
use crate::relay_row::RelayRow;
use crate::store_error::StoreError;
use crate::watch::Watch;
use walrelay_pg_replication::{SlotState, Writer};

/// Why dispatch state could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// Try again: the statement was refused, or the connection broke.
    #[error("dispatch state cannot be reached")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database server is shutting down, and waits for us to confirm or to let go.
    #[error("the database server is shutting down")]
    ShuttingDown,
    /// The session's history is over: what it knows must not be written where this leads (I11).
    #[error("{0}; nothing was written")]
    OtherHistory(&'static str),
    /// A replay has no dispatch state, and met a row that would have to be recorded there.
    #[error("{0}")]
    NotRecorded(String),
    /// The tables are those of an earlier version.
    #[error("the tables of an earlier version are still in place")]
    TablesOutdated(#[source] StoreError),
}

/// How the reason of a command to dispatch state that fails begins.
pub const TABLE_REASON: &str = "a dispatch table cannot be used: ";

/// What stands between such a reason and its next step.
pub const NEXT_STEP: &str = "; as its owner: ";

impl StoreFailure {
    /// What went wrong, a line for it and for each of its causes.
    pub(crate) fn in_short(&self) -> String {
        match self {
            Self::Unavailable(source) => first_lines(&**source),
            Self::ShuttingDown
            | Self::OtherHistory(_)
            | Self::NotRecorded(_)
            | Self::TablesOutdated(_) => first_lines(self),
        }
    }
}

/// The first line of an error and of each of its causes.
fn first_lines(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut lines: Vec<String> = Vec::new();
    for cause in causes {
        let text = cause.to_string();
        let line = text.lines().next().unwrap_or_default();
        // Some errors repeat their cause.
        if !lines.last().is_some_and(|last| last.ends_with(line)) {
            lines.push(line.to_owned());
        }
    }
    lines.join(": ")
}

/// Figures for operators.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Rows in dispatch state.
    pub counts: DispatchCounts,
    /// Whether they are still being counted.
    pub is_counting: bool,
    /// The slot; none when it is gone.
    pub slot: Option<SlotState>,
    /// How long ago what is confirmed now was written, in seconds; none where nobody may see it.
    pub lag_seconds: Option<f64>,
    /// Whom the slot's oldest log waits for, beside us.
    pub oldest_writer: Option<Writer>,
    /// How far the slot is settled.
    pub relay_row: Option<RelayRow>,
    /// The anchors of the slot, farthest back first.
    pub anchors: Vec<AnchorState>,
}

/// What a look for due keys found.
#[derive(Debug, Clone, Default)]
pub struct Due {
    /// The keys, longest due first.
    pub keys: Vec<(Topic, String)>,
    /// Whether another look may find more at once.
    pub has_more: bool,
}

/// Keys told by one look for due ones; with as many there may be more.
pub const DUE_KEYS_MAX: usize = 1_000;

/// Keys told by one look that are to be held for a replay: as many as are claimed at once.
pub const HOLDS_MAX: u32 = 256;

/// Heads told by one look at all of them; with as many there may be more.
pub const HEADS_MAX: usize = 1_000;

/// Dispatch state: one command at a time, each all or nothing.
pub trait Store: Send + 'static {
    /// Reads which keys must not be published past what is recorded of them, once the slot is the
    /// session's own. Read earlier, another relay could record rows in between that this one would
    /// publish past (I4). `each` is told each of them as it comes, since all together may be more than
    /// memory holds; the answer is how many there were.
    fn parked_keys(
        &mut self,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> impl Future<Output = Result<usize, StoreFailure>> + Send;

    /// Reads the rows recorded at and after a position, some of them: about `rows_max` at most.
    fn recorded_from(
        &mut self,
        from: Position,
        rows_max: u32,
    ) -> impl Future<Output = Result<RecordedPage, StoreFailure>> + Send;

    /// Records rows, in this order. They are durable when this returns.
    fn park(
        &mut self,
        rows_to_record: &[RowToRecord],
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Writes down what became of claimed rows.
    fn finish(
        &mut self,
        finished: &[Finished],
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Takes the next rows of each key, at most `bytes_max` bytes of messages but at least one row;
    /// one answer a key, in their order.
    ///
    /// Nothing of these keys is out, and what was read of them up to `through` is stored or recorded. So
    /// this is the moment at which a key that is to be held for a replay is: it gives no rows then, and
    /// never counts as empty.
    fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
        through: Position,
    ) -> impl Future<Output = Result<Vec<Claimed>, StoreFailure>> + Send;

    /// Keys with rows that became due, also by an operator's hand, at most [`DUE_KEYS_MAX`] and none
    /// of these topics; and [some](HOLDS_MAX) that are to be held for a replay. The look does not cost
    /// more where more is parked.
    fn due_keys(
        &mut self,
        except: &[Topic],
    ) -> impl Future<Output = Result<Due, StoreFailure>> + Send;

    /// Whether [spilled rows](crate::DispatchStore::has_spilled_before) committed before `end` wait to be
    /// published, and for nothing but that.
    fn has_spilled_before(
        &mut self,
        end: Lsn,
    ) -> impl Future<Output = Result<bool, StoreFailure>> + Send;

    /// The heads of the keys behind this one, at most [`HEADS_MAX`], ordered by topic and key.
    fn heads_after(
        &mut self,
        after: Option<&Head>,
    ) -> impl Future<Output = Result<Vec<Head>, StoreFailure>> + Send;

    /// Waits until an operator says that he has changed something, which [`due_keys`](Self::due_keys)
    /// finds. He may also say nothing. Dropping the future loses nothing.
    fn notice(&mut self) -> impl Future<Output = ()> + Send;

    /// Notes how far the slot is settled. The slot is confirmed no further than that.
    fn note_settled(
        &mut self,
        settled: Lsn,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Notes how the relay is doing, for `walrelay status`. Without the relay's own row, as in a replay,
    /// nothing is noted.
    fn note_condition(
        &mut self,
        _condition: &Condition,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Why a command failed and what the next step is, in a line for `/readyz` and `walrelay status`. The
    /// server's details are left out, because they may quote rows.
    fn why_not(&self, failure: &StoreFailure) -> String {
        format!("{TABLE_REASON}{}", failure.in_short())
    }

    /// Counts rows, a part of the table at a time, and looks at the slot, for operators.
    fn survey(&mut self) -> impl Future<Output = Result<Survey, StoreFailure>> + Send;

    /// Whether the publication still publishes the outbox tables.
    fn watch(&mut self) -> impl Future<Output = Result<Watch, StoreFailure>> + Send;

    /// Deletes rows whose audit time is over, some of them; none when there are no more.
    fn prune(
        &mut self,
        retention: Duration,
    ) -> impl Future<Output = Result<u64, StoreFailure>> + Send;
}
