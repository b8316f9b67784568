//! The contents and times of batches, at the edges of each rule.

use std::collections::BTreeSet;
use std::time::Duration;

use walrelay_core::{
    Backoff, Batch, FailureClass, LanePolicy, OnDead, Outcome, RecordReason, Topic,
};

use super::bench::{LaneHarness, failure, message_of, policy, steady};

const MOMENT: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);

/// A policy in which no refused lane retries within six seconds on its own.
fn slow() -> LanePolicy {
    LanePolicy {
        transient: steady(SECOND * 60),
        operator: steady(SECOND * 60),
        park_after: SECOND * 2,
        ..policy()
    }
}

/// The same policy, but lanes become stuck and outages are detected only after a minute.
fn slow_and_patient() -> LanePolicy {
    LanePolicy { park_after: SECOND * 120, ..slow() }
}

fn keys(batches: &[Batch]) -> Vec<&str> {
    batches.iter().map(Batch::ordering_key).collect()
}

fn topics(names: &[&str]) -> BTreeSet<Topic> {
    names.iter().map(|name| Topic::from(*name)).collect()
}

#[test]
fn a_batch_tells_where_it_goes_and_since_when_it_waits() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 1);
    let batch = bench.batch().unwrap();
    assert_eq!((&**batch.topic(), batch.ordering_key()), ("orders", "k"));
    assert!(batch.committed_at().is_some(), "its row is from the slot");
    assert_eq!(batch.sent_at(), bench.now);
    bench.store(batch);
    bench.park("orders", "k", None);
    bench.pass(Duration::ZERO);
    bench.claim(&[(1, 0)]);
    assert_eq!(bench.batch().unwrap().committed_at(), None, "its row is from dispatch state");
}

#[test]
fn a_request_takes_as_many_bytes_as_it_may_and_one_row_at_least() {
    let row = message_of(0, "orders", "k", 40).size();
    let rows_of = |batch_bytes: usize, payloads: &[u8]| -> Vec<usize> {
        let mut bench = LaneHarness::with(LanePolicy { batch_bytes, ..policy() });
        for (index, payload) in (0..).zip(payloads) {
            let ticket = bench.tracker.open();
            bench.lanes.push(message_of(index, "orders", "k", *payload), ticket);
        }
        let mut counts = Vec::new();
        while let Some(batch) = bench.batch() {
            counts.push(batch.messages().len());
            bench.store(batch);
        }
        counts
    };
    assert_eq!(rows_of(row * 2, &[40; 5]), [2, 2, 1]);
    assert_eq!(rows_of(row * 2 - 1, &[40; 3]), [1, 1, 1]);
    assert_eq!(rows_of(row * 5, &[40; 5]), [5]);
    assert_eq!(rows_of(row * 5 - 1, &[40; 5]), [4, 1]);
    assert_eq!(rows_of(row, &[100, 100, 40]), [1, 1, 1], "one that is too large goes alone");
}

#[test]
fn a_request_takes_as_many_rows_as_it_may() {
    let mut bench = LaneHarness::with(LanePolicy { batch_messages: 2, ..policy() });
    bench.push("orders", "k", 5);
    bench.push("orders", "", 3);
    let first = bench.batches();
    let rows: Vec<_> = first.iter().map(|batch| batch.messages().len()).collect();
    assert_eq!((keys(&first), rows), (vec!["k", "", ""], vec![2, 2, 1]));
    first.into_iter().for_each(|batch| bench.store(batch));
    let second = bench.batches();
    assert_eq!((keys(&second), second[0].messages().len()), (vec!["k"], 2));
}

/// The sizes of the requests for `rows` rows, if Pub/Sub always refuses the rows in `bad`.
fn requests_of(batch_messages: usize, rows: u32, bad: &[&str]) -> Vec<usize> {
    let mut bench = LaneHarness::with(LanePolicy { batch_messages, ..policy() });
    bench.push("orders", "k", rows);
    let mut sizes = Vec::new();
    while let Some(batch) = bench.batch() {
        sizes.push(batch.messages().len());
        if batch.messages().any(|message| bad.contains(&message.event_id())) {
            bench.refuse_as(batch, FailureClass::Row);
        } else {
            bench.store(batch);
        }
        bench.lanes.check();
    }
    let recorded = bench.taken_to_record();
    let dead: Vec<_> = recorded.iter().map(|row| row.message.event_id()).collect();
    assert_eq!(dead, bad, "those and no others are recorded");
    assert!(recorded.iter().all(|row| matches!(row.reason, RecordReason::Dead { .. })));
    sizes
}

