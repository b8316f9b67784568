//! A random script of steps on a store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use pgoutput_parser::{Lsn, PgTimestamp, Position};
use proptest::prelude::*;
use prost::Message as _;
use walrelay_core::{
    Backoff, ClaimAnswer, ClaimKey, FailureCause, FailureClass, Finished, LanePolicy, Lanes,
    Message, OnDead, Outcome, PublishFailure, RecordReason, RowToRecord, Topic, Tracker,
};

/// Due times are odd multiples of five minutes, and time passes in even ones. The seconds of real
/// execution then never affect the result.
const SOON: Duration = Duration::from_secs(300);
const LATE: Duration = Duration::from_secs(3_900);

/// One step of a script.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Park(Vec<(usize, ParkReason)>),
    ParkAgain,
    Claim {
        chosen: u8,
        bytes_max: usize,
    },
    Finish(Vec<ClaimFate>),
    Due,
    /// Queries whether spilled rows that were committed before this position are pending.
    Spilled(u64),
    Open {
        from: u64,
        page: u32,
    },
    RetryDead,
    RetryTopic(usize),
    Discard(u64),
    /// Requests the hold of a key for a replay.
    Hold(usize),
    /// Adds a row at this position to the history of a key.
    AddHistory(usize, u64),
    /// Lifts the hold of a key.
    Lift(usize),
    /// Records that everything before this position is settled.
    Settled(u64),
    Elapse(Duration),
}

/// The reason for recording a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParkReason {
    Stuck(Option<Duration>),
    Spilled(Option<Duration>),
    Queued,
    Dead,
}

/// The fate of a claimed row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClaimFate {
    Published,
    Released,
    Failed(Option<Duration>, FailureCause),
    Dead,
    /// The reply is never recorded.
    Forgotten,
}

const TOPICS: [&str; 2] = ["projects/p/topics/a", "projects/p/topics/b"];
const KEYS: [(usize, &str); 5] = [(0, "k1"), (0, "k2"), (0, ""), (1, "k1"), (1, "")];

/// Returns topic and ordering key of the key with this index.
pub(crate) fn key(index: usize) -> (&'static str, &'static str) {
    let (of_topic, name) = KEYS[index];
    (topic(of_topic), name)
}

pub(crate) fn topic(index: usize) -> &'static str {
    TOPICS[index % TOPICS.len()]
}

/// Draws the position from which rows wait for a recovery. Most scripts have none.
pub(crate) fn any_bound() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(u64::MAX), 1 => 2_u64..20]
}

pub(crate) fn any_on_dead() -> impl Strategy<Value = OnDead> {
    prop_oneof![Just(OnDead::Continue), Just(OnDead::Hold)]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..25)
}

fn step() -> impl Strategy<Value = Step> {
    let row = (0..KEYS.len(), why());
    let small = prop_oneof![Just(1_usize), Just(300), Just(1_000)];
    prop_oneof![
        5 => prop::collection::vec(row, 1..6).prop_map(Step::Park),
        1 => Just(Step::ParkAgain),
        5 => (1_u8..32, prop_oneof![3 => Just(1_usize << 20), 1 => small])
            .prop_map(|(chosen, bytes_max)| Step::Claim { chosen, bytes_max }),
        5 => prop::collection::vec(what(), 1..6).prop_map(Step::Finish),
        2 => Just(Step::Due),
        2 => (1_u64..40).prop_map(Step::Spilled),
        1 => (0_u64..40, 1_u32..10).prop_map(|(from, page)| Step::Open { from, page }),
        1 => Just(Step::RetryDead),
        1 => (0..TOPICS.len()).prop_map(Step::RetryTopic),
        1 => (1_u64..30).prop_map(Step::Discard),
        2 => (0..KEYS.len()).prop_map(Step::Hold),
        3 => (0..KEYS.len(), 1_u64..30).prop_map(|(key, number)| Step::AddHistory(key, number)),
        1 => (0..KEYS.len()).prop_map(Step::Lift),
        2 => (1_u64..40).prop_map(Step::Settled),
        3 => prop_oneof![Just(600_u64), Just(3_600)]
            .prop_map(|time| Step::Elapse(Duration::from_secs(time))),
    ]
}

