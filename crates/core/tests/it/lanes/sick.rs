//! The cost of one failing key or topic for the others: memory, requests, time.

use std::num::NonZeroU32;
use std::time::Duration;

use walrelay_core::{
    Batch, Budget, BudgetLimits, ClaimAnswer, FailureClass, Message, Outcome, RowToRecord, Topic,
};

use super::bench::{LaneHarness, PARK_AFTER, failure, message};

const SHARE: BudgetLimits = BudgetLimits { bytes: 16 << 20, rows: 5_000 };

#[test]
fn a_sick_key_that_fills_the_budget_is_recorded_at_its_first_refusal() {
    for key in ["sick", ""] {
        let mut bench = LaneHarness::new();
        bench.push("orders", key, 20_000);
        bench.refuse_all(FailureClass::Operator);
        assert!(bench.taken_to_record().is_empty(), "not before somebody needs the room");
        bench.lanes.relieve(SHARE, bench.now);
        assert_eq!(bench.taken_to_record().len(), 20_000, "key {key:?}");
        bench.lanes.check();
    }
}

#[test]
fn a_sick_key_is_recorded_for_its_weight_while_others_succeed() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "sick", 6_000);
    bench.refuse_all(FailureClass::Transient);
    bench.lanes.relieve(SHARE, bench.now);
    assert!(bench.taken_to_record().is_empty(), "it could be an outage");
    bench.pass(Duration::from_millis(1));
    bench.push("orders", "well", 1);
    let batches: Vec<_> = std::iter::from_fn(|| bench.batch()).collect();
    for batch in batches {
        if batch.messages().next().unwrap().ordering_key() == "well" {
            bench.store(batch);
        } else {
            bench.lanes.refused(batch, &failure(FailureClass::Transient), bench.now);
        }
    }
    bench.pass(PARK_AFTER / 2);
    bench.refuse_all(FailureClass::Transient);
    bench.lanes.relieve(SHARE, bench.now);
    assert_eq!(bench.taken_to_record().len(), 6_000);
}

#[test]
fn rows_of_a_key_are_held_up_while_its_request_has_no_reply_or_waits_for_its_next_attempt() {
    let mut bench = LaneHarness::new();
    // The number of rows that are read in place of rows that are held up.
    let held_up = |harness: &LaneHarness, out: &[Batch]| {
        let rate = NonZeroU32::new(1).expect("not zero");
        let mut budget = Budget::new(BudgetLimits::of_bytes(1_000)).at_rate(rate);
        while budget.has_room() {
            budget.take(0);
        }
        let full = budget.rows();
        harness.lanes.hold_up(&mut budget, out.iter(), harness.now);
        while budget.has_room() {
            budget.take(0);
        }
        budget.rows() - full
    };
    bench.push("orders", "silent", 3);
    bench.push("orders", "", 2);
    let silent = bench.batches();
    bench.push("orders", "silent", 4);
    assert_eq!(held_up(&bench, &silent), 0, "a reply takes its time");
    for _ in 0..3 {
        bench.pass(Duration::from_millis(500));
        bench.succeed("orders", "well");
    }
    assert_eq!(held_up(&bench, &silent), 9, "with the rows behind the request");
    silent.into_iter().for_each(|batch| bench.refuse(batch));
    bench.succeed("orders", "well");
    assert_eq!(held_up(&bench, &[]), 9, "they wait for the next attempt");
    bench.pass(PARK_AFTER);
    assert_eq!(bench.refuse_all(FailureClass::Transient), 2);
    bench.pass(2 * PARK_AFTER);
    assert_eq!(bench.refuse_all(FailureClass::Transient), 2);
    assert_eq!(held_up(&bench, &[]), 0, "nothing succeeds: the cause is not in the keys");
}