#[test]
fn a_row_that_is_refused_for_ever_is_searched_for_by_halves() {
    assert_eq!(requests_of(8, 8, &["7"]), [8, 4, 2, 1, 1]);
    assert_eq!(requests_of(8, 8, &["4"]), [8, 4, 2, 1, 1, 2]);
}

#[test]
fn after_a_dead_row_requests_double_until_they_are_full() {
    assert_eq!(requests_of(10, 30, &["0"]), [10, 5, 3, 2, 1, 1, 2, 4, 8, 10, 4]);
}

#[test]
fn while_a_row_is_searched_for_requests_do_not_grow_and_grow_again_from_there() {
    let mut bench = LaneHarness::with(LanePolicy { batch_messages: 8, ..policy() });
    bench.push("orders", "k", 40);
    let mut sizes = Vec::new();
    // The first row dies. In a later request, one row is refused and then stored a moment later.
    let refused = [1, 1, 1, 1, 0, 0, 1];
    for is_refused in refused.into_iter().chain([0; 5]) {
        let batch = bench.batch().unwrap();
        sizes.push(batch.messages().len());
        match is_refused {
            1 => bench.refuse_as(batch, FailureClass::Row),
            _ => bench.store(batch),
        }
    }
    assert_eq!(sizes, [8, 4, 2, 1, 1, 2, 4, 2, 1, 1, 4, 8]);
}

#[test]
fn a_row_that_is_refused_for_ever_stops_nothing_and_parks_nothing() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 3);
    let batch = bench.batch().unwrap();
    bench.refuse_as(batch, FailureClass::Row);
    assert!(bench.taken_to_record().is_empty(), "nobody knows which it is");
    assert_eq!((bench.lanes.parked_keys(), bench.batch().unwrap().messages().len()), (0, 2));
    bench.push_dead("orders", "other");
    assert_eq!((bench.taken_to_record().len(), bench.lanes.parked_keys()), (1, 0));
    assert_eq!(bench.lanes.len(), 1, "a key with nothing else needs no lane");
}

#[test]
fn a_dead_row_holds_the_rows_behind_it_where_that_is_asked_for() {
    let mut bench = LaneHarness::with(LanePolicy { on_dead: OnDead::Hold, ..policy() });
    bench.push("orders", "k", 2);
    bench.push_dead("orders", "k");
    let recorded = bench.taken_to_record();
    assert_eq!(recorded.len(), 3, "the rows that are queued go into the table with it");
    assert!(recorded.iter().all(|row| row.lane.is_some()), "the lane waits until they are durable");
    assert_eq!((bench.lanes.parked_keys(), bench.due_in()), (1, Some(SECOND)));
    assert!(bench.batch().is_none());
    bench.push_dead("orders", "");
    assert_eq!(bench.lanes.parked_keys(), 1, "rows without a key hold nobody");
}

#[test]
fn a_dead_row_does_not_disturb_a_claim_of_its_key() {
    let mut bench = LaneHarness::with(LanePolicy { on_dead: OnDead::Hold, ..policy() });
    bench.park("orders", "k", None);
    bench.pass(Duration::ZERO);
    let claims = bench.claims();
    bench.push_dead("orders", "k");
    bench.answer(&claims[0], &[(7, 0)]);
    assert_eq!(bench.batch().unwrap().ordering_key(), "k");
}

#[test]
fn a_claimed_row_that_is_refused_for_ever_is_dead_with_one_attempt_more() {
    for on_dead in [OnDead::Continue, OnDead::Hold] {
        let mut bench = LaneHarness::with(LanePolicy { on_dead, ..policy() });
        bench.park("orders", "k", None);
        bench.pass(Duration::ZERO);
        bench.claim(&[(7, 3), (8, 0)]);
        for _ in 0..2 {
            let batch = bench.batch().unwrap();
            bench.refuse_as(batch, FailureClass::Row);
        }
        let finished = bench.finished();
        assert!(matches!(finished[0].outcome, Outcome::Dead { attempts: 4, .. }));
        let behind: Vec<_> = finished[1..].iter().map(|row| row.message.event_id()).collect();
        match on_dead {
            OnDead::Continue => assert!(behind.is_empty() && bench.batch().is_some()),
            OnDead::Hold => assert_eq!((behind, bench.batch().is_none()), (vec!["8"], true)),
        }
        assert!(bench.taken_to_record().is_empty(), "they are in the table already");
    }
}

