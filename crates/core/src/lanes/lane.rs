//! One lane: the queued rows of one (topic, ordering key), and the outcome of the rows sent.
//!
//! ```text
//!          push              next_batch             stored, queue empty
//! (none) ───────▶ Ready ───────────────▶ Out ─────────────────────────▶ (evicted)
//!                  ▲ ▲                   │ │
//!                  │ └─── stored, more ──┘ └── refused ──▶ Waiting ── due ──▶ Ready
//!                  └────────────────────────────────────────────────────────┘
//! ```
//!
//! A lane whose key has rows in dispatch state is also *parked*. Rows from the slot then go into
//! the table, behind the earlier rows. Rows claimed back go through the same queue, one batch at a
//! time.
//!
//! ```text
//!                        due               rows              queue empty again
//!  (stuck) ─▶ Pausing ───────▶ Claiming ────────▶ Publishing ──────────────────▶ Pausing
//!                ▲                │   │                │ refused                (due now)
//!                └─ more is held ─┘   │                └──────────▶ Pausing (backing off)
//!                                     └─ table and append queue empty ─▶ (live again)
//! ```
//!
//! Once few rows are left in the table, the rows behind them wait in memory: [`waiting`](super::waiting).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pgoutput_parser::{Lsn, PgTimestamp};

use crate::failure_code::FailureCode;
use crate::message::{Message, Topic};
use crate::publish_health::FailedDelivery;
use crate::tracker::Ticket;

/// The id of a lane. Valid while the lane has queued, outstanding or parked rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub(crate) u32);

/// A row on its way to Pub/Sub, and its origin.
#[derive(Debug)]
pub struct Row {
    /// The message to publish.
    pub message: Message,
    /// The origin of the row.
    pub origin: Origin,
    /// Whether the row is dead if Pub/Sub refuses it as invalid, because Pub/Sub has done so before.
    pub(crate) is_last_try: bool,
}

impl Row {
    pub(crate) const fn new(message: Message, origin: Origin) -> Self {
        Self { message, origin, is_last_try: false }
    }
}

/// The origin of a row.
#[derive(Debug)]
pub enum Origin {
    /// The slot. The ticket is settled when the row is stored or recorded.
    Live(Ticket),
    /// Dispatch state, after this many failed attempts.
    Claimed {
        /// Attempts counted against `--max-attempts` so far.
        attempts: u32,
    },
}

/// The rows of one publish request: rows of one lane, in order.
#[derive(Debug)]
#[must_use = "rows of a batch that is dropped never settle"]
pub struct Batch {
    pub(crate) lane: LaneId,
    pub(crate) rows: VecDeque<Row>,
    /// Consecutive failures of the lane before this batch.
    pub(crate) failed_before: u32,
    pub(crate) sent_at: Instant,
}

impl Batch {
    /// The topic of all rows.
    ///
    /// # Panics
    ///
    /// The batch is empty, which no lane hands out.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        match self.rows.front() {
            Some(row) => row.message.topic(),
            None => panic!("I3: an empty batch"),
        }
    }

    /// The ordering key of all rows, empty for rows without a key.
    #[must_use]
    pub fn ordering_key(&self) -> &str {
        self.rows.front().map_or("", |row| row.message.ordering_key())
    }

    /// The messages, in order.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &Message> + Clone {
        self.rows.iter().map(|row| &row.message)
    }

    /// The commit time of the first row. `None` for rows from dispatch state.
    #[must_use]
    pub fn committed_at(&self) -> Option<PgTimestamp> {
        match &self.rows.front()?.origin {
            Origin::Live(ticket) => Some(ticket.committed_at()),
            Origin::Claimed { .. } => None,
        }
    }

    /// The number of attempts of the first row, this one included.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        let failed_before = match self.rows.front().map(|row| &row.origin) {
            Some(Origin::Claimed { attempts }) => *attempts,
            Some(Origin::Live(_)) | None => self.failed_before,
        };
        failed_before.saturating_add(1)
    }

    /// Whether the first row is tried once more after it was refused as invalid.
    pub(crate) fn is_last_try(&self) -> bool {
        self.rows.front().is_some_and(|row| row.is_last_try)
    }

    /// The commit position of the first row. `None` for rows from dispatch state.
    pub(crate) fn committed_from(&self) -> Option<Lsn> {
        let row = self.rows.front()?;
        matches!(row.origin, Origin::Live(_)).then(|| row.message.position().commit_lsn)
    }

    /// The time at which the batch was handed out.
    #[must_use]
    pub const fn sent_at(&self) -> Instant {
        self.sent_at
    }
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) topic: Topic,
    /// Empty for rows without a key. The lane then only collects rows, and each batch gets a lane
    /// of its own.
    pub(crate) ordering_key: Box<str>,
    pub(crate) queue: VecDeque<Row>,
    /// The size of the queue as request fields, in bytes.
    pub(crate) queue_bytes: usize,
    pub(crate) state: State,
    pub(crate) refusals: Refusals,
    pub(crate) parked: Option<Parked>,
    /// Whether rows of the key are pushed into this lane. The lane of a batch of unordered rows is
    /// unlisted.
    pub(crate) listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// An unused place.
    Free,
    /// The lane has nothing to send.
    Empty,
    /// The lane is in the queue of lanes that may send.
    Ready,
    /// A batch of the lane is outstanding.
    Out,
    /// The first batch was refused and will be sent again at this time, before all other rows.
    Waiting { until: Instant },
}

