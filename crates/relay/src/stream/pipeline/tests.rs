//! Tests of the flow's own decisions. The simulation tests the loop as a whole.

use pgoutput_parser::{Lsn, PgTimestamp, Position, encode};
use walrelay_core::{
    AttributeStyle, Backoff, Batch, BudgetLimits, ColumnNames, ConcurrencyLimits,
    ConcurrencyWindow, ContinuityProof, Delivery, EditedMessages, Held, LanePolicy, Message,
    OnDead, PublishFailure, RouterConfig, SystemIdentifierMode, Template, WalBudgetLimit,
    WalRetentionLimit,
};
use walrelay_outbox_store::{Head, RecordedPage};

use super::*;
use crate::observe::health::Health;
use crate::observe::metrics::Metrics;

const HOUR: Duration = Duration::from_secs(3_600);

/// A flow with nothing in flight.
fn flow(budget_bytes: usize) -> Flow {
    with_parked_lanes(0, budget_bytes)
}

fn with_parked_lanes(parked_lanes: usize, budget_bytes: usize) -> Flow {
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(1) };
    let policy = LanePolicy {
        batch_messages: 10,
        batch_bytes: 1_000,
        transient: backoff,
        operator: backoff,
        redelivery: backoff,
        park_after: Duration::from_secs(1),
        max_attempts: 1,
        parked_lanes,
        on_dead: OnDead::Continue,
    };
    let router = RouterConfig {
        project: "p".into(),
        topic: Template::parse("t").expect("a template"),
        ordering_key: Template::parse("").expect("a template"),
        columns: ColumnNames::default(),
        style: AttributeStyle::Default,
        replay_id: None,
        edited: EditedMessages::default(),
        log_name: SystemIdentifierMode::Untold,
    };
    let observer = Observer::new(Metrics::new(), Health::new());
    Flow {
        router: Router::new(router),
        server_stalls: observer.server_stalls(),
        recorded_rows: AlreadyRecorded::unread(Lsn::ZERO),
        may_have_more_due_keys: false,
        source: Source::Slot,
        extent: StopPosition::Open,
        through: Position { commit_lsn: Lsn::ZERO, tx_index: 0 },
        tables: TableSelection::new(None),
        continuity: Continuity::new(1),
        tracker: Tracker::new(),
        budget: Budget::new(BudgetLimits::of_bytes(budget_bytes)),
        wal_budget: WalBudget::new(WalBudgetLimit::Off, WalRetentionLimit::Unlimited, Lsn::ZERO),
        lanes: Lanes::new(policy, 1),
        observer,
    }
}

#[test]
fn the_read_buffer_and_parked_keys_known_by_name_leave_less_room_for_rows() {
    // Seven eighths of the budget are for rows: 7,000.
    let mut flow = flow(8_000);
    flow.budget.take(5_999);
    flow.hold_beside(1_000);
    assert!(flow.may_read(SessionMode::Streaming));
    flow.hold_beside(1_001);
    assert!(!flow.may_read(SessionMode::Streaming));

    let now = Instant::now().into_std();
    let topic = Topic::from("t");
    // There are no lanes for parked keys, so the keys stay compact.
    (0..10).for_each(|key| flow.lanes.load_parked(&topic, &format!("k{key}"), Some(HOUR), now));
    assert!(flow.lanes.resting_memory() > 0);
    flow.hold_beside(1_000 - flow.lanes.resting_memory());
    assert!(flow.may_read(SessionMode::Streaming));
    flow.hold_beside(1_001 - flow.lanes.resting_memory());
    assert!(!flow.may_read(SessionMode::Streaming));
}

#[test]
fn draining_reads_the_open_transaction_to_its_end_and_nothing_after_it() {
    let mut flow = flow(8_000);
    let draining = SessionMode::draining(StopReason::Stopped, HOUR);
    assert!(flow.may_read(SessionMode::Streaming) && !flow.may_read(draining));
    flow.tracker.begin(PgTimestamp::from_micros(0));
    assert!(flow.may_read(draining));
    flow.budget.take(7_000);
    assert!(!flow.may_read(draining), "there is no room");
}