fn a_delay() -> impl Strategy<Value = Option<Duration>> {
    prop_oneof![Just(None), Just(Some(Duration::ZERO)), Just(Some(SOON)), Just(Some(LATE))]
}

fn why() -> impl Strategy<Value = ParkReason> {
    prop_oneof![
        4 => a_delay().prop_map(ParkReason::Stuck),
        4 => a_delay().prop_map(ParkReason::Spilled),
        3 => Just(ParkReason::Queued),
        2 => Just(ParkReason::Dead),
    ]
}

fn what() -> impl Strategy<Value = ClaimFate> {
    prop_oneof![
        3 => Just(ClaimFate::Published),
        2 => Just(ClaimFate::Released),
        3 => (a_delay(), prop_oneof![Just(FailureCause::Row), Just(FailureCause::Nobody)])
            .prop_map(|(after, blame)| ClaimFate::Failed(after, blame)),
        2 => Just(ClaimFate::Dead),
        1 => Just(ClaimFate::Forgotten),
    ]
}

/// Formats a time rounded to minutes.
pub(crate) fn rounded_minutes(time: Option<Duration>) -> String {
    match time {
        None => "-".to_owned(),
        Some(time) => format!("{}", (time.as_secs() + 30) / 60),
    }
}

/// The keys of a script, as the lanes claim them.
pub(crate) struct Keys(Vec<ClaimKey>);

impl Keys {
    pub(crate) fn new() -> Self {
        let never = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
        let policy = LanePolicy {
            batch_messages: 1,
            batch_bytes: 1,
            transient: never,
            operator: never,
            redelivery: never,
            park_after: Duration::ZERO,
            parked_lanes: 1_000,
            max_attempts: 1,
            on_dead: OnDead::Continue,
        };
        let (mut lanes, now) = (Lanes::new(policy, 1), Instant::now());
        for (topic, key) in KEYS {
            lanes.load_parked(&Topic::from(TOPICS[topic]), key, None, now);
        }
        lanes.wake(now);
        let mut claims = lanes.claims(KEYS.len(), now);
        claims.sort_by_key(|claim| {
            KEYS.iter().position(|(topic, key)| {
                TOPICS[*topic] == &*claim.topic && *key == &*claim.ordering_key
            })
        });
        assert_eq!(claims.len(), KEYS.len());
        Self(claims)
    }

    /// Returns the chosen keys. If capacity is short, the store may choose freely among unordered
    /// rows, so the empty keys are left out.
    pub(crate) fn to_claim(&self, chosen: u8, bytes_max: usize) -> Vec<ClaimKey> {
        let is_short = bytes_max < 1 << 20;
        let keys = self.0.iter().enumerate().filter(|(index, key)| {
            chosen & (1 << index) != 0 && !(is_short && key.ordering_key.is_empty())
        });
        keys.map(|(_, key)| key.clone()).collect()
    }
}

/// The relay's side of a script: the recorded rows and the claimed rows.
pub(crate) struct ScriptedRelay {
    tracker: Tracker,
    last_row: u64,
    last_rows: Vec<(u64, usize, ParkReason)>,
    /// By position and id: a replayed row has the position of its original.
    held: BTreeMap<(Position, String), Message>,
    /// The key of each recorded row.
    keys: BTreeMap<u64, usize>,
}

impl ScriptedRelay {
    pub(crate) fn new() -> Self {
        let mut tracker = Tracker::new();
        tracker.begin(PgTimestamp::from_system_time(std::time::SystemTime::UNIX_EPOCH));
        let (held, keys) = (BTreeMap::new(), BTreeMap::new());
        Self { tracker, last_row: 0, last_rows: Vec::new(), held, keys }
    }