/// The failures of the rows at the head of the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Refusals {
    /// Consecutive failures.
    pub(crate) attempts: u32,
    /// The healthy time at the first attempt of the head. Later healthy time counts as stuck.
    pub(crate) since: Option<Duration>,
    /// The time of the head's first refusal.
    pub(crate) first: Option<Instant>,
    /// The time of the first refusal that only an operator can fix.
    pub(crate) operator_since: Option<Instant>,
    /// The code of the last failure.
    pub(crate) code: Option<FailureCode>,
    /// The number of rows at the head that are known to contain one that Pub/Sub refuses, or 0.
    pub(crate) suspects: usize,
    /// The batch size after a row was refused for ever or a delivery failed. It doubles with each
    /// success. `None` means the maximum of a request.
    pub(crate) careful: Option<usize>,
}

/// The state of a key with rows in dispatch state.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) redelivery: Redelivery,
    /// Rows handed to the store so far. The store makes them durable in this order.
    pub(crate) rows_handed_over: u64,
    pub(crate) rows_durable: u64,
    /// Nothing may be claimed before this many rows are durable: the last of them precede rows that
    /// are already in the table.
    pub(crate) claim_after: u64,
    /// Consecutive failed deliveries, for the back-off. They are not counted against a row. After
    /// the first failure, the first claimed row is sent alone.
    pub(crate) failures: u32,
    /// The last failed delivery since a row of the key was stored. The next delivery shows whether
    /// the row caused the failure.
    pub(crate) failed: Option<FailedDelivery>,
    /// Whether the table holds the due time of the head, so that a query for due keys finds this
    /// key.
    pub(crate) is_timed: bool,
    /// Why rows behind the existing ones are recorded.
    pub(crate) behind: Behind,
    /// Rows from the slot that wait in memory behind all rows in the table. None if such rows go into
    /// the table.
    pub(crate) waiting: Option<VecDeque<Row>>,
}

impl Parked {
    /// Creates the state of a key whose first rows are about to be handed to the store.
    pub(crate) const fn new(redelivery: Redelivery) -> Self {
        Self {
            redelivery,
            rows_handed_over: 0,
            rows_durable: 0,
            claim_after: 0,
            failures: 0,
            failed: None,
            is_timed: false,
            behind: Behind::Queued,
            waiting: None,
        }
    }
}

/// Why rows behind others of their key are recorded in dispatch state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// The rows wait behind a refused row.
    Queued,
    /// The earlier rows were spilled because they retained too much WAL. No row failed.
    Spilled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redelivery {
    /// Nothing is claimed. The key is checked again at this time.
    Pausing { until: Instant },
    /// Rows were requested from the store. If rows were `appended` since, an empty answer is stale.
    Claiming { appended: bool },
    /// Claimed rows are queued or outstanding.
    Publishing,
}

impl Lane {
    pub(crate) fn listed(topic: Topic, ordering_key: &str) -> Self {
        Self { ordering_key: ordering_key.into(), listed: true, ..Self::loose(topic) }
    }

    /// Creates an unlisted lane for unordered rows that are sent together.
    pub(crate) fn loose(topic: Topic) -> Self {
        Self {
            topic,
            ordering_key: Box::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            state: State::Empty,
            refusals: Refusals::default(),
            parked: None,
            listed: false,
        }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        !self.ordering_key.is_empty()
    }

    /// Whether rows from the slot are sent from this lane. Rows of a parked key go behind its rows
    /// in dispatch state (I4). Rows without a key have no order to keep.
    pub(crate) fn sends_live_rows(&self) -> bool {
        self.parked.is_none() || !self.is_ordered()
    }

