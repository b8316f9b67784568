//! Checks lanes against a naive model from a seed: a table, a faulty service, and one clock.
//!
//! The model knows the pushed rows and the stored rows, and nothing of how lanes work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use pgoutput_parser::{Lsn, PgTimestamp, Position};
use walrelay_core::{
    Backoff, Batch, CallCode, ClaimAnswer, FailureClass, LanePolicy, Lanes, Message, OnDead,
    Outcome, PublishFailure, RecordReason, SpillMode, Ticket, Topic, Tracker,
};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A row in dispatch state.
struct TableRow {
    key: String,
    event_id: String,
    dead: bool,
    due: Option<Instant>,
}

struct InboxDatabase {
    rng: Rng,
    lanes: Lanes,
    tracker: Tracker,
    now: Instant,
    on_dead: OnDead,
    next_row: u32,
    table: BTreeMap<Position, TableRow>,
    /// The commands to the store, which answers in order.
    store: VecDeque<StoreCommand>,
    out: Vec<Batch>,
    /// The rows of each key in the order in which they were first stored.
    stored: BTreeMap<String, Vec<u32>>,
    poison: BTreeSet<u32>,
    sick: BTreeSet<String>,
    dead: BTreeSet<u32>,
}

enum StoreCommand {
    Park(Vec<walrelay_core::RowToRecord>),
    Finish(Vec<walrelay_core::Finished>),
    Claim(Vec<walrelay_core::ClaimKey>),
}

const KEYS: u64 = 5;

fn policy(on_dead: OnDead) -> LanePolicy {
    let backoff =
        |base, cap| Backoff { base: Duration::from_millis(base), cap: Duration::from_millis(cap) };
    LanePolicy {
        batch_messages: 4,
        batch_bytes: 2_000,
        transient: backoff(50, 500),
        operator: backoff(100, 1_000),
        redelivery: backoff(100, 1_000),
        park_after: Duration::from_millis(400),
        max_attempts: u32::MAX,
        parked_lanes: 1,
        on_dead,
    }
}

/// Encodes `PubsubMessage { data, ordering_key }` without attributes.
fn message(row: u32, key: &str) -> Message {
    let mut body = vec![0x0A, 1, b'x'];
    if !key.is_empty() {
        body.push(0x2A);
        body.push(u8::try_from(key.len()).unwrap());
        body.extend_from_slice(key.as_bytes());
    }
    let topic: Topic = "projects/p/topics/orders".into();
    let position = Position { commit_lsn: Lsn::new(u64::from(row)), tx_index: 0 };
    Message::from_encoded(topic, position, &row.to_string(), &body).unwrap()
}

fn failure(class: FailureClass) -> PublishFailure {
    PublishFailure {
        class,
        congestion: false,
        code: CallCode::Unknown.into(),
        message: String::new(),
    }
}

fn number(message: &Message) -> u32 {
    message.event_id().parse().unwrap()
}

impl InboxDatabase {
    fn new(seed: u64, on_dead: OnDead) -> Self {
        let mut tracker = Tracker::new();
        tracker.begin(PgTimestamp::from_micros(0));
        Self {
            rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            lanes: Lanes::new(policy(on_dead), seed),
            tracker,
            now: Instant::now(),
            on_dead,
            next_row: 0,
            table: BTreeMap::new(),
            store: VecDeque::new(),
            out: Vec::new(),
            stored: BTreeMap::new(),
            poison: BTreeSet::new(),
            sick: BTreeSet::new(),
            dead: BTreeSet::new(),
        }
    }

    fn push(&mut self) {
        let row = self.next_row;
        self.next_row += 1;
        let key = match self.rng.below(KEYS + 1) {
            0 => String::new(),
            key => format!("k{key}"),
        };
        if self.rng.below(40) == 0 {
            self.poison.insert(row);
        }
        let ticket: Ticket = self.tracker.open();
        let message = message(row, &key);
        if self.rng.below(60) == 0 {
            self.dead.insert(row);
            self.lanes.push_dead(message, ticket, &failure(FailureClass::Row), self.now);
        } else {
            self.lanes.push(message, ticket);
        }
        self.outputs();
    }

    fn send(&mut self) {
        self.lanes.wake(self.now);
        while self.out.len() < 3 {
            let Some(batch) = self.lanes.next_batch(self.now) else { break };
            let keys: BTreeSet<_> = batch.messages().map(|m| m.ordering_key().to_owned()).collect();
            assert_eq!(keys.len(), 1, "I3: one key per request");
            assert!(batch.messages().len() <= 4);
            let key = keys.first().unwrap();
            let same = |other: &Batch| other.messages().next().unwrap().ordering_key() == key;
            assert!(key.is_empty() || !self.out.iter().any(same), "I3: {key} is out twice");
            self.out.push(batch);
        }
    }

