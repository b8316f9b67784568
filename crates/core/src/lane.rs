//! One lane: the rows of one (topic, ordering key) that wait, and what became of those sent.
//!
//! ```text
//!          push              next_batch             stored, queue empty
//! (none) ───────▶ Ready ───────────────▶ Out ─────────────────────────▶ (evicted)
//!                  ▲ ▲                   │ │
//!                  │ └─── stored, more ──┘ └── refused ──▶ Waiting ── due ──▶ Ready
//!                  └────────────────────────────────────────────────────────┘
//! ```
//!
//! A lane whose key has rows in dispatch state is *parked* beside that: rows from the slot go into
//! the table behind them, rows claimed back go through the same queue, one batch at a time.
//!
//! ```text
//!                        due               rows              queue empty again
//!  (stuck) ─▶ Pausing ───────▶ Claiming ────────▶ Publishing ──────────────────▶ Pausing
//!                ▲                │   │                │ refused                (due now)
//!                └─ more is held ─┘   │                └──────────▶ Pausing (backing off)
//!                                     └─ table and append queue empty ─▶ (live again)
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pgoutput_parser::{Lsn, PgTimestamp};

use crate::message::{Message, Topic};
use crate::pauses::Pause;
use crate::topic_weather::WasWell;
use crate::tracker::Ticket;

/// Which lane; valid while the lane holds, has out, or has parked something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub(crate) u32);

/// A row on its way, and who is told when it has arrived.
#[derive(Debug)]
pub struct Row {
    /// What is published.
    pub message: Message,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a row came from.
#[derive(Debug)]
pub enum Origin {
    /// From the slot; the ticket is settled when the row is stored or recorded.
    Live(Ticket),
    /// Claimed back from dispatch state, after that many failed attempts.
    Claimed {
        /// Attempts counted against `--max-attempts` so far.
        attempts: u32,
    },
}

/// What one publish carries: rows of one lane, in order.
#[derive(Debug)]
#[must_use = "rows of a batch that is dropped never settle"]
pub struct Batch {
    pub(crate) lane: LaneId,
    pub(crate) rows: VecDeque<Row>,
    pub(crate) sent_at: Instant,
}

impl Batch {
    /// The topic all rows go to.
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

    /// The ordering key all rows share; empty for rows without one.
    #[must_use]
    pub fn ordering_key(&self) -> &str {
        self.rows.front().map_or("", |row| row.message.ordering_key())
    }

    /// The messages, in order.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &Message> + Clone {
        self.rows.iter().map(|row| &row.message)
    }

    /// When its first row was committed; none for rows from dispatch state.
    #[must_use]
    pub fn committed_at(&self) -> Option<PgTimestamp> {
        match &self.rows.front()?.origin {
            Origin::Live(ticket) => Some(ticket.committed_at()),
            Origin::Claimed { .. } => None,
        }
    }

    /// Where its first row was committed; none for rows from dispatch state.
    pub(crate) fn committed_from(&self) -> Option<Lsn> {
        let row = self.rows.front()?;
        matches!(row.origin, Origin::Live(_)).then(|| row.message.position().commit_lsn)
    }

    /// When it was handed out.
    #[must_use]
    pub const fn sent_at(&self) -> Instant {
        self.sent_at
    }
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) topic: Topic,
    /// Empty for rows without a key: then the lane only collects, and what it hands out goes on
    /// in a lane of its own.
    pub(crate) ordering_key: Box<str>,
    pub(crate) queue: VecDeque<Row>,
    /// Bytes of the queue as request fields.
    pub(crate) queue_bytes: usize,
    pub(crate) state: State,
    pub(crate) refusals: Refusals,
    pub(crate) parked: Option<Parked>,
    /// Whether rows of this key are pushed here; a batch of unordered rows travels unlisted.
    pub(crate) listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No lane at all: the place waits for the next one.
    Free,
    /// It has nothing to send.
    Empty,
    /// In the ring of lanes that may send.
    Ready,
    /// One of its batches is out.
    Out,
    /// The first batch was refused and goes out again at this time, before anything else.
    Waiting { until: Instant },
}

/// What went wrong with the rows at the head, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Refusals {
    /// Failures in a row.
    pub(crate) attempts: u32,
    /// Fair weather when the head was first sent; what passed since is time stuck.
    pub(crate) since: Option<Duration>,
    /// When the head was first refused.
    pub(crate) first: Option<Instant>,
    /// When it was first refused with an answer that only an operator can change.
    pub(crate) operator_since: Option<Instant>,
    /// How many rows at the head are known to contain one that Pub/Sub refuses; 0 for none.
    pub(crate) suspects: usize,
    /// Rows sent at once after one was refused for ever, or a delivery failed; doubles with each
    /// success. None for as many as a request takes.
    pub(crate) careful: Option<usize>,
}

/// A key with rows in dispatch state.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) redelivery: Redelivery,
    /// Rows handed to the store so far; it makes them durable in this order.
    pub(crate) handed: u64,
    /// How many of them are durable.
    pub(crate) durable: u64,
    /// Nothing may be claimed before this many are: the last of them precede rows already there.
    pub(crate) barrier: u64,
    /// Failed deliveries in a row, for the back-off; not what is counted against a row. After the
    /// first the head of what is claimed goes alone.
    pub(crate) failures: u32,
    /// The last of them, until something of the key is stored. It is the next one that tells whose doing it
    /// was.
    pub(crate) failed: Option<FailedDelivery>,
    /// Whether the table knows when the head is due, so that it tells when to look again.
    pub(crate) is_timed: bool,
    /// As what those that come behind them are recorded.
    pub(crate) behind: Behind,
}

