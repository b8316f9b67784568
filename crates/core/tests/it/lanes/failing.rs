//! Topics that refuse rows, step by step: the budget share of their rows, and the frequency of
//! probes.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_core::{
    Backoff, BudgetLimits, FailureClass, LanePolicy, RecordReason, RowToRecord, Topic,
};

use super::bench::{LaneHarness, message_of, policy, steady};

const MOMENT: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
const NOTHING: BudgetLimits = BudgetLimits { bytes: 0, rows: 0 };

/// Creates a policy that retries every refusal a moment later.
fn eager() -> LanePolicy {
    LanePolicy { operator: steady(MOMENT * 10), transient: steady(MOMENT * 10), ..policy() }
}

fn topics_recorded(bench: &mut LaneHarness) -> Vec<Topic> {
    let mut topics: Vec<_> =
        bench.taken_to_record().iter().map(|row| Topic::clone(row.message.topic())).collect();
    topics.dedup();
    topics
}

/// Pushes rows with `payload` bytes, each with a key of its own, and refuses all of them.
fn refused(bench: &mut LaneHarness, topic: &str, rows: u32, payload: u8) {
    for row in 0..rows {
        let ticket = bench.tracker.open();
        bench.lanes.push(message_of(row, topic, &format!("k{row}"), payload), ticket);
    }
    bench.refuse_all(FailureClass::Operator);
}

#[test]
fn failing_rows_are_looked_for_every_tenth_of_a_second_at_most() {
    let mut bench = LaneHarness::new();
    bench.lanes.relieve(NOTHING, bench.now);
    refused(&mut bench, "a", 1, 1);
    bench.lanes.relieve(NOTHING, bench.now);
    assert_eq!(topics_recorded(&mut bench), [Topic::from("a")], "nothing failed before");
    refused(&mut bench, "b", 1, 1);
    bench.now += Duration::from_millis(100) - MOMENT;
    bench.lanes.relieve(NOTHING, bench.now);
    assert!(topics_recorded(&mut bench).is_empty());
    bench.now += MOMENT;
    bench.lanes.relieve(NOTHING, bench.now);
    assert_eq!(topics_recorded(&mut bench), [Topic::from("b")]);
}

#[test]
fn the_heaviest_topics_are_recorded_until_the_rest_fits_its_share() {
    let recorded = |share| {
        let mut bench = LaneHarness::new();
        refused(&mut bench, "few", 10, 20);
        refused(&mut bench, "many", 30, 20);
        refused(&mut bench, "some", 20, 20);
        bench.lanes.relieve(share, bench.now);
        topics_recorded(&mut bench)
    };
    let of = |names: &[&str]| names.iter().map(|name| Topic::from(*name)).collect::<Vec<_>>();
    let rows = |rows| BudgetLimits { bytes: usize::MAX, rows };
    assert_eq!(recorded(rows(60)), of(&[]));
    assert_eq!(recorded(rows(59)), of(&["many"]));
    assert_eq!(recorded(rows(30)), of(&["many"]));
    assert_eq!(recorded(rows(15)), of(&["many", "some"]));
    assert_eq!(recorded(rows(9)), of(&["many", "some", "few"]));
    // The budget counts at least the message and the queue entry of a row.
    let row = message_of(0, "many", "k0", 20).memory();
    let bytes = |bytes| BudgetLimits { bytes, rows: usize::MAX };
    assert_eq!(recorded(bytes(60 * row - 1)), of(&["many"]));
    assert_eq!(recorded(bytes(30 * row - 1)), of(&["many", "some"]));
    assert_eq!(recorded(bytes(30 * row * 3 / 2)), of(&["many"]));
    assert_eq!(recorded(bytes(10 * row * 3 / 2)), of(&["many", "some"]));
}

