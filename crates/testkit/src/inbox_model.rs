//! A model of one consumer's inbox, as its SQL functions maintain it. Simulations use it instead of
//! a database.
//!
//! ```text
//! apply:      take ──▶ gaps ──▶ run ──▶ settle ──▶ heads
//! redeliver:  due  ──▶ gaps ──▶ run ──▶ settle ──▶ heads
//! ```
//!
//! The model is deliberately naive: a map of rows that each step scans completely. A test compares
//! the model with the SQL functions step by step (`crates/inbox/tests/it/sql_functions/alike.rs`). The
//! model leaves out locks and deferred messages, which one session does not meet. It also leaves
//! out two events with one id, positions of several servers, and clocks. A row that is due at some
//! time is due at once.

mod gaps;
mod heads;

use std::collections::BTreeMap;

/// An event as it is delivered. Its id is `e` followed by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub event: u32,
    /// The ordering key, never empty.
    pub key: String,
    /// The version within the key.
    pub version: Option<i64>,
    /// The position in the producer's WAL, unique per event.
    pub position: u64,
}

/// A bug planted in the model, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Redelivery from the inbox ignores missing versions.
    RedeliversOverGaps,
    /// One missing version is accepted.
    OverlooksOne,
    /// An event that waits for a version is ordered by position, so it waits for ever for a version
    /// at a later position.
    WaitsByPosition,
    /// A waiting event counts as applied, so its successors are applied.
    CountsWhatWaits,
    /// After a failure, an event whose version gap was accepted waits for the missing version
    /// again.
    ForgetsRelease,
}

/// The treatment of an event whose preceding version is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnGap {
    /// The event is applied.
    Accept,
    /// The event waits.
    Hold,
}

/// The treatment of a key with a dead event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDead {
    /// The key waits for an operator.
    Hold,
    Continue,
}

/// The source of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// Pub/Sub delivers the messages for the first time.
    Stream,
    /// The messages are stored in the inbox.
    Inbox,
}

/// The settings of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub on_gap: OnGap,
    pub on_dead: OnDead,
    /// The number of failed attempts after which an event is dead.
    pub max_attempts: u32,
    pub planted: Option<PlantedBug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Done,
    /// Applied behind its key's position.
    Late,
    Retrying,
    /// Failed, and not retried without an operator.
    Dead,
    /// Given up by an operator.
    Discarded,
}

/// The time of a row's next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// No time of its own.
    Never,
    Timed,
    /// Never, because the row is dead and blocks its key.
    Infinity,
}

/// The reason why a row is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    Failed,
    /// A preceding version of the key is missing.
    VersionGap,
    /// An operator accepted the version gap.
    GapAccepted,
}

/// A row of `app_inbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub message: Message,
    pub status: Status,
    pub attempts: u32,
    pub due: Due,
    pub code: Option<Code>,
}

impl Row {
    /// Reports whether the row waits or blocks its key.
    fn is_waiting(&self) -> bool {
        self.status == Status::Retrying || self.due == Due::Infinity
    }

    fn by_position(&self) -> (i64, u64) {
        (0, self.message.position)
    }

    /// Sorts events without a version last.
    fn by_version(&self) -> (i64, u64) {
        (self.message.version.unwrap_or(i64::MAX), self.message.position)
    }
}

/// A row of `app_inbox_key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Key {
    /// The highest applied position.
    pub position: Option<u64>,
    /// The highest version applied or given up.
    pub version: Option<i64>,
    /// The event that blocks the key.
    pub held_by: Option<u32>,
}

/// The result for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The message has a row with this status.
    Recorded(Status),
    /// The event was recorded before.
    Duplicate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Applied,
    Failed(Code),
    Held(Option<Code>),
}

#[derive(Debug)]
pub struct Inbox {
    rules: Rules,
    pub rows: BTreeMap<u32, Row>,
    pub keys: BTreeMap<String, Key>,
    /// All applied events in the order of their application.
    pub applied: Vec<Message>,
}