    /// Whether the lane sends again at `at`, or its rows may be claimed then.
    pub(crate) fn waits_until(&self, at: Instant) -> bool {
        self.state == (State::Waiting { until: at }) || self.rests_until(at)
    }

    /// Whether the rows in dispatch state may be claimed at `at`.
    pub(crate) fn rests_until(&self, at: Instant) -> bool {
        let redelivery = self.parked.as_ref().map(|parked| parked.redelivery);
        matches!(redelivery, Some(Redelivery::Pausing { until }) if until == at)
    }

    /// Whether the lane has no rows and no state worth keeping. Such a lane is removed, because
    /// memory must not grow with the keys ever seen (I6).
    pub(crate) fn is_spent(&self) -> bool {
        self.queue.is_empty() && self.state == State::Empty && self.parked.is_none()
    }

    /// Whether the queue holds rows from the slot. A queue never mixes them with claimed rows.
    pub(crate) fn holds_live_rows(&self) -> bool {
        are_live(&self.queue)
    }

    /// Empties the state of a lane with nothing to send. Refusals are forgotten with the refused
    /// rows.
    pub(crate) fn rest(&mut self) {
        self.state = State::Empty;
        self.refusals = Refusals::default();
    }

    pub(crate) fn enqueue(&mut self, row: Row) {
        self.queue_bytes += row.message.request_field().len();
        self.queue.push_back(row);
    }

    /// The memory that the budget counts for the queue, or slightly more, in bytes.
    pub(crate) fn queue_memory(&self) -> usize {
        const ROW: usize = 640;
        2 * self.queue_bytes + ROW * self.queue.len()
    }

    /// The maximum number of rows in the next batch. Bad rows come in runs, so batches stay small
    /// after one. Otherwise each further bad row would cost a search of its own.
    pub(crate) fn rows_max(&self, batch_messages: usize) -> usize {
        let Refusals { suspects, careful, .. } = self.refusals;
        let half = if suspects == 0 { batch_messages } else { suspects.div_ceil(2) };
        half.min(careful.unwrap_or(batch_messages)).min(batch_messages)
    }

    /// Notes that `count` rows of the head were stored. The next batch may be larger.
    pub(crate) fn stored(&mut self, count: usize, batch_messages: usize) {
        let Refusals { suspects, careful, .. } = self.refusals;
        let doubled = careful.map(|rows| rows * 2).filter(|rows| *rows < batch_messages);
        self.refusals = Refusals {
            suspects: suspects.saturating_sub(count),
            // Half of the suspects is a small enough batch.
            careful: if suspects == 0 { doubled } else { careful },
            ..Refusals::default()
        };
    }

    pub(crate) fn take_queue(&mut self) -> VecDeque<Row> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Takes rows from the front: at least one, at most `messages_max` rows and `bytes_max` bytes.
    pub(crate) fn take_front(&mut self, messages_max: usize, bytes_max: usize) -> VecDeque<Row> {
        if self.queue.len() <= messages_max && self.queue_bytes <= bytes_max {
            return self.take_queue();
        }
        let mut bytes = 0;
        let mut count = 0;
        for row in self.queue.iter().take(messages_max) {
            bytes += row.message.request_field().len();
            if count > 0 && bytes > bytes_max {
                break;
            }
            count += 1;
        }
        let rest = self.queue.split_off(count);
        let front = std::mem::replace(&mut self.queue, rest);
        self.queue_bytes -=
            front.iter().map(|row| row.message.request_field().len()).sum::<usize>();
        front
    }

    /// Puts refused rows back in front of all other rows of the lane (I4).
    pub(crate) fn put_back(&mut self, mut rows: VecDeque<Row>) {
        self.queue_bytes += rows.iter().map(|row| row.message.request_field().len()).sum::<usize>();
        rows.append(&mut self.queue);
        self.queue = rows;
    }
}