#[test]
fn a_topic_known_sick_has_its_new_keys_recorded_at_once() {
    let mut bench = LaneHarness::new();
    for key in 0..6_000 {
        bench.push("missing", &format!("k{key}"), 1);
    }
    assert_eq!(bench.refuse_all(FailureClass::Operator), 6_000);
    bench.lanes.relieve(SHARE, bench.now);
    assert_eq!(bench.taken_to_record().len(), 6_000);
    bench.push("missing", "new", 2);
    bench.push("missing", "", 2);
    assert!(bench.batch().is_none(), "nothing of it is tried");
    let recorded = bench.taken_to_record();
    assert_eq!(recorded.len(), 4);
    let due = |row: &RowToRecord| row.reason.next_attempt_in().is_some();
    assert!(due(&recorded[0]), "the head of a key has a time of its own");
    bench.push("orders", "well", 1);
    assert!(bench.batch().is_some(), "another topic flows");
}

#[test]
fn rows_of_more_missing_topics_than_are_remembered_are_recorded_for_their_weight() {
    let mut bench = LaneHarness::new();
    for number in 0..6_000 {
        bench.push(&format!("missing-{number}"), "k", 1);
    }
    assert_eq!(bench.refuse_all(FailureClass::Operator), 6_000);
    bench.lanes.relieve(SHARE, bench.now);
    let recorded = bench.taken_to_record();
    assert!(recorded.len() >= 1_000, "{} of 6000 recorded", recorded.len());
    bench.lanes.check();
}

#[test]
fn an_answer_is_judged_by_the_clock_though_nothing_else_is_published() {
    let mut bench = LaneHarness::new();
    bench.push("missing", "quiet", 3);
    for _ in 0..200 {
        bench.refuse_all(FailureClass::Operator);
        bench.pass(Duration::from_millis(100));
    }
    assert_eq!(bench.taken_to_record().len(), 3);
}

#[test]
fn an_outage_records_nothing_however_long_and_full() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "before", 1);
    let batch = bench.batch().unwrap();
    bench.store(batch);
    bench.push("orders", "hot", 15_000);
    for key in 0..5_000 {
        bench.push("orders", &format!("k{key}"), 1);
    }
    for _ in 0..60 {
        bench.refuse_all(FailureClass::Transient);
        bench.lanes.relieve(SHARE, bench.now);
        bench.pass(Duration::from_secs(1));
    }
    assert!(bench.taken_to_record().is_empty());
}

#[test]
fn a_run_of_rows_that_are_refused_costs_about_a_request_each() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "poison", 3_000);
    let mut requests = 0;
    while let Some(batch) = bench.batch() {
        requests += 1;
        bench.lanes.refused(batch, &failure(FailureClass::Row), bench.now);
        bench.lanes.check();
    }
    assert_eq!(bench.taken_to_record().len(), 3_000);
    assert!(requests <= 3_000 + 10, "{requests} requests for 3000 dead rows");
}

#[test]
fn every_other_row_refused_costs_three_requests_each() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "poison", 3_000);
    let mut requests = 0;
    while let Some(batch) = bench.batch() {
        requests += 1;
        let is_bad = |message: &Message| message.position().commit_lsn.as_u64() % 2 == 1;
        if batch.messages().any(is_bad) {
            bench.lanes.refused(batch, &failure(FailureClass::Row), bench.now);
        } else {
            bench.store(batch);
        }
        bench.lanes.check();
    }
    assert_eq!(bench.taken_to_record().len(), 1_500);
    assert!(requests <= 1_500 * 3 + 10, "{requests} requests for 1500 dead rows");
}

#[test]
fn good_rows_after_a_dead_one_are_soon_sent_in_full_requests_again() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 20_000);
    let mut requests = 0;
    while let Some(batch) = bench.batch() {
        requests += 1;
        if batch.messages().any(|message| message.event_id() == "17") {
            bench.lanes.refused(batch, &failure(FailureClass::Row), bench.now);
        } else {
            bench.store(batch);
        }
    }
    assert!(requests <= 20 + 25, "{requests} requests");
}

