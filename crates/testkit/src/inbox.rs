//! The inbox of one consumer, as its functions in SQL keep it: what simulations have instead of a database.
//!
//! ```text
//! apply:      take ──▶ gaps ──▶ run ──▶ settle ──▶ heads
//! redeliver:  due  ──▶ gaps ──▶ run ──▶ settle ──▶ heads
//! ```
//!
//! As naive as can be: rows in a map, looked through as a whole. That it decides as the functions do is tested
//! against them, step by step (`crates/inbox/tests/sql_functions/alike.rs`). Left out are what one session does
//! not meet (locks, deferred messages), two events of one id, several servers' positions, and clocks: what
//! waits for its time is due whenever somebody looks.

mod gaps;
mod heads;

use std::collections::BTreeMap;

/// An event as it is delivered. Its id is `e` and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Names the event.
    pub event: u32,
    /// Its ordering key; never empty.
    pub key: String,
    /// Its version in the key.
    pub version: Option<i64>,
    /// Where it stands in the producer's log; no two events stand in one place.
    pub position: u64,
}

/// What is wrong with a model that a judge has to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// What comes again out of the inbox is applied without a look at versions.
    RedeliversOverGaps,
    /// One missing version passes.
    OverlooksOne,
    /// What waits for a version is looked for by position: what is missing stands behind it for ever.
    WaitsByPosition,
    /// An event that waits is as good as applied: what follows it is.
    CountsWhatWaits,
    /// What was applied without a version and failed waits for that version again.
    ForgetsRelease,
}

/// What an event does before which a version of its key is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnGap {
    /// It is applied.
    Accept,
    /// It waits.
    Hold,
}

/// What a key does of which an event is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDead {
    /// It waits for a person.
    Hold,
    /// It goes on.
    Continue,
}

/// Where messages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// They are delivered for the first time.
    Stream,
    /// They were stored.
    Inbox,
}

/// What a consumer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// What an event does before which a version is missing.
    pub on_gap: OnGap,
    /// What a key does of which an event is dead.
    pub on_dead: OnDead,
    /// Attempts before an event is dead.
    pub max_attempts: u32,
    /// What is wrong, if anything is.
    pub planted: Option<Planted>,
}

/// What a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Applied.
    Done,
    /// Applied behind its key's position.
    Late,
    /// Waits.
    Retrying,
    /// Nobody tries it again by himself.
    Dead,
    /// Given up by a person.
    Discarded,
}

/// When a row is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Not by itself.
    Never,
    /// At some time.
    Timed,
    /// Dead, and it holds its key.
    Infinity,
}

/// Why a row is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The handler's error.
    Failed,
    /// A version of its key is missing before it.
    VersionGap,
    /// A person has said that it shall not wait for a version.
    GapAccepted,
}

/// A row of `app_inbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The event.
    pub message: Message,
    /// What became of it.
    pub status: Status,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is tried again.
    pub due: Due,
    /// Why it is not done.
    pub code: Option<Code>,
}

impl Row {
    /// Whether it waits or holds its key.
    fn is_waiting(&self) -> bool {
        self.status == Status::Retrying || self.due == Due::Infinity
    }

    fn by_position(&self) -> (i64, u64) {
        (0, self.message.position)
    }

    /// Those without a version come last.
    fn by_version(&self) -> (i64, u64) {
        (self.message.version.unwrap_or(i64::MAX), self.message.position)
    }
}

/// A row of `app_inbox_key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Key {
    /// The furthest position applied.
    pub position: Option<u64>,
    /// The highest version applied, or given up.
    pub version: Option<i64>,
    /// The event that holds it.
    pub held_by: Option<u32>,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Its row has this status now.
    Recorded(Status),
    /// It was seen before.
    Duplicate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Applied,
    Failed(Code),
    Held(Option<Code>),
}

/// The inbox of one consumer.
#[derive(Debug)]
pub struct Inbox {
    rules: Rules,
    /// Rows, by event.
    pub rows: BTreeMap<u32, Row>,
    /// Ordering keys.
    pub keys: BTreeMap<String, Key>,
    /// Everything that has taken effect, in that order.
    pub applied: Vec<Message>,
}

impl Inbox {
    /// With nothing in it.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self { rules, rows: BTreeMap::new(), keys: BTreeMap::new(), applied: Vec::new() }
    }

    /// Applies a batch; what became of each message.
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

    /// Records what is unseen, and chooses what the handler is to see. Returns the keys that are held.
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

    /// Applies what is due, and what can follow it; what was tried, with its status now.
    pub fn redeliver(&mut self, mut fails: impl FnMut(&Message) -> bool) -> Vec<(u32, Status)> {
        let messages = self.take_due();
        let outcomes = self.run(&messages, From::Inbox, &mut fails);
        let settled = self.settle(&messages, &outcomes, From::Inbox);
        messages.iter().map(|it| it.event).zip(settled).collect()
    }

    /// The stored messages of the keys of which something is due, in order, up to what holds them.
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
            // What has no time follows what is due, and begins nothing.
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

    /// What a handler makes of what does not come too soon: after a failure nothing of its key is tried.
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

    /// Writes down what became of these. Returns their statuses; what is dead then may wait again at once,
    /// because a message behind it has brought the version that it waits for.
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
        } else if is_without_gap && planted != Some(Planted::ForgetsRelease) {
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

    /// Nobody waits for this version any more.
    fn give_up(&mut self, key: String, version: Option<i64>) {
        let key = self.keys.entry(key).or_default();
        if key.version.is_some() {
            key.version = key.version.max(version);
        }
    }

    /// What `inbox retry` does: whoever asks for it knows that a version will not come.
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

    /// What `inbox discard` does.
    pub fn discard(&mut self, event: u32) {
        let row = self.row(event);
        (row.status, row.due) = (Status::Discarded, Due::Never);
        let message = row.message.clone();
        self.give_up(message.key.clone(), message.version);
        self.heads(&[message.key], &[]);
    }
}