impl Inbox {
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self { rules, rows: BTreeMap::new(), keys: BTreeMap::new(), applied: Vec::new() }
    }

    /// Applies a batch. Returns the result for each message.
    pub fn apply(
        &mut self,
        batch: &[Message],
        mut fails: impl FnMut(&Message) -> bool,
    ) -> Vec<Answer> {
        let mut answers = vec![Answer::Duplicate; batch.len()];
        let mut chosen = Vec::new();
        let held: Vec<String> = self.take(batch, &mut answers, &mut chosen);
        self.heads(&held, &[]);
        let messages: Vec<Message> = chosen.iter().map(|index| batch[*index].clone()).collect();
        let outcomes = self.run(&messages, From::Stream, &mut fails);
        let settled = self.settle(&messages, &outcomes, From::Stream);
        for (index, status) in chosen.into_iter().zip(settled) {
            answers[index] = Answer::Recorded(status);
        }
        answers
    }

    /// Records new messages and selects the messages for the handler. Returns the blocked keys.
    fn take(
        &mut self,
        batch: &[Message],
        answers: &mut [Answer],
        chosen: &mut Vec<usize>,
    ) -> Vec<String> {
        let mut held = Vec::new();
        let mut before: BTreeMap<&str, u64> = BTreeMap::new();
        for (index, message) in batch.iter().enumerate() {
            let key = self.keys.entry(message.key.clone()).or_default();
            if key.held_by.is_some() && !held.contains(&message.key) {
                held.push(message.key.clone());
            }
            let furthest = before.get(&*message.key).copied().max(key.position);
            before
                .entry(&message.key)
                .and_modify(|it| *it = message.position.max(*it))
                .or_insert(message.position);
            if self.rows.contains_key(&message.event) {
                continue;
            }
            let (status, attempts) = match key.held_by {
                Some(_) => (Status::Retrying, 0),
                None if furthest.is_some_and(|it| message.position < it) => (Status::Late, 1),
                None => (Status::Done, 1),
            };
            let row =
                Row { message: message.clone(), status, attempts, due: Due::Never, code: None };
            self.rows.insert(message.event, row);
            answers[index] = Answer::Recorded(status);
            if status != Status::Retrying {
                chosen.push(index);
            }
        }
        held
    }

    /// Applies due rows and their unblocked successors. Returns the attempted events with their new
    /// status.
    pub fn redeliver(&mut self, mut fails: impl FnMut(&Message) -> bool) -> Vec<(u32, Status)> {
        let messages = self.take_due();
        let outcomes = self.run(&messages, From::Inbox, &mut fails);
        let settled = self.settle(&messages, &outcomes, From::Inbox);
        messages.iter().map(|it| it.event).zip(settled).collect()
    }

    /// Returns the stored messages of the keys with a due row, in order, up to the first dead row.
    fn take_due(&self) -> Vec<Message> {
        let mut due = Vec::new();
        for key in self.keys.keys() {
            let mut waiting: Vec<&Row> = self.waiting(key).collect();
            let is_due = |row: &&Row| row.status == Status::Retrying && row.due == Due::Timed;
            if !waiting.iter().any(is_due) {
                continue;
            }
            let by_version = self.rules.on_gap == OnGap::Hold;
            waiting
                .sort_by_key(|row| if by_version { row.by_version() } else { row.by_position() });
            // A row without a time is attempted only after a due row of its key.
            let first = waiting.iter().position(|row| row.due != Due::Never);
            let open = waiting.split_off(first.unwrap_or(waiting.len()));
            let open = open.into_iter().take_while(|row| row.status == Status::Retrying);
            due.extend(open.map(|row| row.message.clone()));
        }
        due
    }

    fn waiting(&self, key: &str) -> impl Iterator<Item = &Row> {
        self.rows.values().filter(move |row| row.message.key == key && row.is_waiting())
    }

    /// Runs the handler on messages without a version gap. After a failure, no further message of
    /// the key is attempted.
    fn run(
        &mut self,
        messages: &[Message],
        from: From,
        fails: &mut impl FnMut(&Message) -> bool,
    ) -> Vec<Outcome> {
        let gaps = match self.rules.on_gap {
            OnGap::Hold => self.gaps(messages, from),
            OnGap::Accept => vec![None; messages.len()],
        };
        let mut failed: Vec<&str> = Vec::new();
        let mut outcomes = Vec::new();
        for (message, gap) in messages.iter().zip(&gaps) {
            outcomes.push(match gap {
                Some(outcome) => *outcome,
                None if failed.contains(&&*message.key) => Outcome::Held(None),
                None if fails(message) => {
                    failed.push(&message.key);
                    Outcome::Failed(Code::Failed)
                }
                None => {
                    self.applied.push(message.clone());
                    Outcome::Applied
                }
            });
        }
        Self::wait_behind(messages, &gaps, &mut outcomes);
        outcomes
    }

    /// Records the outcomes and returns the statuses. A row recorded as dead may become due again
    /// at once, if a later message of the batch brings the version that the row needs.
    fn settle(&mut self, messages: &[Message], outcomes: &[Outcome], from: From) -> Vec<Status> {
        let mut statuses = Vec::new();
        let mut touched: Vec<String> = Vec::new();
        let mut failed: Vec<Option<u32>> = Vec::new();
        for (message, outcome) in messages.iter().zip(outcomes) {
            let is_touched = from == From::Inbox || *outcome != Outcome::Applied;
            if is_touched && !touched.contains(&message.key) {
                touched.push(message.key.clone());
                failed.push(None);
            }
            if matches!(outcome, Outcome::Failed(_))
                && let Some(place) = touched.iter().position(|key| *key == message.key)
            {
                failed[place] = failed[place].max(Some(message.event));
            }
            match *outcome {
                Outcome::Applied if from == From::Inbox => self.record_applied(message),
                Outcome::Applied => {}
                Outcome::Failed(code) => self.record_failed(message, code, from),
                Outcome::Held(code) => self.record_held(message, code, from),
            }
            statuses.push(self.rows[&message.event].status);
        }
        for (message, _) in messages.iter().zip(outcomes).filter(|(_, it)| **it == Outcome::Applied)
        {
            let key = self.keys.entry(message.key.clone()).or_default();
            key.position = key.position.max(Some(message.position));
            key.version = key.version.max(message.version);
        }
        self.heads(&touched, &failed);
        statuses
    }

    fn row(&mut self, event: u32) -> &mut Row {
        self.rows.get_mut(&event).expect("an event that was taken has a row")
    }

    fn record_applied(&mut self, message: &Message) {
        let is_late = self.keys[&message.key].position.is_some_and(|it| message.position < it);
        let row = self.row(message.event);
        row.status = if is_late { Status::Late } else { Status::Done };
        row.attempts += 1;
        (row.due, row.code) = (Due::Never, None);
    }

    fn record_failed(&mut self, message: &Message, code: Code, from: From) {
        let Rules { on_dead, max_attempts, planted, .. } = self.rules;
        let row = self.row(message.event);
        let is_without_gap = row.code == Some(Code::GapAccepted);
        row.attempts = if from == From::Inbox { row.attempts + 1 } else { 1 };
        row.code = Some(code);
        (row.status, row.due) = match (row.attempts < max_attempts, on_dead) {
            (true, _) => (Status::Retrying, Due::Timed),
            (false, OnDead::Hold) => (Status::Dead, Due::Infinity),
            (false, OnDead::Continue) => (Status::Dead, Due::Never),
        };
        if row.status == Status::Dead && on_dead == OnDead::Continue {
            self.give_up(message.key.clone(), message.version);
        } else if is_without_gap && planted != Some(PlantedBug::ForgetsRelease) {
            self.give_up(message.key.clone(), message.version.map(|version| version - 1));
        }
    }

    fn record_held(&mut self, message: &Message, code: Option<Code>, from: From) {
        let row = self.row(message.event);
        if from == From::Inbox && row.code != Some(Code::GapAccepted) {
            row.code = code.or(row.code);
        } else if from == From::Stream {
            (row.status, row.attempts, row.code) = (Status::Retrying, 0, code);
        }
    }

    /// Records that the key no longer waits for this version.
    fn give_up(&mut self, key: String, version: Option<i64>) {
        let key = self.keys.entry(key).or_default();
        if key.version.is_some() {
            key.version = key.version.max(version);
        }
    }

    /// Retries an event, as `inbox retry` does. The request also means that a missing version will
    /// not arrive.
    pub fn retry(&mut self, event: u32) {
        let row = self.row(event);
        if row.status == Status::Dead {
            row.attempts = 0;
        }
        row.due = if row.due == Due::Timed { Due::Timed } else { Due::Never };
        row.status = Status::Retrying;
        if row.code == Some(Code::VersionGap) {
            row.code = Some(Code::GapAccepted);
        }
        let key = row.message.key.clone();
        self.heads(&[key], &[]);
    }

    /// Discards an event, as `inbox discard` does.
    pub fn discard(&mut self, event: u32) {
        let row = self.row(event);
        (row.status, row.due) = (Status::Discarded, Due::Never);
        let message = row.message.clone();
        self.give_up(message.key.clone(), message.version);
        self.heads(&[message.key], &[]);
    }
}
