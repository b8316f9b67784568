//! What the flow decides by itself; the loop as a whole runs in the simulation.

use pgoutput_parser::PgTimestamp;
use walrelay_core::{
    AttributeStyle, Backoff, BudgetLimits, ColumnNames, LanePolicy, OnDead, Retention,
    RouterConfig, Template,
};

use super::*;
use crate::observe::health::Health;
use crate::observe::metrics::Metrics;

const HOUR: Duration = Duration::from_secs(3_600);

/// Nothing is in flight yet.
fn flow(budget_bytes: usize) -> Flow {
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(1) };
    let policy = LanePolicy {
        batch_messages: 10,
        batch_bytes: 1_000,
        transient: backoff,
        operator: backoff,
        redelivery: backoff,
        park_after: Duration::from_secs(1),
        max_attempts: 1,
        parked_lanes: 0,
        on_dead: OnDead::Continue,
    };
    let router = RouterConfig {
        project: "p".into(),
        topic: Template::parse("t").expect("a template"),
        ordering_key: Template::parse("").expect("a template"),
        columns: ColumnNames::default(),
        style: AttributeStyle::Default,
        replay_id: None,
    };
    Flow {
        router: Router::new(router),
        recorded_rows: RecordedRows::new([]),
        may_find_more: false,
        selected: None,
        continuity: Continuity::new(1),
        tracker: Tracker::new(),
        budget: Budget::new(BudgetLimits::of_bytes(budget_bytes)),
        wal_budget: WalBudget::new(None, Retention::Unlimited, Lsn::ZERO),
        lanes: Lanes::new(policy, 1),
        observer: Observer::new(Metrics::new(), Health::new()),
    }
}

#[test]
fn the_read_buffer_and_parked_keys_known_by_name_leave_less_room_for_rows() {
    // Seven eighths are for rows: 7,000.
    let mut flow = flow(8_000);
    flow.budget.take(5_999);
    flow.hold_beside(1_000);
    assert!(flow.may_read(Mode::Streaming));
    flow.hold_beside(1_001);
    assert!(!flow.may_read(Mode::Streaming));

    let now = Instant::now().into_std();
    let topic = Topic::from("t");
    // There are no lanes for parked keys, so they rest.
    (0..10).for_each(|key| flow.lanes.load_parked(&topic, &format!("k{key}"), Some(HOUR), now));
    assert!(flow.lanes.resting_memory() > 0);
    flow.hold_beside(1_000 - flow.lanes.resting_memory());
    assert!(flow.may_read(Mode::Streaming));
    flow.hold_beside(1_001 - flow.lanes.resting_memory());
    assert!(!flow.may_read(Mode::Streaming));
}

#[test]
fn draining_reads_the_open_transaction_to_its_end_and_nothing_after_it() {
    let mut flow = flow(8_000);
    let draining = Mode::draining(Ended::Stopped, HOUR);
    assert!(flow.may_read(Mode::Streaming) && !flow.may_read(draining));
    flow.tracker.begin(PgTimestamp::from_micros(0));
    assert!(flow.may_read(draining));
    flow.budget.take(7_000);
    assert!(!flow.may_read(draining), "there is no room");
}

#[test]
fn draining_ends_at_its_time_though_nothing_is_due() {
    let flow = flow(8_000);
    assert_eq!(flow.next_alarm(Mode::Streaming), None);
    let until = Instant::now() + HOUR;
    let draining = Mode::Draining { ended: Ended::Stopped, until };
    assert_eq!(flow.next_alarm(draining), Some(until));
}