    fn reply(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let at = usize::try_from(self.rng.below(self.out.len() as u64)).unwrap();
        let batch = self.out.remove(at);
        let key = batch.messages().next().unwrap().ordering_key().to_owned();
        let rows: Vec<u32> = batch.messages().map(number).collect();
        if self.sick.contains(&key) || self.rng.below(8) == 0 {
            let class = match self.rng.below(4) {
                0 => FailureClass::Operator,
                _ => FailureClass::Transient,
            };
            if self.rng.below(3) == 0 && !rows.iter().any(|row| self.poison.contains(row)) {
                self.store_rows(&key, &rows);
            }
            self.lanes.refused_or_undecided(batch, &failure(class), self.now);
        } else if rows.iter().any(|row| self.poison.contains(row)) {
            let failure = self.lanes.judge(&batch, failure(FailureClass::Row), self.now);
            self.lanes.refused_or_undecided(batch, &failure, self.now);
        } else {
            self.store_rows(&key, &rows);
            let ids = rows.iter().map(u32::to_string).collect();
            self.lanes.stored(batch, ids, self.now);
        }
        self.outputs();
    }

    fn store_rows(&mut self, key: &str, rows: &[u32]) {
        let stored = self.stored.entry(key.to_owned()).or_default();
        for row in rows {
            if !stored.contains(row) {
                stored.push(*row);
            }
        }
    }

    fn outputs(&mut self) {
        let outputs = self.lanes.outputs();
        for (ticket, _) in outputs.settled.drain(..) {
            self.tracker.settle(ticket);
        }
        if !outputs.rows_to_record.is_empty() {
            self.store.push_back(StoreCommand::Park(std::mem::take(&mut outputs.rows_to_record)));
        }
        if !outputs.finished.is_empty() {
            self.store.push_back(StoreCommand::Finish(std::mem::take(&mut outputs.finished)));
        }
    }

    fn store_answers(&mut self) {
        match self.store.pop_front() {
            Some(StoreCommand::Park(rows_to_record)) => {
                rows_to_record.into_iter().for_each(|row_to_record| self.record(row_to_record));
            }
            Some(StoreCommand::Finish(finished)) => {
                finished.into_iter().for_each(|row| self.finish(row));
            }
            Some(StoreCommand::Claim(keys)) => {
                for key in keys {
                    let claimed = self.claim(&key.ordering_key);
                    self.lanes.claimed(key.lane, claimed, self.now);
                }
            }
            None => {}
        }
    }

    fn record(&mut self, row_to_record: walrelay_core::RowToRecord) {
        if matches!(row_to_record.reason, RecordReason::Dead { .. }) {
            self.dead.insert(number(&row_to_record.message));
        }
        let row = TableRow {
            key: row_to_record.message.ordering_key().to_owned(),
            event_id: row_to_record.message.event_id().to_owned(),
            dead: matches!(row_to_record.reason, RecordReason::Dead { .. }),
            due: row_to_record.reason.next_attempt_in().map(|wait| self.now + wait),
        };
        self.table.insert(row_to_record.message.position(), row);
        self.tracker.settle(row_to_record.ticket);
        if let Some(lane) = row_to_record.lane {
            self.lanes.appended(lane);
        }
    }

    fn finish(&mut self, row: walrelay_core::Finished) {
        let position = row.message.position();
        match row.outcome {
            Outcome::Published { .. } => drop(self.table.remove(&position)),
            Outcome::Again { after, .. } => {
                let due = after.map(|wait| self.now + wait);
                if let Some(recorded) = self.table.get_mut(&position) {
                    recorded.due = due;
                }
            }
            Outcome::Dead { .. } => {
                self.dead.insert(number(&row.message));
                self.table.get_mut(&position).unwrap().dead = true;
            }
        }
    }

    fn claim(&mut self, key: &str) -> ClaimAnswer {
        let hold = self.on_dead == OnDead::Hold && !key.is_empty();
        let of_key = self.table.iter().filter(|(_, row)| row.key == key);
        let claimable =
            of_key.take_while(|(_, row)| !(hold && row.dead)).filter(|(_, row)| !row.dead);
        let count = usize::try_from(1 + self.rng.below(6)).unwrap();
        let rows: Vec<_> = claimable
            .take(count)
            .map(|(_, row)| (message(row.event_id.parse().unwrap(), key), 0))
            .collect();
        let holds = self.table.values().any(|row| row.key == key && (!row.dead || hold));
        let held_for = (rows.is_empty() && holds).then_some(Duration::from_millis(100));
        ClaimAnswer { rows, held_for }
    }