#[test]
fn a_refused_lane_waits_until_its_time_and_no_longer() {
    let mut bench = LaneHarness::with(LanePolicy { transient: steady(SECOND), ..policy() });
    bench.push("orders", "k", 1);
    bench.refuse_all(FailureClass::Transient);
    let wait = bench.due_in().unwrap();
    assert!(wait >= SECOND / 10 && wait <= SECOND, "{wait:?}");
    bench.pass(wait - MOMENT);
    assert!(bench.batch().is_none());
    bench.pass(MOMENT);
    assert!(bench.batch().is_some());
    assert_eq!(bench.due_in(), None);
}

#[test]
fn each_refusal_of_the_same_rows_doubles_the_wait() {
    let transient = Backoff { base: Duration::from_millis(100), cap: SECOND * 60 };
    let mut bench = LaneHarness::with(LanePolicy { transient, ..slow_and_patient() });
    bench.succeed("orders", "well");
    bench.push("orders", "k", 1);
    for doublings in 0..8 {
        assert_eq!(bench.refuse_all(FailureClass::Transient), 1);
        let (wait, whole) = (bench.due_in().unwrap(), transient.base * (1 << doublings));
        assert!(wait >= whole / 10 && wait <= whole, "{wait:?} of {whole:?}");
        bench.pass(wait);
    }
}

#[test]
fn a_sick_lane_does_not_sleep_through_the_time_until_it_is_parked() {
    let mut healthy = LaneHarness::with(slow());
    healthy.succeed("orders", "well");
    healthy.push("orders", "k", 1);
    healthy.refuse_all(FailureClass::Transient);
    assert_eq!(healthy.due_in(), Some(SECOND), "half of it");

    let mut answered = LaneHarness::with(slow());
    answered.push("orders", "k", 1);
    answered.refuse_all(FailureClass::Operator);
    assert_eq!(answered.due_in(), Some(SECOND), "no outage, though nothing is stored");
}

#[test]
fn in_an_outage_one_lane_tries_every_two_seconds_and_the_others_wait() {
    let mut bench = LaneHarness::with(slow());
    for key in ["a", "b", "c"] {
        bench.push("orders", key, 1);
    }
    assert_eq!(bench.refuse_all(FailureClass::Transient), 3);
    assert!(bench.lanes.is_outage(bench.now));
    for _ in 0..2 {
        assert_eq!(bench.due_in(), Some(SECOND * 2));
        bench.pass(SECOND * 2 - MOMENT);
        assert!(bench.batch().is_none());
        bench.pass(MOMENT);
        assert_eq!(bench.refuse_all(FailureClass::Transient), 1);
    }
}

#[test]
fn an_outage_is_over_for_everybody_within_a_second() {
    let mut bench = LaneHarness::with(slow());
    bench.succeed("orders", "before");
    bench.pass(SECOND * 3);
    for key in 0..20 {
        bench.push("orders", &format!("k{key}"), 1);
    }
    bench.park("other", "parked", Some(SECOND * 5));
    bench.refuse_all(FailureClass::Transient);
    bench.pass(SECOND * 2);
    let probe = bench.batch().unwrap();
    assert!(bench.lanes.is_outage(bench.now) && bench.batch().is_none());
    bench.store(probe);
    assert!(!bench.lanes.is_outage(bench.now));
    bench.pass(Duration::ZERO);
    let at_once = bench.batches().len();
    assert!(at_once < 15, "{at_once} come at once");
    bench.pass(SECOND);
    assert_eq!(at_once + bench.batches().len(), 19);
    assert_eq!(bench.claims().len(), 1, "parked keys, too");
}

/// Long before an outage is certain, lanes that were healthy wait for one probe together. Otherwise
/// each of them would wait for its own back-off after a short outage.
#[test]
fn after_a_short_outage_everything_is_tried_again_within_three_seconds() {
    let mut bench = LaneHarness::with(slow_and_patient());
    bench.succeed("orders", "before");
    for key in 0..20 {
        bench.push("orders", &format!("k{key}"), 1);
    }
    bench.refuse_all(FailureClass::Transient);
    bench.pass(SECOND);
    bench.push("orders", "later", 1);
    assert_eq!(bench.refuse_all(FailureClass::Transient), 1);
    bench.pass(SECOND * 2);
    assert!(!bench.lanes.is_outage(bench.now));
    let probe = bench.batch().unwrap();
    bench.store(probe);
    bench.pass(SECOND);
    assert_eq!(bench.batches().len(), 20);
}