/// The legal combinations, in one place.
///
/// | Lane | state | parked | queue |
/// | --- | --- | --- | --- |
/// | free place | Free | no | empty |
/// | ordered | Ready, Waiting | no | live rows |
/// | ordered | Out | no | live rows, or empty |
/// | ordered, parked while a batch was out | Out | Pausing | empty |
/// | ordered, its rows in the table | Empty | Pausing, Claiming | empty |
/// | ordered, redelivered | Ready | Publishing | claimed rows |
/// | ordered, redelivered | Out | Publishing | claimed rows, or empty |
/// | collecting rows without a key | Ready | no, Pausing, Claiming | live rows |
/// | collecting, its rows in the table | Empty | Pausing, Claiming | empty |
/// | unlisted, rows without a key | Ready, Waiting | no | rows of one origin |
/// | unlisted, rows without a key | Out | no | rows of one origin, or empty |
///
/// A lane that only collects rows is never refused. A lane with no queued or outstanding rows has
/// no refusals.
impl Lane {
    /// Checks that the lane is one of the legal combinations.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !self.is_legal() {
            return Err("no legal combination of state, parked and queue");
        }
        if (self.queue.is_empty()) != (self.queue_bytes == 0) {
            return Err("bytes are counted that are not there");
        }
        let is_at_rest = matches!(self.state, State::Free | State::Empty);
        if (is_at_rest || self.is_collecting()) && self.refusals != Refusals::default() {
            return Err("refusals without rows that were refused");
        }
        Ok(())
    }

    /// The state that a failed check prints, without the key or any row.
    pub(crate) fn shape(&self) -> impl std::fmt::Debug + use<> {
        let parked = self.parked.as_ref().map(|parked| parked.redelivery);
        (self.state, parked, self.refusals, self.queue.len(), self.listed, self.is_ordered())
    }

    fn is_collecting(&self) -> bool {
        self.listed && !self.is_ordered()
    }

    fn is_legal(&self) -> bool {
        let queue = QueueKind::of(&self.queue);
        let Some(queue) = queue else { return false };
        let parked = self.parked.as_ref().map(|parked| parked.redelivery);
        if self.state == State::Free {
            return parked.is_none() && queue == QueueKind::Empty;
        }
        if !self.listed {
            let is_legal = match self.state {
                State::Ready | State::Waiting { .. } => queue != QueueKind::Empty,
                State::Out => true,
                State::Free | State::Empty => false,
            };
            return is_legal && parked.is_none() && !self.is_ordered();
        }
        match (self.is_ordered(), self.state, parked) {
            (true, State::Ready | State::Waiting { .. }, None) => queue == QueueKind::Live,
            (true, State::Out, None) => queue != QueueKind::Claimed,
            (true, State::Out, Some(Redelivery::Pausing { .. }))
            | (_, State::Empty, Some(Redelivery::Pausing { .. } | Redelivery::Claiming { .. })) => {
                queue == QueueKind::Empty
            }
            (true, State::Ready, Some(Redelivery::Publishing)) => queue == QueueKind::Claimed,
            (true, State::Out, Some(Redelivery::Publishing)) => queue != QueueKind::Live,
            (
                false,
                State::Ready,
                None | Some(Redelivery::Pausing { .. } | Redelivery::Claiming { .. }),
            ) => queue == QueueKind::Live,
            _ => false,
        }
    }
}

/// The origin of the rows in a queue. A queue never holds rows of both origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    Empty,
    Live,
    Claimed,
}

impl QueueKind {
    /// Returns `None` if the first and last row differ. Checking every row would cost as much as
    /// the work itself.
    fn of(queue: &VecDeque<Row>) -> Option<Self> {
        let is_live = |row: &Row| matches!(row.origin, Origin::Live(_));
        match (queue.front().map(is_live), queue.back().map(is_live)) {
            (None, None) => Some(Self::Empty),
            (Some(true), Some(true)) => Some(Self::Live),
            (Some(false), Some(false)) => Some(Self::Claimed),
            _ => None,
        }
    }
}