#[test]
fn what_a_failing_lane_holds_is_what_its_rows_take_in_the_budget_or_a_little_more() {
    for (rows, payload) in [(1, 1), (1, 120), (100, 1), (100, 120)] {
        let key = "k".repeat(100);
        let memory: usize = (0..rows).map(|row| message_of(row, "t", &key, payload).memory()).sum();
        let is_recorded_with = |bytes| {
            let mut bench = LaneHarness::new();
            for row in 0..rows {
                let ticket = bench.tracker.open();
                bench.lanes.push(message_of(row, "t", &key, payload), ticket);
            }
            bench.refuse_all(FailureClass::Operator);
            bench.lanes.relieve(BudgetLimits { bytes, rows: usize::MAX }, bench.now);
            !bench.taken_to_record().is_empty()
        };
        assert!(is_recorded_with(memory - 1), "{rows} rows of {payload} bytes");
        assert!(!is_recorded_with(memory * 5 / 4), "{rows} rows of {payload} bytes");
    }
}

#[test]
fn rows_that_were_sent_are_no_longer_held() {
    let mut bench = LaneHarness::with(LanePolicy { batch_messages: 2, ..eager() });
    bench.push("orders", "k", 40);
    for _ in 0..18 {
        let batch = bench.batch().unwrap();
        bench.store(batch);
    }
    bench.refuse_all(FailureClass::Operator);
    let bytes = 4 * message_of(39, "orders", "k", 1).memory() * 5 / 4;
    bench.lanes.relieve(BudgetLimits { bytes, rows: 4 }, bench.now);
    assert!(bench.taken_to_record().is_empty());
}

#[test]
fn a_topic_is_known_sick_when_several_keys_were_answered_and_not_for_a_heavy_one() {
    use FailureClass::{Operator, Transient};
    for (keys, class, is_failing_topic) in
        [(1, Operator, false), (2, Operator, true), (2, Transient, false)]
    {
        let mut bench = LaneHarness::with(eager());
        for key in 0..keys {
            bench.push("orders", &format!("k{key}"), 3);
        }
        bench.refuse_all(class);
        bench.pass(MOMENT * 10);
        bench.push("well", "k", 1);
        let mut out = bench.batches();
        let well = out.pop().unwrap();
        bench.store(well);
        out.into_iter().for_each(|batch| bench.refuse_as(batch, class));
        bench.lanes.relieve(NOTHING, bench.now);
        assert_eq!(bench.taken_to_record().len(), 3 * keys, "{class:?}");
        bench.push("orders", "new", 1);
        assert_eq!(bench.batch().is_none(), is_failing_topic, "{keys} keys, {class:?}");
    }
}

#[test]
fn a_topic_is_known_sick_when_it_was_answered_for_the_time_until_parking() {
    let mut bench = LaneHarness::with(eager());
    bench.push("orders", "a", 1);
    bench.push("orders", "late", 1);
    let mut out = bench.batches();
    let late = out.pop().unwrap();
    bench.refuse_as(out.pop().unwrap(), FailureClass::Operator);
    bench.pass(policy().park_after - MOMENT);
    bench.refuse_all(FailureClass::Operator);
    bench.push("orders", "b", 1);
    assert_eq!(bench.refuse_all(FailureClass::Operator), 1, "it is tried: a moment is left");
    assert_eq!(bench.lanes.parked_keys(), 0);
    bench.pass(MOMENT * 10);
    bench.refuse_all(FailureClass::Operator);
    assert_eq!(bench.lanes.parked_keys(), 2, "both that wait");
    bench.refuse_as(late, FailureClass::Operator);
    assert_eq!(bench.lanes.parked_keys(), 3, "need not find out for itself");
    bench.push("orders", "c", 1);
    assert_eq!((bench.batch().is_none(), bench.lanes.parked_keys()), (true, 4));
}

#[test]
fn a_key_that_was_answered_for_the_time_until_parking_is_parked_though_others_of_its_topic_flow() {
    let mut bench = LaneHarness::with(eager());
    bench.push("orders", "k", 1);
    bench.refuse_all(FailureClass::Operator);
    bench.pass(SECOND * 4);
    bench.push("orders", "well", 1);
    let mut out = bench.batches();
    let well = out.pop().unwrap();
    bench.store(well);
    bench.pass(SECOND);
    bench.refuse_as(out.pop().unwrap(), FailureClass::Operator);
    assert_eq!(bench.lanes.parked_keys(), 1);
}