    pub(crate) fn rows_to_record(
        &mut self,
        keys: &Keys,
        rows: &[(usize, ParkReason)],
    ) -> Vec<RowToRecord> {
        let numbers = self.last_row + 1..;
        self.last_row += rows.len() as u64;
        self.last_rows = numbers.zip(rows).map(|(n, (key, why))| (n, *key, *why)).collect();
        self.keys.extend(self.last_rows.iter().map(|(number, key, _)| (*number, *key)));
        self.same_rows_again(keys)
    }

    pub(crate) fn same_rows_again(&mut self, keys: &Keys) -> Vec<RowToRecord> {
        let rows = self.last_rows.clone();
        rows.into_iter()
            .map(|(number, key, why)| RowToRecord {
                lane: Some(keys.0[key].lane),
                message: message(number, &keys.0[key]),
                ticket: self.tracker.open(),
                reason: reason(why),
            })
            .collect()
    }

    pub(crate) fn take(&mut self, claimed: Vec<ClaimAnswer>) {
        for (message, _) in claimed.into_iter().flat_map(|claimed| claimed.rows) {
            self.held.insert((message.position(), message.event_id().to_owned()), message);
        }
    }

    /// Returns the position of the last row that the relay has read.
    pub(crate) fn through(&self) -> Position {
        Position { commit_lsn: Lsn::new(self.last_row), tx_index: 0 }
    }

    /// Returns whether the history of a key may have a row there: the key has no other row at that
    /// position.
    pub(crate) fn may_repeat(&self, key: usize, row: u64) -> bool {
        self.keys.get(&row).is_none_or(|other| *other != key)
    }

    /// Returns an outcome for every claimed row, in turn.
    pub(crate) fn finish(&mut self, outcomes: &[ClaimFate]) -> Vec<Finished> {
        let held = std::mem::take(&mut self.held);
        let finished = held.into_values().zip(outcomes.iter().cycle());
        finished
            .filter_map(|(message, what)| Some(Finished { message, outcome: outcome(*what)? }))
            .collect()
    }
}

/// Encodes a message of a key.
pub(crate) fn body(ordering_key: &str) -> Vec<u8> {
    let body = PubsubMessage {
        data: vec![7; 40].into(),
        ordering_key: ordering_key.to_owned(),
        ..PubsubMessage::default()
    };
    body.encode_to_vec()
}

fn message(number: u64, key: &ClaimKey) -> Message {
    let position = Position { commit_lsn: Lsn::new(number), tx_index: 0 };
    let topic = Topic::clone(&key.topic);
    Message::from_encoded(topic, position, &format!("e{number}"), &body(&key.ordering_key))
        .expect("a message")
}

fn failure() -> Arc<PublishFailure> {
    Arc::new(PublishFailure::new(
        FailureClass::Transient,
        walrelay_core::CallCode::Unavailable,
        "made up",
    ))
}

fn reason(why: ParkReason) -> RecordReason {
    match why {
        ParkReason::Stuck(next_attempt_in) => {
            RecordReason::Stuck { failure: failure(), next_attempt_in }
        }
        ParkReason::Spilled(next_attempt_in) => {
            RecordReason::Spilled { failure: None, next_attempt_in }
        }
        ParkReason::Queued => RecordReason::Queued,
        ParkReason::Dead => RecordReason::Dead { failure: failure() },
    }
}

fn outcome(what: ClaimFate) -> Option<Outcome> {
    Some(match what {
        ClaimFate::Published => Outcome::Published { message_id: "m".to_owned() },
        ClaimFate::Released => Outcome::released(9),
        ClaimFate::Failed(after, blame) => {
            Outcome::Again { attempts: 3, after, failure: Some(failure()), blame }
        }
        ClaimFate::Dead => Outcome::Dead { attempts: 4, failure: failure() },
        ClaimFate::Forgotten => return None,
    })
}
