//! The plan of a seed: the relay's settings, the faults, and the timeline of events.

mod again;
mod outages;

use std::time::Duration;

use walrelay_core::{Backoff, ConcurrencyLimits, FailureClass, LanePolicy, OnDead, WalBudgetLimit};
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::{ConnectionBehavior, KeepalivePosition};

use crate::{pubsub, table};

/// The number of steps of a reset.
pub(crate) const RESET_STEPS: u64 = 5;

/// All decisions about a run that are made before it starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) lanes: LanePolicy,
    pub(crate) window: ConcurrencyLimits,
    pub(crate) budget_bytes: usize,
    pub(crate) wal_budget: WalBudgetLimit,
    pub(crate) socket_bytes: usize,
    pub(crate) manners: ConnectionBehavior,
    pub(crate) pubsub: pubsub::Intervals,
    pub(crate) table: table::Intervals,
    pub(crate) per_key_rows: usize,
    pub(crate) rows: RowPlan,
    /// The number of concurrent processes.
    pub(crate) instances: usize,
    pub(crate) take_over_after: Option<Duration>,
    /// In order of time.
    pub(crate) timeline: Vec<(Duration, Action)>,
}

/// The properties of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPlan {
    pub(crate) topics: u64,
    pub(crate) keys: u64,
    pub(crate) unkeyed_per_mille: u64,
    pub(crate) unroutable_per_mille: u64,
    pub(crate) poison_per_mille: u64,
    pub(crate) payload_bytes_max: usize,
}

/// An event of a run.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Interleaved transactions with these numbers of rows. Some are rolled back.
    Commit {
        rows: Vec<usize>,
    },
    /// One transaction with these rows.
    CommitRows {
        rows: Vec<RowSpec>,
    },
    /// WAL without outbox rows.
    Foreign {
        bytes: u64,
    },
    Checkpoint,
    Cut,
    Stall {
        time: Duration,
    },
    ServerCrash {
        down: Duration,
        /// The time that the restarted server stays a standby before its promotion.
        recovery: Duration,
    },
    ServerShutdown {
        down: Duration,
    },
    ProcessCrash,
    /// One process is frozen.
    Freeze {
        time: Duration,
    },
    Stop,
    StopAll,
    InjectFailure {
        scope: Scope,
        class: FailureClass,
        time: Duration,
    },
    /// One key is refused, and gets so many rows at once.
    FailingBurst {
        key: Option<u64>,
        rows: usize,
        class: FailureClass,
        time: Duration,
    },
    /// One key gets so many consecutive rows that are refused for ever.
    PoisonRun {
        rows: usize,
    },
    /// Checks that every row of this key of the first topic is stored, and that the slot is
    /// confirmed up to a moment ago. Failing keys must not delay other keys.
    ExpectFlow {
        key: u64,
    },
    /// Checks that the retained WAL is within this limit.
    ExpectLagWithin {
        bytes: u64,
    },
    /// Checks that no row is dead.
    ExpectNoneDead,
    TableDown {
        time: Duration,
    },
    RetryDead,
    RetryTopic,
    RetryOne,
    DiscardOne,
    /// Replays the history of one key before its pending rows.
    ReplayInPlace {
        key: Option<u64>,
    },
    /// Resets the slot to a position at this per mille between the anchor and the settled position.
    Reset {
        per_mille: u64,
        /// All processes end after this step of the reset.
        dies_after: Option<u64>,
    },
    /// Replays a range of WAL to a separate topic. Both ends are in per mille between the anchor
    /// and the end of WAL.
    ReplayToTopic {
        first: u64,
        last: u64,
    },
    /// Kills the process of a replay, or asks it to stop. Another process resumes the replay.
    KillReplay,
    StopReplay,
}

/// One row of the first topic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSpec {
    pub(crate) key: u64,
    pub(crate) kind: RowKind,
}

/// The fate of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowKind {
    Good,
    /// Refused by Pub/Sub.
    Poison,
    /// Refused before it is sent.
    Unroutable,
}