/// Whether the rows come from the slot rather than from dispatch state.
pub(crate) fn are_live(rows: &VecDeque<Row>) -> bool {
    matches!(rows.front(), Some(Row { origin: Origin::Live(_), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracker::Tracker;
    use pgoutput_parser::Position;

    fn row(origin: Origin) -> Row {
        let position = Position { commit_lsn: Lsn::new(9), tx_index: 0 };
        let message = Message::from_encoded("t".into(), position, "e-1", b"\x0A\x01x").unwrap();
        Row::new(message, origin)
    }

    fn live() -> Row {
        let mut tracker = Tracker::new();
        tracker.begin(PgTimestamp::from_micros(0));
        row(Origin::Live(tracker.open()))
    }

    fn claimed() -> Row {
        row(Origin::Claimed { attempts: 0 })
    }

    /// Builds a lane from the words of the table above.
    fn lane(kind: &str, state: &str, parked: &str, queue: &str) -> Lane {
        let now = Instant::now();
        let mut lane = match kind {
            "ordered" => Lane::listed("t".into(), "k"),
            "collecting" => Lane::listed("t".into(), ""),
            "unlisted" => Lane::loose("t".into()),
            _ => Lane { listed: false, ..Lane::listed("t".into(), "k") },
        };
        lane.state = match state {
            "Free" => State::Free,
            "Empty" => State::Empty,
            "Ready" => State::Ready,
            "Out" => State::Out,
            _ => State::Waiting { until: now },
        };
        let redelivery = match parked {
            "Pausing" => Some(Redelivery::Pausing { until: now }),
            "Claiming" => Some(Redelivery::Claiming { appended: false }),
            "Publishing" => Some(Redelivery::Publishing),
            _ => None,
        };
        lane.parked = redelivery.map(Parked::new);
        let rows = match queue {
            "live" => vec![live(), live()],
            "claimed" => vec![claimed(), claimed()],
            "live before claimed" => vec![live(), claimed()],
            "claimed before live" => vec![claimed(), live()],
            _ => Vec::new(),
        };
        rows.into_iter().for_each(|row| lane.enqueue(row));
        lane
    }

    const KINDS: &[&str] = &["ordered", "collecting", "unlisted", "unlisted with a key"];
    const STATES: &[&str] = &["Free", "Empty", "Ready", "Out", "Waiting"];
    const PARKED: &[&str] = &["no", "Pausing", "Claiming", "Publishing"];
    const QUEUES: &[&str] =
        &["empty", "live", "claimed", "live before claimed", "claimed before live"];

    /// The same table as in the documentation of [`Lane`].
    const LEGAL: &[[&[&str]; 4]] = &[
        [KINDS, &["Free"], &["no"], &["empty"]],
        [&["ordered"], &["Ready", "Waiting"], &["no"], &["live"]],
        [&["ordered"], &["Out"], &["no"], &["live", "empty"]],
        [&["ordered"], &["Out"], &["Pausing"], &["empty"]],
        [&["ordered", "collecting"], &["Empty"], &["Pausing", "Claiming"], &["empty"]],
        [&["ordered"], &["Ready"], &["Publishing"], &["claimed"]],
        [&["ordered"], &["Out"], &["Publishing"], &["claimed", "empty"]],
        [&["collecting"], &["Ready"], &["no", "Pausing", "Claiming"], &["live"]],
        [&["unlisted"], &["Ready", "Waiting"], &["no"], &["live", "claimed"]],
        [&["unlisted"], &["Out"], &["no"], &["live", "claimed", "empty"]],
    ];

    fn check_states(kind: &str, queue: &str) {
        for (state, parked) in STATES.iter().flat_map(|s| PARKED.iter().map(move |p| (s, p))) {
            let words = [kind, state, parked, queue];
            let is_in = |line: &[&[&str]; 4]| {
                line.iter().zip(words).all(|(column, word)| column.contains(&word))
            };
            let is_legal = lane(kind, state, parked, queue).check().is_ok();
            assert_eq!(is_legal, LEGAL.iter().any(is_in), "{words:?}");
        }
    }

    #[test]
    fn a_lane_is_legal_in_the_combinations_of_the_table_and_no_other() {
        for kind in KINDS {
            QUEUES.iter().for_each(|queue| check_states(kind, queue));
        }
    }

    #[test]
    fn a_lane_counts_the_bytes_of_its_queue_and_of_nothing_else() {
        let mut empty = lane("ordered", "Out", "no", "empty");
        empty.queue_bytes = 1;
        assert!(empty.check().is_err());
        let mut full = lane("ordered", "Out", "no", "live");
        full.queue_bytes = 0;
        assert!(full.check().is_err());
    }

    #[test]
    fn only_a_lane_with_something_to_send_remembers_refusals() {
        let cases = [
            (lane("ordered", "Ready", "no", "live"), true),
            (lane("unlisted", "Out", "no", "empty"), true),
            (lane("ordered", "Free", "no", "empty"), false),
            (lane("ordered", "Empty", "Pausing", "empty"), false),
            (lane("collecting", "Ready", "no", "live"), false),
        ];
        for (mut lane, may_remember) in cases {
            assert_eq!(lane.check(), Ok(()));
            lane.refusals.attempts = 1;
            assert_eq!(lane.check().is_ok(), may_remember, "{:?}", lane.shape());
        }
    }

    #[test]
    fn a_lane_is_spent_when_it_holds_nothing_and_knows_nothing() {
        assert!(lane("ordered", "Empty", "no", "empty").is_spent());
        for (state, parked, queue) in
            [("Out", "no", "empty"), ("Empty", "Pausing", "empty"), ("Empty", "no", "live")]
        {
            assert!(!lane("ordered", state, parked, queue).is_spent(), "{state} {parked} {queue}");
        }
    }
}