#[test]
fn keys_that_keep_failing_are_not_called_back_by_rare_successes() {
    let mut bench = LaneHarness::with(slow_and_patient());
    bench.succeed("orders", "well");
    for key in 0..20 {
        bench.push("orders", &format!("k{key}"), 1);
    }
    bench.refuse_all(FailureClass::Transient);
    bench.pass(SECOND);
    bench.succeed("orders", "well");
    bench.pass(SECOND);
    assert_eq!(bench.refuse_all(FailureClass::Transient), 20, "it could have been an outage");
    for _ in 0..3 {
        bench.pass(SECOND);
        bench.succeed("orders", "well");
        assert_eq!(bench.batches().len(), 0);
    }
}

#[test]
fn who_would_try_sooner_anyway_is_not_kept_waiting_by_the_end_of_an_outage() {
    let soon = Duration::from_micros(10);
    let mut bench = LaneHarness::with(LanePolicy { transient: steady(soon), ..slow() });
    for key in 0..10 {
        bench.push("orders", &format!("k{key}"), 1);
    }
    bench.push("orders", "probe", 1);
    let mut out = bench.batches();
    let probe = out.pop().unwrap();
    out.into_iter().for_each(|batch| bench.refuse(batch));
    for key in 0..10 {
        bench.park("other", &format!("k{key}"), Some(soon));
    }
    bench.store(probe);
    bench.pass(soon);
    assert_eq!((bench.batches().len(), bench.claims().len()), (10, 10));
}

#[test]
fn a_success_beside_failures_calls_nobody_back() {
    let mut bench = LaneHarness::with(slow_and_patient());
    bench.succeed("orders", "well");
    bench.push("orders", "k", 1);
    bench.refuse_all(FailureClass::Transient);
    let due = bench.lanes.next_due();
    bench.pass(SECOND);
    bench.succeed("orders", "well");
    assert_eq!(bench.lanes.next_due(), due, "neither for its topic nor for an outage");
    bench.push("orders", "new", 1);
    assert_eq!(keys(&bench.batches()), ["new"]);
}

#[test]
fn a_topic_that_an_operator_has_put_right_is_tried_again_within_a_second_and_no_other() {
    let mut bench = LaneHarness::with(slow_and_patient());
    bench.succeed("well", "before");
    for topic in ["mended", "missing"] {
        for key in 0..5 {
            bench.push(topic, &format!("k{key}"), 1);
        }
    }
    bench.push("mended", "first", 1);
    let mut out = bench.batches();
    let first = out.pop().unwrap();
    out.into_iter().for_each(|batch| bench.refuse_as(batch, FailureClass::Operator));
    bench.store(first);
    bench.pass(SECOND);
    let topics: Vec<_> = bench.batches().iter().map(|batch| Topic::clone(batch.topic())).collect();
    assert_eq!(topics, vec![Topic::from("mended"); 5]);
}

#[test]
fn rows_of_a_topic_that_fails_are_tried_while_it_is_not_known_sick() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "a", 1);
    bench.refuse_all(FailureClass::Transient);
    bench.push("orders", "b", 1);
    bench.push("other", "c", 1);
    assert_eq!(keys(&bench.batches()), ["b", "c"]);
}

#[test]
fn topics_are_told_by_what_waits_for_them() {
    let mut bench = LaneHarness::new();
    bench.push("out", "k", 1);
    let _out = bench.batch().unwrap();
    bench.push("waiting", "k", 1);
    bench.refuse_all(FailureClass::Transient);
    bench.succeed("gone", "k");
    bench.push("ready", "k", 1);
    bench.park("parked", "k", Some(SECOND));
    assert_eq!(bench.lanes.topics_queued(), topics(&["out", "waiting", "ready"]));
    assert_eq!(bench.lanes.topics_held(), topics(&["out", "waiting", "ready", "parked"]));
    assert!(!bench.lanes.is_empty() && LaneHarness::new().lanes.is_empty());
}

#[test]
fn a_row_dead_before_it_was_sent_says_why() {
    let mut bench = LaneHarness::new();
    bench.push_dead("orders", "k");
    let recorded = bench.taken_to_record();
    let RecordReason::Dead { failure: why } = &recorded[0].reason else { panic!("{recorded:?}") };
    assert_eq!((&**why, recorded[0].lane), (&failure(FailureClass::Row), None));
}