#[test]
fn nothing_is_read_behind_the_end_of_the_extent() {
    let mut flow = flow(8_000);
    flow.extent = StopPosition::Before(Lsn::new(20));
    assert!(flow.may_read(SessionMode::Streaming));
    flow.extent = StopPosition::Reached;
    assert!(!flow.may_read(SessionMode::Streaming));
}

#[test]
fn draining_ends_at_its_time_though_nothing_is_due() {
    let flow = flow(8_000);
    assert_eq!(flow.next_timer(SessionMode::Streaming, None), None);
    let until = Instant::now() + HOUR;
    let draining = SessionMode::Draining { ended: StopReason::Stopped, until };
    assert_eq!(flow.next_timer(draining, None), Some(until));
}

/// Passes a result of dispatch state to the flow.
fn told(flow: &mut Flow, event: DispatchEvent, goal: Option<&mut CatchUpTarget>) {
    flow.dispatch_event(event, goal).expect("nothing is wrong with the publication");
}

#[test]
fn a_key_that_rests_or_is_not_known_is_looked_at_when_its_head_has_no_time_and_only_then() {
    let mut flow = flow(8_000);
    let (topic, now) = (Topic::from("t"), Instant::now().into_std());
    let head = |key: &str, is_timed| Head {
        topic: topic.to_string(),
        ordering_key: key.to_owned(),
        is_timed,
    };
    for key in ["timed", "untimed"] {
        flow.lanes.load_parked(&topic, key, Some(HOUR), now);
    }
    let heads = vec![
        head("timed", true),
        head("untimed", false),
        head("unknown", false),
        head("timed and unknown", true),
    ];
    told(&mut flow, DispatchEvent::Heads(heads), None);
    let after = Instant::now().into_std();
    let keys = ["timed", "untimed", "unknown", "timed and unknown"];
    let rests = keys.map(|key| flow.lanes.rests(&topic, key, after));
    assert_eq!((flow.lanes.resting_keys(), rests), (1, [true, false, false, true]));
    assert!(!flow.lanes.is_parked(&topic, "timed and unknown"));
}

#[test]
fn nothing_is_read_while_recording_it_would_write_more_than_it_lets_go() {
    let mut flow = flow(8_000);
    let held = |watermark: u64| Held { wal_end: Lsn::new(1 << 30), watermark: Lsn::new(watermark) };
    flow.wal_budget =
        WalBudget::new(WalBudgetLimit::Bytes(1 << 20), WalRetentionLimit::Unlimited, Lsn::ZERO);
    flow.recorded_rows.learn(RecordedPage::default(), &flow.lanes);
    flow.wal_budget.judge(held(0), Delivery::Stalled);
    assert!(flow.may_read(SessionMode::Streaming));
    (0..100).for_each(|_| flow.wal_budget.recorded(Lsn::new(1), 1_000));
    flow.wal_budget.judge(held(8 << 10), Delivery::Stalled);
    assert!(flow.wal_budget.is_futile() && !flow.may_read(SessionMode::Streaming));
    flow.wal_budget.judge(held(8 << 10), Delivery::Flowing);
    assert!(flow.may_read(SessionMode::Streaming), "something is stored");
}

#[test]
fn a_goal_looks_at_what_is_due_only_when_all_of_it_was_told() {
    let mut flow = flow(8_000);
    let topic = Topic::from("t");
    let mut goal = CatchUpTarget::new(Lsn::ZERO, [(Topic::clone(&topic), "awaited".to_owned())]);
    let due = |count: usize, has_more| {
        let keys = (0..count).map(|key| (Topic::clone(&topic), format!("k{key}")));
        DispatchEvent::Due(Due { keys: keys.collect(), has_more })
    };
    let watermark = flow.tracker.watermark();
    told(&mut flow, DispatchEvent::Spilled(false), Some(&mut goal));
    for part in [due(0, true), due(1, true), due(DUE_KEYS_MAX / 2, false)] {
        told(&mut flow, part, Some(&mut goal));
        assert!(!goal.is_reached(watermark), "the awaited key may be in the other part");
    }
    told(&mut flow, due(0, false), Some(&mut goal));
    assert!(goal.is_reached(watermark));
}