/// A delivery from dispatch state that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedDelivery {
    pub(crate) at: Instant,
    pub(crate) everywhere: InPause,
    pub(crate) of_topic: InPause,
}

/// Between which successes a delivery failed, of anything or of its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InPause {
    pub(crate) pause: Pause,
    /// How many of the keys that were well until then and were refused in it are this one.
    pub(crate) own: u32,
}

impl InPause {
    /// The key failed in this pause, and `before`.
    pub(crate) fn following(before: Option<Self>, pause: Pause, was_well: WasWell) -> Self {
        let in_it = before.filter(|failed| failed.pause == pause).map_or(0, |failed| failed.own);
        Self { pause, own: in_it + u32::from(was_well == WasWell::Yes) }
    }
}

/// Rows that come behind others of their key in dispatch state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// They wait for what was refused.
    Queued,
    /// Too much log waited for those before, and nothing is wrong with any of them.
    Spilled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redelivery {
    /// Nothing claimed; look again at this time.
    Pausing { until: Instant },
    /// The store was asked for rows. `appended` since then: an empty answer would be stale.
    Claiming { appended: bool },
    /// Claimed rows are in the queue or out.
    Publishing,
}

impl Lane {
    /// A lane that rows of its key are pushed into.
    pub(crate) fn listed(topic: Topic, ordering_key: &str) -> Self {
        Self { ordering_key: ordering_key.into(), listed: true, ..Self::loose(topic) }
    }

    /// A lane of its own for unordered rows that travel together once.
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

    /// Whether rows from the slot are sent from here. Those of a parked key go behind its rows in
    /// dispatch state (I4); rows without a key have nothing to be behind.
    pub(crate) fn sends_live_rows(&self) -> bool {
        self.parked.is_none() || !self.is_ordered()
    }

    /// Whether this is when it sends again, or when its rows may be claimed.
    pub(crate) fn waits_until(&self, at: Instant) -> bool {
        self.state == (State::Waiting { until: at }) || self.rests_until(at)
    }

    /// Whether this is when its rows in dispatch state may be claimed.
    pub(crate) fn rests_until(&self, at: Instant) -> bool {
        let redelivery = self.parked.as_ref().map(|parked| parked.redelivery);
        matches!(redelivery, Some(Redelivery::Pausing { until }) if until == at)
    }

    /// Whether it holds nothing and knows nothing worth keeping (memory must not grow with the
    /// keys ever seen, I6).
    pub(crate) fn is_spent(&self) -> bool {
        self.queue.is_empty() && self.state == State::Empty && self.parked.is_none()
    }

    /// Whether its queue holds rows from the slot; a queue never mixes them with claimed ones.
    pub(crate) fn holds_live_rows(&self) -> bool {
        are_live(&self.queue)
    }

    /// Nothing to send any more; what was refused before is forgotten with the rows it was about.
    pub(crate) fn rest(&mut self) {
        self.state = State::Empty;
        self.refusals = Refusals::default();
    }

    pub(crate) fn enqueue(&mut self, row: Row) {
        self.queue_bytes += row.message.request_field().len();
        self.queue.push_back(row);
    }

    /// Memory that the rows of the queue count for in the budget, or a little more.
    pub(crate) fn queue_memory(&self) -> usize {
        const ROW: usize = 640;
        2 * self.queue_bytes + ROW * self.queue.len()
    }

    /// How many rows may go out together. Bad rows come in runs: after one, few, or each of the
    /// others would cost a search of its own.
    pub(crate) fn rows_max(&self, batch_messages: usize) -> usize {
        let Refusals { suspects, careful, .. } = self.refusals;
        let half = if suspects == 0 { batch_messages } else { suspects.div_ceil(2) };
        half.min(careful.unwrap_or(batch_messages)).min(batch_messages)
    }

    /// So many rows of the head were stored; more go out at once the next time.
    pub(crate) fn stored(&mut self, count: usize, batch_messages: usize) {
        let Refusals { suspects, careful, .. } = self.refusals;
        let doubled = careful.map(|rows| rows * 2).filter(|rows| *rows < batch_messages);
        self.refusals = Refusals {
            suspects: suspects.saturating_sub(count),
            // Half of what is suspected is care enough.
            careful: if suspects == 0 { doubled } else { careful },
            ..Refusals::default()
        };
    }

    pub(crate) fn take_queue(&mut self) -> VecDeque<Row> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Rows from the front, at most `messages_max` of them and `bytes_max` bytes, at least one.
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

    /// Puts refused rows back in front of everything else of the lane (I4).
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
/// | unlisted, rows without a key | Out | no | the same, or empty |
///
/// A lane that only collects is never refused anything, and one with nothing to send or out has no
/// refusals to remember.
impl Lane {
    /// Whether the lane is one of the legal combinations.
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

    /// What a failed check shows: never the key or a row.
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

/// What a queue holds; never rows of both origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    Empty,
    Live,
    Claimed,
}

impl QueueKind {
    /// None when the ends differ. Looking at every row would make the check as dear as the work.
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

/// Whether rows come from the slot rather than from dispatch state.
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
        Row { message, origin }
    }

    fn live() -> Row {
        let mut tracker = Tracker::new();
        tracker.begin(PgTimestamp::from_micros(0));
        row(Origin::Live(tracker.open()))
    }

    fn claimed() -> Row {
        row(Origin::Claimed { attempts: 0 })
    }

    /// A lane by the words of the table above.
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
        lane.parked = redelivery.map(|redelivery| Parked {
            redelivery,
            handed: 0,
            durable: 0,
            barrier: 0,
            failures: 0,
            failed: None,
            is_timed: false,
            behind: Behind::Queued,
        });
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

    /// The same table, written down once more.
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
