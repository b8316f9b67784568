//! A test bench for lanes: the test pushes rows and answers every batch by hand.

use std::time::{Duration, Instant};

use pgoutput_parser::{Lsn, PgTimestamp, Position};
use walrelay_core::{
    Backoff, Batch, CallCode, ClaimAnswer, ClaimKey, FailureClass, Finished, LanePolicy, Lanes,
    Message, OnDead, PublishFailure, RowToRecord, Topic, Tracker,
};

pub(crate) const PARK_AFTER: Duration = Duration::from_secs(5);

pub(crate) struct LaneHarness {
    pub(crate) lanes: Lanes,
    pub(crate) tracker: Tracker,
    pub(crate) now: Instant,
    next_row: u32,
}

/// Creates a back-off whose delay does not grow: between a tenth of `delay` and `delay`.
pub(crate) fn steady(delay: Duration) -> Backoff {
    Backoff { base: delay, cap: delay }
}

pub(crate) fn policy() -> LanePolicy {
    let backoff = |base| Backoff { base: Duration::from_millis(base), cap: PARK_AFTER };
    LanePolicy {
        batch_messages: 1_000,
        batch_bytes: 1_000_000,
        transient: backoff(100),
        operator: backoff(1_000),
        redelivery: backoff(1_000),
        park_after: PARK_AFTER,
        max_attempts: 2,
        parked_lanes: 1_000,
        on_dead: OnDead::Continue,
    }
}

impl LaneHarness {
    pub(crate) fn new() -> Self {
        Self::with(policy())
    }

    pub(crate) fn with(policy: LanePolicy) -> Self {
        let mut tracker = Tracker::new();
        tracker.begin(PgTimestamp::from_micros(0));
        let mut lanes = Lanes::new(policy, 7);
        let now = Instant::now();
        lanes.wake(now);
        Self { lanes, tracker, now, next_row: 0 }
    }

    pub(crate) fn push(&mut self, topic: &str, key: &str, count: u32) {
        for _ in 0..count {
            let ticket = self.tracker.open();
            self.lanes.push(message(self.next_row, topic, key), ticket);
            self.next_row += 1;
        }
        self.lanes.check();
    }

    /// Pushes a row that is dead without being sent.
    pub(crate) fn push_dead(&mut self, topic: &str, key: &str) {
        let ticket = self.tracker.open();
        let message = message(self.next_row, topic, key);
        self.lanes.push_dead(message, ticket, &failure(FailureClass::Row), self.now);
        self.next_row += 1;
        self.lanes.check();
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.lanes.wake(self.now);
    }

    pub(crate) fn batch(&mut self) -> Option<Batch> {
        self.lanes.next_batch(self.now)
    }

    /// Returns all batches that may be sent now.
    pub(crate) fn batches(&mut self) -> Vec<Batch> {
        std::iter::from_fn(|| self.batch()).collect()
    }

    /// Refuses all batches that may be sent now. Returns their number.
    pub(crate) fn refuse_all(&mut self, class: FailureClass) -> usize {
        let out = self.batches();
        let refused = out.len();
        out.into_iter().for_each(|batch| self.refuse_as(batch, class));
        self.lanes.check();
        refused
    }

    pub(crate) fn store(&mut self, batch: Batch) {
        let ids = batch.messages().map(|message| message.event_id().to_owned()).collect();
        self.lanes.stored(batch, ids, self.now);
        self.lanes.check();
    }

    pub(crate) fn refuse(&mut self, batch: Batch) {
        self.refuse_as(batch, FailureClass::Transient);
    }

    pub(crate) fn refuse_as(&mut self, batch: Batch, class: FailureClass) {
        self.lanes.refused(batch, &failure(class), self.now);
    }

    /// Refuses a batch as the service refuses an invalid row.
    pub(crate) fn refuse_as_invalid(&mut self, batch: Batch) {
        let failure = PublishFailure::new(FailureClass::Row, CallCode::InvalidArgument, "");
        let failure = self.lanes.judge(&batch, failure, self.now);
        self.lanes.refused_or_undecided(batch, &failure, self.now);
        self.lanes.check();
    }

    /// Pushes one row of a key and stores it at once.
    pub(crate) fn succeed(&mut self, topic: &str, key: &str) {
        self.push(topic, key, 1);
        let batch = self.batch().unwrap();
        assert_eq!((&**batch.topic(), batch.ordering_key()), (topic, key));
        self.store(batch);
    }

    pub(crate) fn taken_to_record(&mut self) -> Vec<RowToRecord> {
        std::mem::take(&mut self.lanes.outputs().rows_to_record)
    }

    pub(crate) fn finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.lanes.outputs().finished)
    }

    /// The delay until the lanes need to be woken.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        self.lanes.next_due().map(|at| at.duration_since(self.now))
    }

    pub(crate) fn park(&mut self, topic: &str, key: &str, due_in: Option<Duration>) {
        self.lanes.load_parked(&Topic::from(topic), key, due_in, self.now);
        self.lanes.check();
    }

    pub(crate) fn mark_due(&mut self, topic: &str, key: &str) {
        self.lanes.mark_due(&Topic::from(topic), key, self.now);
        self.lanes.check();
    }

    pub(crate) fn claims(&mut self) -> Vec<ClaimKey> {
        self.lanes.claims(100, self.now)
    }

    pub(crate) fn answer(&mut self, key: &ClaimKey, rows: &[(u32, u32)]) {
        let rows = rows
            .iter()
            .map(|(row, attempts)| (message(*row, &key.topic, &key.ordering_key), *attempts))
            .collect();
        self.lanes.claimed(key.lane, ClaimAnswer { rows, held_for: None }, self.now);
        self.lanes.check();
    }

    /// Claims one key's rows, given as (row, attempts).
    pub(crate) fn claim(&mut self, rows: &[(u32, u32)]) {
        let keys = self.lanes.claims(1, self.now);
        self.answer(keys.first().unwrap(), rows);
    }
}

pub(crate) fn message(row: u32, topic: &str, key: &str) -> Message {
    message_of(row, topic, key, 1)
}

/// Creates a message with `payload` bytes of payload, fewer than 128.
pub(crate) fn message_of(row: u32, topic: &str, key: &str, payload: u8) -> Message {
    let mut body = vec![0x0A, payload];
    body.extend((0..payload).map(|_| b'x'));
    if !key.is_empty() {
        body.push(0x2A);
        body.push(u8::try_from(key.len()).unwrap());
        body.extend_from_slice(key.as_bytes());
    }
    let position = Position { commit_lsn: Lsn::new(u64::from(row)), tx_index: 0 };
    Message::from_encoded(Topic::from(topic), position, &row.to_string(), &body).unwrap()
}

pub(crate) fn failure(class: FailureClass) -> PublishFailure {
    PublishFailure::new(class, CallCode::Unknown, "")
}