#[test]
fn a_row_dies_only_of_what_it_did_alone() {
    for key in ["k", ""] {
        let mut bench = LaneHarness::new();
        bench.lanes.load_parked(&Topic::from("orders"), key, None, bench.now);
        bench.pass(Duration::ZERO);
        // Another key keeps succeeding.
        let mut attempts = [0, 0, 0];
        let (mut dead, mut published) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            bench.push("orders", "well", 1);
            let well = bench.batch().unwrap();
            bench.store(well);
            let gone = |index: &usize| published.contains(index) || dead.contains(index);
            let left = (0..3).filter(|index| !gone(index));
            let rows: Vec<_> =
                left.map(|index| (100 + u32::try_from(index).unwrap(), attempts[index])).collect();
            if rows.is_empty() {
                break;
            }
            bench.claim(&rows);
            // The first row is healthy. The second row fails in every request.
            while let Some(batch) = bench.batch() {
                let is_ill = batch.messages().any(|message| message.event_id() == "101");
                match is_ill {
                    true => bench.refuse(batch),
                    false => bench.store(batch),
                }
            }
            for row in bench.finished() {
                let index =
                    usize::try_from(row.message.position().commit_lsn.as_u64()).unwrap() - 100;
                match row.outcome {
                    Outcome::Again { attempts: counted, .. } => attempts[index] = counted,
                    Outcome::Dead { .. } => dead.push(index),
                    Outcome::Published { .. } => published.push(index),
                }
            }
            bench.pass(PARK_AFTER);
        }
        assert_eq!((attempts[0], attempts[2]), (0, 0), "neighbours are not to blame");
        assert_eq!((dead, published), (vec![1], vec![0, 2]), "key {key:?}");
    }
}

#[test]
fn parked_keys_of_a_sick_topic_are_tried_one_at_a_time() {
    let mut bench = LaneHarness::new();
    for key in 0..500 {
        bench.lanes.load_parked(&Topic::from("orders"), &format!("k{key}"), None, bench.now);
    }
    let mut requests = 0;
    for _ in 0..600 {
        bench.pass(Duration::from_millis(100));
        for key in bench.lanes.claims(100, bench.now) {
            let rows = vec![(message(1, "orders", &key.ordering_key), 0)];
            bench.lanes.claimed(key.lane, ClaimAnswer { rows, held_for: None }, bench.now);
        }
        requests += bench.refuse_all(FailureClass::Operator);
    }
    assert!(requests < 100 + 60, "{requests} refused requests in a minute");
}

#[test]
fn parked_keys_beyond_a_number_take_a_few_bytes_and_are_still_known() {
    let mut bench = LaneHarness::new();
    let topic = Topic::from("orders");
    for key in 0..100_000 {
        // Half of the keys are overdue. After a long failure, all of them are.
        let due_in = Some(Duration::from_secs(30 * (key % 2)));
        bench.lanes.load_parked(&topic, &format!("k{key}"), due_in, bench.now);
    }
    assert_eq!(bench.lanes.parked_keys(), 100_000);
    assert!(bench.lanes.len() <= 1_001, "I6: {} lanes", bench.lanes.len());
    assert!(bench.lanes.resting_memory() < 100_000 * 48);

    // A row of a resting key goes behind its rows in the table (I4).
    bench.push("orders", "k99999", 1);
    assert!(bench.batch().is_none());
    let recorded = bench.taken_to_record();
    assert_eq!(recorded.len(), 1);
    bench.lanes.appended(recorded[0].lane.unwrap());
    bench.lanes.check();
    assert!(bench.lanes.len() <= 1_001, "and the key rests again");

    // The table reports the key as due. The key is claimed, and it is live once no row is left.
    bench.lanes.mark_due(&topic, "k99999", bench.now);
    bench.pass(Duration::ZERO);
    let keys = bench.lanes.claims(2_000, bench.now);
    let woken = keys.iter().find(|key| &*key.ordering_key == "k99999").unwrap();
    bench.lanes.claimed(woken.lane, ClaimAnswer { rows: Vec::new(), held_for: None }, bench.now);
    bench.lanes.check();
    assert_eq!(bench.lanes.parked_keys(), 99_999);
    bench.push("orders", "k99999", 1);
    assert!(bench.batch().is_some(), "it flows");
}