    fn ask_for_claims(&mut self) {
        let keys = self.lanes.claims(3, self.now);
        if !keys.is_empty() {
            self.store.push_back(StoreCommand::Claim(keys));
        }
    }

    /// Marks keys whose head is due, as the relay's query of the table does every second.
    fn poll_due(&mut self) {
        let mut heads: BTreeMap<&str, &TableRow> = BTreeMap::new();
        for row in self.table.values().filter(|row| !row.dead) {
            heads.entry(&row.key).or_insert(row);
        }
        let is_due = |row: &&TableRow| row.due.is_some_and(|due| due <= self.now);
        let due: Vec<_> = heads.into_values().filter(is_due).map(|row| row.key.clone()).collect();
        for key in due {
            self.lanes.mark_due(&Topic::from("projects/p/topics/orders"), &key, self.now);
        }
        self.outputs();
    }

    /// Simulates an operator who retries dead rows after making them harmless.
    fn operator_retries(&mut self) {
        let topic: Topic = "projects/p/topics/orders".into();
        let mut keys = BTreeSet::new();
        for row in self.table.values_mut().filter(|row| row.dead) {
            row.dead = false;
            row.due = Some(self.now);
            self.poison.remove(&row.event_id.parse().unwrap());
            keys.insert(row.key.clone());
        }
        for key in keys {
            self.lanes.mark_due(&topic, &key, self.now);
        }
        self.outputs();
    }

    /// Changes the spill mode at random.
    fn spill(&mut self) {
        let spill = match self.rng.below(4) {
            0 => SpillMode::Failing,
            1 => SpillMode::Everything,
            _ => SpillMode::Off,
        };
        self.lanes.spill(spill, self.now);
        self.outputs();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.push(),
            30..55 => self.reply(),
            55..75 => self.store_answers(),
            75..85 => self.ask_for_claims(),
            85 => drop(self.sick.insert(format!("k{}", 1 + self.rng.next() % KEYS))),
            86 => drop(self.sick.pop_first()),
            87 => self.operator_retries(),
            88..92 => self.poll_due(),
            92 => self.spill(),
            // The topic is repaired.
            93 => drop(self.poison.pop_first()),
            _ => self.now += Duration::from_millis(self.rng.below(60)),
        }
        self.send();
        self.lanes.check();
    }

    fn heal_and_finish(&mut self) {
        self.sick.clear();
        self.lanes.spill(SpillMode::Off, self.now);
        for round in 0.. {
            assert!(round < 20_000, "parked for ever: {} in the table", self.table.len());
            if round % 100 == 50 {
                self.operator_retries();
            }
            self.send();
            self.reply();
            self.poll_due();
            self.ask_for_claims();
            self.store_answers();
            self.lanes.check();
            self.now += Duration::from_millis(10);
            let idle = self.out.is_empty() && self.store.is_empty() && self.lanes.is_empty();
            if idle && self.table.values().all(|row| !row.dead) && self.table.is_empty() {
                return;
            }
        }
    }

    fn check(&self) {
        let total: usize = self.stored.values().map(Vec::len).sum();
        assert_eq!(total, self.next_row as usize, "lost rows");
        for (key, rows) in self.stored.iter().filter(|(key, _)| !key.is_empty()) {
            // With `OnDead::Continue`, later rows may overtake a row that was dead for a while.
            let excused = |row: &u32| self.on_dead == OnDead::Continue && self.dead.contains(row);
            let kept: Vec<_> = rows.iter().filter(|row| !excused(row)).collect();
            assert!(kept.is_sorted(), "I4: {key} out of order: {kept:?}");
        }
        assert!(self.tracker.rows_are_settled());
        assert_eq!(self.lanes.parked_keys(), 0);
    }
}

fn run(seed: u64, on_dead: OnDead) {
    let _name = NameSeed(seed);
    let mut world = InboxDatabase::new(seed, on_dead);
    for _ in 0..1_500 {
        world.step();
    }
    world.heal_and_finish();
    world.check();
}

/// Prints the seed of a failed run, so that it can be reproduced.
struct NameSeed(u64);

impl Drop for NameSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

#[test]
fn rows_of_a_key_are_stored_once_each_in_order_whatever_fails() {
    for seed in 1..=150 {
        run(seed, OnDead::Continue);
    }
}

#[test]
fn a_held_key_is_never_overtaken_not_even_a_dead_row() {
    for seed in 1..=150 {
        run(seed, OnDead::Hold);
    }
}