#[test]
fn keys_that_could_not_be_read_back_are_let_alone_for_a_moment() {
    let mut flow = with_parked_lanes(10, 8_000);
    let now = Instant::now().into_std();
    flow.lanes.load_parked(&Topic::from("t"), "k", Some(Duration::ZERO), now);
    flow.lanes.wake(now);
    let lanes: Vec<_> = flow.lanes.claims(1, now).into_iter().map(|claim| claim.lane).collect();
    assert_eq!(lanes.len(), 1);
    told(&mut flow, DispatchEvent::NotClaimed(lanes), None);
    let after = Instant::now().into_std();
    flow.lanes.wake(after);
    assert!(flow.lanes.claims(1, after).is_empty(), "it failed a moment ago");
    flow.lanes.wake(after + CLAIM_PAUSE);
    assert_eq!(flow.lanes.claims(1, after + CLAIM_PAUSE).len(), 1);
}

/// A service that accepts every call and never replies.
#[derive(Clone)]
struct BlackHole;

impl Publisher for BlackHole {
    fn publish(
        &self,
        _batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        std::future::pending()
    }
}

/// Creates the next row of this key and sends it at once.
fn send_row(flow: &mut Flow, commit_lsn: u64, key: u8, sent_at: std::time::Instant) -> Batch {
    let position = Position { commit_lsn: Lsn::new(commit_lsn), tx_index: 0 };
    let message = Message::from_encoded("t".into(), position, "e", &[0x2A, 1, key]);
    flow.tracker.begin(PgTimestamp::from_micros(0));
    let ticket = flow.tracker.open();
    flow.tracker.seal(encode::boundary(Lsn::new(commit_lsn + 1)), ContinuityProof::Unbroken);
    flow.lanes.push(message.expect("a message"), ticket);
    flow.through = position;
    flow.lanes.next_batch(sent_at).expect("a batch")
}

/// Returns a flow with a call that has no reply. If delivery flows, another row is stored. Both
/// were sent `age` ago.
fn with_a_call_without_an_answer(
    budget: Option<u64>,
    delivery: Delivery,
    age: Duration,
) -> (Flow, PublishCalls<BlackHole>) {
    let mut flow = flow(8_000);
    let setting = budget.map_or(WalBudgetLimit::Off, WalBudgetLimit::Bytes);
    flow.wal_budget = WalBudget::new(setting, WalRetentionLimit::Unlimited, Lsn::ZERO);
    let limits = ConcurrencyLimits { min: 1, max: 1 };
    let mut publishes = PublishCalls::new(BlackHole, ConcurrencyWindow::new(limits));
    let now = Instant::now().into_std();
    let sent_at = now.checked_sub(age).expect("the clock began earlier");
    publishes.start(send_row(&mut flow, 1, b'k', sent_at));
    if delivery == Delivery::Flowing {
        let other = send_row(&mut flow, 900, b'o', sent_at);
        flow.lanes.stored(other, vec!["m".to_owned()], now);
        // The row bypassed the budget, so its memory must not be released to it.
        flow.lanes.outputs().settled.clear();
    }
    (flow, publishes)
}

#[test]
fn calls_without_an_answer_are_given_up_near_the_budget_whether_others_are_answered_or_not() {
    const LONG: Duration = WalBudget::PATIENCE;
    const SHORT: Duration = Duration::from_millis(4_500);
    let cases = [
        (Some(1_000), Delivery::Stalled, LONG, true),
        (Some(1_000), Delivery::Flowing, LONG, true),
        (Some(1_000), Delivery::Flowing, SHORT, false),
        (Some(2_000), Delivery::Flowing, LONG, false),
        (None, Delivery::Stalled, LONG, false),
    ];
    for (budget, delivery, age, is_given_up) in cases {
        let (mut flow, mut publishes) = with_a_call_without_an_answer(budget, delivery, age);
        let measured = Measured::new(Lsn::new(1_000), WalRetentionLimit::Unlimited);
        flow.wal_measured(measured, &mut publishes);
        assert_eq!(publishes.is_empty(), is_given_up, "{budget:?}, {delivery:?}, {age:?}");
        let recorded = &flow.lanes.outputs().rows_to_record;
        let positions: Vec<_> =
            recorded.iter().map(|row| row.message.position().commit_lsn).collect();
        let expected = [Lsn::new(1)];
        assert_eq!(positions, expected[..usize::from(is_given_up)], "what is given up is recorded");
    }
}