/// The scope of an injected failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Everything,
    Topic,
    Key,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Plan {
    /// Draws the plan of a seed.
    pub(crate) fn of(seed: &mut Seed) -> Self {
        let load = if seed.chance(30) { Load::Heavy } else { Load::Light };
        let pubsub = pubsub::Intervals {
            latency_max: ms(*seed.pick(&[2, 20, 200])),
            transient: rarely(seed, 200),
            lost_reply: rarely(seed, 100),
            slow: rarely(seed, 50),
            black_hole: rarely(seed, 15),
        };
        let table = table::Intervals {
            latency_max: ms(*seed.pick(&[2, 50, 1_500])),
            fails_before: rarely(seed, 200),
            fails_after: rarely(seed, 100),
            done_late: rarely(seed, 500),
        };
        let rows = RowPlan {
            topics: seed.between(1, 3),
            keys: *seed.pick(&[1, 2, 5, 20, 300]),
            unkeyed_per_mille: *seed.pick(&[0, 0, 100, 500]),
            unroutable_per_mille: rarely(seed, 30),
            poison_per_mille: rarely(seed, 60),
            payload_bytes_max: match load {
                Load::Heavy => 8_000,
                Load::Light => *seed.pick(&[30, 300, 1_500]),
            },
        };
        let take_over_after = *seed.pick(&[None, Some(ms(3_000)), Some(ms(20_000))]);
        Self {
            lanes: lanes(seed),
            window: ConcurrencyLimits { min: seed.count(1, 8), max: seed.count(8, 64) },
            budget_bytes: match load {
                Load::Heavy => 64 << 10,
                Load::Light => *seed.pick(&[16 << 10, 1 << 20]),
            },
            wal_budget: *seed.pick(&[
                WalBudgetLimit::Off,
                WalBudgetLimit::Bytes(64 << 10),
                WalBudgetLimit::Bytes(400 << 10),
            ]),
            socket_bytes: *seed.pick(&[64, 4_096, 65_536]),
            manners: manners(seed, take_over_after),
            pubsub,
            table,
            per_key_rows: *seed.pick(&[1, 3, 500]),
            rows,
            instances: *seed.pick(&[1, 1, 2, 3]),
            take_over_after,
            timeline: timeline(seed, load),
        }
    }
}

impl Plan {
    /// Returns a plan without faults and with only these events, each with its time in
    /// milliseconds, in any order.
    pub(crate) fn calm(timeline: impl IntoIterator<Item = (u64, Action)>) -> Self {
        let backoff = |base, cap| Backoff { base: ms(base), cap: Duration::from_secs(cap) };
        Self {
            lanes: LanePolicy {
                batch_messages: 50,
                batch_bytes: 9_000_000,
                transient: backoff(100, 60),
                operator: backoff(1_000, 60),
                redelivery: backoff(1_000, 60),
                park_after: ms(2_000),
                max_attempts: 20,
                parked_lanes: 1_000,
                on_dead: OnDead::Continue,
            },
            window: ConcurrencyLimits { min: 8, max: 64 },
            budget_bytes: 1 << 20,
            wal_budget: WalBudgetLimit::Off,
            socket_bytes: 65_536,
            manners: ConnectionBehavior {
                write_bytes_max: 65_536,
                pause_per_mille: 0,
                pause_max: Duration::ZERO,
                keepalive_per_mille: 0,
                reply_patience: ms(7_500),
                in_transaction: KeepalivePosition::BeforeItsCommit,
            },
            pubsub: pubsub::Intervals::HEALTHY,
            table: table::Intervals::HEALTHY,
            per_key_rows: 500,
            rows: RowPlan {
                topics: 1,
                keys: 3,
                unkeyed_per_mille: 0,
                unroutable_per_mille: 0,
                poison_per_mille: 0,
                payload_bytes_max: 100,
            },
            instances: 1,
            take_over_after: None,
            timeline: in_order(timeline),
        }
    }

    /// An outage with far more rows than the budget.
    pub(crate) fn flood() -> Self {
        let class = FailureClass::Transient;
        let outage = Action::InjectFailure { scope: Scope::Everything, class, time: ms(20_000) };
        let mut plan = Self::calm(vec![
            (100, outage),
            (500, Action::Commit { rows: vec![200; 3] }),
            (15_000, Action::Checkpoint),
        ]);
        plan.budget_bytes = 64 << 10;
        plan.rows.payload_bytes_max = 8_000;
        plan
    }