#[test]
fn rows_of_a_topic_that_stores_again_are_left_alone() {
    let mut bench = LaneHarness::with(eager());
    for topic in ["mended", "missing"] {
        refused(&mut bench, topic, 2, 1);
    }
    bench.push("mended", "new", 1);
    let batch = bench.batch().unwrap();
    bench.store(batch);
    bench.lanes.relieve(NOTHING, bench.now);
    assert_eq!(topics_recorded(&mut bench), [Topic::from("missing")]);
}

#[test]
fn rows_on_their_way_from_the_table_are_not_recorded_again() {
    let mut bench = LaneHarness::with(eager());
    bench.park("orders", "parked", None);
    bench.pass(Duration::ZERO);
    let claims = bench.claims();
    refused(&mut bench, "orders", 2, 1);
    bench.answer(&claims[0], &[(7, 0)]);
    bench.lanes.relieve(NOTHING, bench.now);
    assert_eq!(bench.taken_to_record().len(), 2);
    assert!(bench.finished().is_empty());
    assert_eq!(bench.batch().unwrap().ordering_key(), "parked");
}

#[test]
fn rows_without_a_key_that_fail_are_recorded_though_others_are_in_the_table() {
    let mut bench = LaneHarness::with(eager());
    bench.park("orders", "", Some(SECOND));
    bench.push("orders", "", 3);
    bench.refuse_all(FailureClass::Operator);
    bench.lanes.relieve(NOTHING, bench.now);
    assert_eq!(bench.taken_to_record().len(), 3);
}

#[test]
fn rows_behind_a_request_that_is_out_are_recorded_and_come_behind_it() {
    let mut bench = LaneHarness::with(LanePolicy { batch_messages: 2, ..eager() });
    bench.push("orders", "k", 10);
    bench.refuse_all(FailureClass::Operator);
    bench.pass(MOMENT * 10);
    let batch = bench.batch().unwrap();
    bench.lanes.relieve(NOTHING, bench.now);
    let recorded = bench.taken_to_record();
    let is_queued = |row: &RowToRecord| matches!(row.reason, RecordReason::Queued);
    assert_eq!((recorded.len(), recorded.iter().all(is_queued)), (8, true));
    assert_eq!(bench.due_in(), Some(policy().redelivery.base));
    bench.refuse_as(batch, FailureClass::Operator);
    assert_eq!(bench.taken_to_record().len(), 2, "it goes into the table, too");
}

#[test]
fn a_request_that_is_out_with_nothing_behind_it_is_left_alone() {
    let mut bench = LaneHarness::with(eager());
    bench.push("orders", "out", 1);
    bench.refuse_all(FailureClass::Operator);
    bench.pass(MOMENT * 10);
    let batch = bench.batch().unwrap();
    refused(&mut bench, "orders", 1, 1);
    bench.lanes.relieve(NOTHING, bench.now);
    assert_eq!((bench.taken_to_record().len(), bench.lanes.parked_keys()), (1, 1));
    bench.store(batch);
}