    /// A refused key with several times the rows of the budget, beside a healthy key with two rows
    /// a second.
    pub(crate) fn one_failing_key_beyond_the_budget() -> Self {
        let class = FailureClass::Operator;
        let time = Duration::from_secs(3_600);
        let healthy = || Action::CommitRows { rows: vec![RowSpec { key: 2, kind: RowKind::Good }] };
        let mut timeline: Vec<_> = (0..60).map(|half| (half * 500, healthy())).collect();
        timeline.push((1_100, Action::FailingBurst { key: Some(1), rows: 700, class, time }));
        timeline.push((5_100, Action::FailingBurst { key: Some(1), rows: 700, class, time }));
        timeline.push((29_900, Action::ExpectFlow { key: 2 }));
        let mut plan = Self::calm(timeline);
        plan.budget_bytes = 64 << 10;
        plan.lanes.park_after = ms(5_000);
        plan
    }

    /// A minute in which Pub/Sub is down or does not reply, with some rows and much other WAL.
    pub(crate) fn outage_beyond_the_wal_budget(seed: u64) -> Self {
        const BUDGET: u64 = 256 << 10;
        let class = FailureClass::Transient;
        let outage = Action::InjectFailure { scope: Scope::Everything, class, time: ms(60_000) };
        let mut timeline = vec![(1_000, outage)];
        for tenth in 0..600 {
            timeline.push((1_500 + tenth * 100, Action::Foreign { bytes: 8 << 10 }));
        }
        for second in 0..60 {
            timeline.push((1_700 + second * 1_000, Action::Commit { rows: vec![4, 2] }));
            // WAL written between two measurements may be on top of the budget.
            let expected = Action::ExpectLagWithin { bytes: BUDGET + (100 << 10) };
            timeline.push((1_650 + second * 1_000, expected));
        }
        if seed.is_multiple_of(2) {
            timeline.push((30_000, Action::ProcessCrash));
            timeline.push((40_000, Action::Cut));
        }
        let mut plan = Self::calm(timeline);
        plan.wal_budget = WalBudgetLimit::Bytes(BUDGET);
        plan.lanes.park_after = ms(30_000);
        plan
    }