#[test]
fn of_a_topic_that_waits_for_an_operator_one_parked_key_is_tried_at_a_time() {
    let mut bench = LaneHarness::with(LanePolicy { operator: steady(SECOND), ..policy() });
    let paused_topics = |of: &LaneHarness, now| !of.lanes.paused_topics(now).is_empty();
    refused(&mut bench, "orders", 1, 1);
    for key in ["a", "b"] {
        bench.park("orders", key, None);
    }
    assert!(!paused_topics(&bench, bench.now), "nobody has tried a parked key yet");
    bench.lanes.wake(bench.now);
    assert_eq!(bench.claims().len(), 1);
    assert_eq!(bench.lanes.paused_topics(bench.now), [Topic::from("orders")]);
    // The other key has to wait for a while after that pause.
    let millisecond = Duration::from_millis(1);
    while !bench.lanes.has_claims() {
        bench.pass(millisecond);
    }
    assert!(!paused_topics(&bench, bench.now - millisecond * 99));
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn probes_of_a_topic_become_rare() {
    let operator = Backoff { base: Duration::from_millis(100), cap: SECOND * 600 };
    let mut bench = LaneHarness::with(LanePolicy { operator, ..policy() });
    refused(&mut bench, "orders", 1, 1);
    let mut rests = Vec::new();
    for probe in 0..10 {
        bench.park("orders", &format!("p{probe}"), None);
        bench.pass(Duration::ZERO);
        assert_eq!(bench.claims().len(), 1, "probe {probe}");
        let millis = (1..).map(Duration::from_millis);
        let is_over = |rest: &Duration| bench.lanes.paused_topics(bench.now + *rest).is_empty();
        let rest = millis.take(10_000).find(is_over).unwrap();
        rests.push(rest);
        bench.now += rest;
    }
    assert!(rests[0] <= Duration::from_millis(101), "{rests:?}");
    assert!(rests[6..].iter().all(|rest| *rest >= Duration::from_millis(640)), "{rests:?}");
    assert!(rests.iter().all(|rest| *rest <= SECOND * 5), "{rests:?}");
}

type RowsOfTopics = BTreeMap<Topic, Vec<u32>>;

fn row_number(event_id: &str) -> u32 {
    event_id.parse().unwrap()
}

/// Adds the recorded rows to the table, which makes them durable.
fn record(bench: &mut LaneHarness, table: &mut RowsOfTopics) {
    for row in bench.taken_to_record() {
        let rows = table.entry(Topic::clone(row.message.topic())).or_default();
        let is_head = row.reason.next_attempt_in().is_some();
        assert_eq!(is_head, rows.is_empty(), "only the head has a time");
        rows.push(row_number(row.message.event_id()));
        bench.lanes.appended(row.lane.unwrap());
    }
}

/// Claims the rows of the table and stores them, until every key is live again.
fn publish_from_table(bench: &mut LaneHarness, mut table: RowsOfTopics) -> RowsOfTopics {
    let mut published = RowsOfTopics::new();
    while bench.lanes.parked_keys() > 0 {
        bench.pass(SECOND * 10);
        for claim in bench.lanes.claims(usize::MAX, bench.now) {
            let rows = table.remove(&claim.topic).unwrap_or_default();
            let rows: Vec<_> = rows.into_iter().map(|row| (row, 0)).collect();
            bench.answer(&claim, &rows);
        }
        for batch in bench.batches() {
            let rows = published.entry(Topic::clone(batch.topic())).or_default();
            rows.extend(batch.messages().map(|message| row_number(message.event_id())));
            bench.store(batch);
        }
    }
    published
}

#[test]
fn order_and_parking_stay_right_with_more_failing_topics_than_are_remembered() {
    const TOPICS: usize = 1_500;
    let policy = LanePolicy { operator: steady(SECOND), parked_lanes: TOPICS, ..policy() };
    let mut bench = LaneHarness::with(LanePolicy { park_after: SECOND * 2, ..policy });
    let topics: Vec<_> = (0..TOPICS).map(|topic| format!("t{topic}")).collect();
    topics.iter().for_each(|topic| bench.push(topic, "k", 2));
    let mut table = RowsOfTopics::new();
    for second in 0..3 {
        assert!(table.is_empty(), "parked after {second} of 2 seconds");
        assert_eq!(bench.refuse_all(FailureClass::Operator), TOPICS);
        record(&mut bench, &mut table);
        bench.pass(SECOND);
    }
    assert_eq!((bench.lanes.parked_keys(), table.len()), (TOPICS, TOPICS));
    topics.iter().for_each(|topic| bench.push(topic, "k", 1));
    assert!(bench.batch().is_none(), "they go behind the rows of their key in the table");
    record(&mut bench, &mut table);
    let published = publish_from_table(&mut bench, table.clone());
    assert_eq!(published, table);
    assert!(published.values().all(|rows| rows.len() == 3 && rows.is_sorted()));
}