    /// The same plan with restarts of the process in the middle.
    pub(crate) fn one_failing_key_and_a_restart() -> Self {
        let mut plan = Self::one_failing_key_beyond_the_budget();
        plan.timeline.push((ms(1_200), Action::ProcessCrash));
        plan.timeline.push((ms(9_000), Action::ProcessCrash));
        plan.timeline.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Reading dispatch state takes longer than the server waits for a status update.
    pub(crate) fn slow_table() -> Self {
        let rows = || Action::Commit { rows: vec![5] };
        let mut plan = Self::calm(vec![
            (500, rows()),
            (1_000, Action::ProcessCrash),
            (2_000, rows()),
            (90_000, Action::ProcessCrash),
            (95_000, rows()),
        ]);
        plan.table.latency_max = ms(40_000);
        plan
    }

    /// Endless traffic, slow replies, and parked keys that become due.
    pub(crate) fn caught_up_again_and_again() -> Self {
        let class = FailureClass::Operator;
        let timeline =
            (0..120).map(|half| (half * 500, Action::Commit { rows: vec![4, 2] })).chain([
                (1_100, Action::FailingBurst { key: Some(1), rows: 30, class, time: ms(15_000) }),
                // The next process finds these rows due.
                (5_100, Action::ProcessCrash),
                (5_101, Action::RetryTopic),
                (12_100, Action::FailingBurst { key: Some(2), rows: 3, class, time: ms(9_000) }),
                (26_100, Action::RetryTopic),
                (40_100, Action::Cut),
            ]);
        let mut plan = Self::calm(timeline);
        plan.rows.keys = 20;
        plan.pubsub.latency_max = ms(120);
        plan.table.latency_max = ms(50);
        plan
    }

    /// Processes that end once they have caught up, during an outage with spilled rows.
    pub(crate) fn caught_up_after_an_outage() -> Self {
        let mut plan = Self::outage_beyond_the_wal_budget(0);
        // While a process drains, and between two processes, the WAL budget is not enforced.
        plan.timeline.retain(|(_, action)| !matches!(action, Action::ExpectLagWithin { .. }));
        plan.table.latency_max = ms(50);
        plan
    }

    /// Replays in place under traffic, with processes that end in the middle.
    pub(crate) fn replays_under_traffic() -> Self {
        let timeline = (0..120)
            .map(|half| (half * 500, Action::Commit { rows: vec![4, 2] }))
            .chain((0..10).map(|at| (4_100 + at * 5_000, Action::ReplayInPlace { key: None })))
            .chain((0..12).map(|at| (5_900 + at * 4_500, Action::ProcessCrash)));
        let mut plan = Self::calm(timeline);
        plan.rows.keys = 5;
        plan.pubsub.latency_max = ms(120);
        plan.table.latency_max = ms(50);
        plan
    }

    /// A held key without pending rows, whose process ends after its answer.
    pub(crate) fn held_over_a_restart() -> Self {
        let rows = || Action::CommitRows { rows: vec![RowSpec { key: 1, kind: RowKind::Good }; 3] };
        Self::calm(vec![
            (100, rows()),
            (2_000, Action::ReplayInPlace { key: Some(1) }),
            (5_000, Action::ProcessCrash),
            (9_000, rows()),
            (9_500, Action::Checkpoint),
        ])
    }

    /// A key that is parked while an earlier row is in flight. The process ends before the reply.
    pub(crate) fn parked_behind_a_row_that_is_out() -> Self {
        let row = |kind| RowSpec { key: 1, kind };
        let mut plan = Self::calm(vec![
            (1_000, Action::CommitRows { rows: vec![row(RowKind::Good)] }),
            (
                1_050,
                Action::CommitRows { rows: vec![row(RowKind::Good), row(RowKind::Unroutable)] },
            ),
            (3_000, Action::ProcessCrash),
        ]);
        plan.lanes.on_dead = OnDead::Hold;
        plan.pubsub.latency_max = ms(20_000);
        // The slot sends the row again more slowly than the table is read.
        plan.manners.pause_per_mille = 1_000;
        plan.manners.pause_max = ms(200);
        plan
    }
}

fn lanes(seed: &mut Seed) -> LanePolicy {
    let backoff = |base, cap| Backoff { base: ms(base), cap: Duration::from_secs(cap) };
    LanePolicy {
        batch_messages: *seed.pick(&[1, 4, 50, 1_000]),
        batch_bytes: *seed.pick(&[3_000, 9_000_000]),
        transient: backoff(100, *seed.pick(&[2, 60])),
        operator: backoff(1_000, 60),
        redelivery: backoff(*seed.pick(&[200, 1_000]), 60),
        park_after: seed.time(ms(500), ms(6_000)),
        max_attempts: *seed.pick(&[2, 5, 20]),
        parked_lanes: *seed.pick(&[1, 3, 1_000]),
        on_dead: *seed.pick(&[OnDead::Continue, OnDead::Hold]),
    }
}

fn manners(seed: &mut Seed, take_over_after: Option<Duration>) -> ConnectionBehavior {
    ConnectionBehavior {
        write_bytes_max: *seed.pick(&[40, 1_000, 65_536, 65_536]),
        pause_per_mille: *seed.pick(&[0, 0, 5, 50]),
        pause_max: ms(*seed.pick(&[1, 30])),
        keepalive_per_mille: *seed.pick(&[0, 50, 300]),
        // Half of the timeout that the relay sets, or a little less.
        reply_patience: ms(*seed.pick(&[6_000, 7_500]))
            .min(take_over_after.unwrap_or(Duration::MAX) / 2),
        in_transaction: *seed
            .pick(&[KeepalivePosition::BeforeItsCommit, KeepalivePosition::EndOfLog]),
    }
}

/// Sorts the events by time. Events of the same time keep their order.
fn in_order(timeline: impl IntoIterator<Item = (u64, Action)>) -> Vec<(Duration, Action)> {
    let mut in_order: Vec<_> = timeline.into_iter().map(|(at, action)| (ms(at), action)).collect();
    in_order.sort_by_key(|(at, _)| *at);
    in_order
}

fn timeline(seed: &mut Seed, load: Load) -> Vec<(Duration, Action)> {
    let length = seed.time(ms(2_000), ms(40_000));
    let mut timeline = Vec::new();
    let mut at =
        |moment: &mut Seed, action| timeline.push((moment.time(Duration::ZERO, length), action));
    for _ in 0..seed.count(2, 25) {
        let rows = (0..seed.count(1, 3)).map(|_| transaction_rows(seed)).collect();
        at(seed, Action::Commit { rows });
    }
    if load == Load::Heavy {
        let class = FailureClass::Transient;
        at(seed, Action::InjectFailure { scope: Scope::Everything, class, time: length });
        at(seed, Action::Commit { rows: vec![250] });
    }
    for _ in 0..seed.count(0, 6) {
        let bytes = seed.between(8, 100_000);
        at(seed, Action::Foreign { bytes });
    }
    for _ in 0..seed.count(0, 3) {
        at(seed, Action::Checkpoint);
    }
    for _ in 0..seed.count(0, 4) {
        let class = *seed.pick(&[FailureClass::Transient, FailureClass::Operator]);
        let scope = *seed.pick(&[Scope::Everything, Scope::Topic, Scope::Key, Scope::Key]);
        let time = seed.time(ms(500), ms(20_000));
        at(seed, Action::InjectFailure { scope, class, time });
    }
    if seed.chance(300) {
        let class = *seed.pick(&[FailureClass::Transient, FailureClass::Operator]);
        let time = seed.time(ms(500), ms(20_000));
        let rows = seed.count(20, 400);
        at(seed, Action::FailingBurst { key: None, rows, class, time });
    }
    if seed.chance(150) {
        let rows = seed.count(2, 120);
        at(seed, Action::PoisonRun { rows });
    }
    for _ in 0..seed.count(0, 10) {
        let action = seed.pick(ACCIDENTS)(seed);
        at(seed, action);
    }
    // A separate seed, so that the other events are the same with and without replays.
    let mut replays = seed.clone().fork();
    if replays.chance(300) {
        for _ in 0..replays.count(1, 6) {
            let moment = replays.time(Duration::ZERO, length);
            timeline.push((moment, Action::ReplayInPlace { key: None }));
        }
    }
    draw_again(&mut replays.fork(), length, &mut timeline);
    timeline.sort_by_key(|(moment, _)| *moment);
    timeline
}

/// Adds resets to some seeds, replays to a topic to others, and both to a few.
fn draw_again(seed: &mut Seed, length: Duration, timeline: &mut Vec<(Duration, Action)>) {
    let mut at =
        |moment: &mut Seed, action| timeline.push((moment.time(Duration::ZERO, length), action));
    if seed.chance(200) {
        for _ in 0..seed.between(1, 3) {
            let dies_after = seed.chance(500).then(|| seed.between(1, RESET_STEPS));
            let per_mille = *seed.pick(&[0, 300, 800, 1_000]);
            at(seed, Action::Reset { per_mille, dies_after });
        }
    }
    if seed.chance(200) {
        let (first, last) = (*seed.pick(&[0, 0, 300]), *seed.pick(&[600, 1_000, 1_000]));
        at(seed, Action::ReplayToTopic { first, last });
        for _ in 0..seed.between(0, 4) {
            let action = if seed.chance(700) { Action::KillReplay } else { Action::StopReplay };
            at(seed, action);
        }
    }
}

/// The faults, some of them with double weight.
const ACCIDENTS: &[fn(&mut Seed) -> Action] = &[
    |_| Action::Cut,
    |_| Action::Cut,
    |seed| Action::Stall { time: seed.time(ms(100), ms(20_000)) },
    |seed| Action::ServerCrash { down: seed.time(ms(100), ms(5_000)), recovery: ms(0) },
    |seed| Action::ServerCrash {
        down: seed.time(ms(100), ms(5_000)),
        recovery: seed.time(ms(100), ms(10_000)),
    },
    |seed| Action::Freeze { time: seed.time(ms(100), ms(20_000)) },
    |seed| Action::Freeze { time: seed.time(ms(100), ms(20_000)) },
    |seed| Action::ServerShutdown { down: seed.time(ms(100), ms(5_000)) },
    |_| Action::ProcessCrash,
    |_| Action::ProcessCrash,
    |_| Action::Stop,
    |_| Action::Stop,
    |seed| Action::TableDown { time: seed.time(ms(100), ms(10_000)) },
    |_| Action::RetryDead,
    |_| Action::RetryTopic,
    |_| Action::RetryOne,
    |_| Action::DiscardOne,
];

/// Returns a rate, which is zero in some seeds so that other faults show.
fn rarely(seed: &mut Seed, per_mille: u64) -> u64 {
    match seed.chance(400) {
        true => 0,
        false => seed.between(0, per_mille),
    }
}

/// Whether the rows exceed the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Light,
    Heavy,
}

fn transaction_rows(seed: &mut Seed) -> usize {
    match seed.between(0, 99) {
        0 => seed.count(100, 300),
        1..20 => 0,
        _ => seed.count(1, 8),
    }
}
