//! Rows that Pub/Sub refuses as invalid: one bad row among others, or every row of a topic.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_core::{
    FailureClass, FailureCode, LanePolicy, OnDead, Outcome, RecordReason, SpillMode,
};

use super::bench::{LaneHarness, PARK_AFTER, failure, policy};

const TICK: Duration = Duration::from_millis(50);

fn bench(on_dead: OnDead) -> LaneHarness {
    LaneHarness::with(LanePolicy { on_dead, ..policy() })
}

/// The number of rows recorded as dead since the last call.
fn dead(bench: &mut LaneHarness) -> usize {
    let recorded = bench.taken_to_record();
    recorded.iter().filter(|row| matches!(row.reason, RecordReason::Dead { .. })).count()
}

/// Refuses the next batch.
fn refuse_one(bench: &mut LaneHarness) {
    let batch = bench.batch().expect("a batch");
    bench.refuse_as_invalid(batch);
}

/// Refuses every row of all topics for a while.
fn refuse_everything(bench: &mut LaneHarness, time: Duration) {
    let until = bench.now + time;
    while bench.now < until {
        while let Some(batch) = bench.batch() {
            bench.refuse_as_invalid(batch);
        }
        bench.pass(TICK);
    }
}

/// Stores all rows, and returns their numbers by key, in the order of the requests.
fn store_everything(bench: &mut LaneHarness) -> BTreeMap<String, Vec<u64>> {
    let mut stored: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for _ in 0..1_000 {
        for batch in bench.batches() {
            let numbers = batch.messages().map(|message| message.position().commit_lsn.as_u64());
            stored.entry(batch.ordering_key().to_owned()).or_default().extend(numbers);
            bench.store(batch);
        }
        bench.pass(TICK);
    }
    stored
}

#[test]
fn rows_of_a_topic_that_refuses_every_row_wait_and_are_retried_in_order() {
    for on_dead in [OnDead::Continue, OnDead::Hold] {
        for (keys, rows) in [(1, 100), (2, 50), (3, 1), (20, 5), (300, 2)] {
            // A row that holds its key is the only one of the key that is refused.
            let refused = if on_dead == OnDead::Hold { keys } else { keys * rows };
            if refused >= 20 {
                let mut bench = bench(on_dead);
                bench.succeed("orders", "before");
                rows_wait(bench, keys, rows);
            }
            if refused >= 20 || keys >= 3 {
                rows_wait(bench(on_dead), keys, rows);
            }
        }
    }
}

/// Refuses every row of some keys for a while. All are stored afterwards, in order.
fn rows_wait(mut bench: LaneHarness, keys: u32, rows: u32) {
    let case = format!("{keys} {rows}");
    for key in 0..keys {
        bench.push("orders", &format!("k{key}"), rows);
    }
    refuse_everything(&mut bench, Duration::from_secs(3));
    assert_eq!(dead(&mut bench), 0, "{case}");
    let stored = store_everything(&mut bench);
    assert_eq!(dead(&mut bench), 0, "{case}");
    assert_eq!(stored.len(), keys as usize, "{case}");
    for numbers in stored.values() {
        assert_eq!(numbers.len(), rows as usize, "{case}");
        assert!(numbers.is_sorted(), "{case}: {numbers:?}");
    }
}

#[test]
fn rows_without_a_key_of_a_topic_that_refuses_every_row_wait() {
    let mut bench = LaneHarness::new();
    bench.succeed("orders", "before");
    bench.push("orders", "", 100);
    refuse_everything(&mut bench, Duration::from_secs(3));
    assert_eq!(dead(&mut bench), 0);
    assert_eq!(store_everything(&mut bench)[""].len(), 100);
}

#[test]
fn new_rows_of_a_topic_that_refuses_every_row_wait_behind_the_refused_ones() {
    let mut bench = LaneHarness::new();
    for _ in 0..20 {
        bench.push("orders", "a", 3);
        bench.push("orders", "b", 1);
        bench.push("orders", "c", 1);
        refuse_everything(&mut bench, 2 * TICK);
    }
    assert_eq!(dead(&mut bench), 0);
    let stored = store_everything(&mut bench);
    assert!(stored["a"].len() == 60 && stored["a"].is_sorted(), "{stored:?}");
}

#[test]
fn an_invalid_row_is_dead_at_its_second_try_once_another_row_of_its_topic_is_stored() {
    for other in ["other", ""] {
        let mut bench = LaneHarness::new();
        bench.push("orders", "bad", 1);
        refuse_one(&mut bench);
        assert_eq!(dead(&mut bench), 0, "it is not known yet");
        bench.succeed("payments", "k");
        assert_eq!(dead(&mut bench), 0, "another topic shows nothing");
        assert!(bench.batch().is_none());
        bench.succeed("orders", other);
        assert_eq!(dead(&mut bench), 0, "{other:?}: it is tried once more");
        refuse_one(&mut bench);
        assert_eq!(dead(&mut bench), 1, "{other:?}");
    }
}

#[test]
fn an_invalid_row_is_dead_once_a_later_row_of_its_key_is_stored() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "bad", 2);
    refuse_one(&mut bench);
    refuse_one(&mut bench);
    assert_eq!(dead(&mut bench), 0, "it is not known yet");
    let behind = bench.batch().unwrap();
    bench.store(behind);
    assert_eq!(dead(&mut bench), 1, "a second try would publish it behind the later row");
    assert!(bench.batch().is_none());
}

/// The causes of a second try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    AnotherRowStored,
    Time,
    NewRowOfTheKey,
    WalBudget,
}

#[test]
fn refused_rows_of_a_topic_that_is_repaired_are_published_in_order() {
    use Cause::{AnotherRowStored, NewRowOfTheKey, Time, WalBudget};
    for on_dead in [OnDead::Continue, OnDead::Hold] {
        for cause in [AnotherRowStored, Time, NewRowOfTheKey, WalBudget] {
            repaired_topic(cause, on_dead, "k");
        }
        for cause in [AnotherRowStored, Time, WalBudget] {
            repaired_topic(cause, on_dead, "");
        }
    }
}

/// A topic refuses four rows of a key, and is repaired before they are tried once more.
fn repaired_topic(cause: Cause, on_dead: OnDead, key: &str) {
    let case = format!("{cause:?} {on_dead:?} {key:?}");
    let mut bench = bench(on_dead);
    bench.succeed("orders", "before");
    bench.push("orders", key, 4);
    refuse_everything(&mut bench, 2 * TICK);
    assert!(bench.batch().is_none(), "{case}: all rows wait");
    let mut rows = 4;
    match cause {
        Cause::AnotherRowStored => bench.succeed("orders", "other"),
        Cause::Time => bench.pass(PARK_AFTER),
        Cause::NewRowOfTheKey => {
            bench.push("orders", key, 1);
            rows = 5;
            if on_dead == OnDead::Hold {
                // The key waits for the verdict on its first row.
                bench.pass(PARK_AFTER);
            }
        }
        Cause::WalBudget => bench.lanes.spill(SpillMode::Failing, bench.now),
    }
    let stored = store_everything(&mut bench);
    assert_eq!(dead(&mut bench), 0, "{case}");
    assert!(stored[key].len() == rows, "{case}: {stored:?}");
    assert!(key.is_empty() || stored[key].is_sorted(), "{case}: {stored:?}");
}

#[test]
fn a_row_that_was_refused_as_its_topic_is_at_fault_has_two_tries_again() {
    let mut bench = LaneHarness::new();
    for key in 0..20 {
        bench.push("orders", &format!("k{key}"), 1);
    }
    refuse_everything(&mut bench, 2 * TICK);
    bench.pass(Duration::from_secs(2));
    // One server of the service knows the corrected schema, and the others do not yet.
    let first = bench.batch().unwrap();
    bench.store(first);
    bench.pass(Duration::from_secs(1));
    for batch in bench.batches().into_iter().take(5) {
        bench.refuse_as_invalid(batch);
    }
    assert_eq!(dead(&mut bench), 0);
}

#[test]
fn a_lone_invalid_row_is_dead_after_the_time_to_park() {
    for (park_after, dead_after) in [(2, 2), (30, 30), (3_600, 30)].map(secs) {
        for on_dead in [OnDead::Continue, OnDead::Hold] {
            for key in ["bad", ""] {
                let mut bench = LaneHarness::with(LanePolicy { park_after, on_dead, ..policy() });
                bench.push("orders", key, 1);
                refuse_one(&mut bench);
                assert_eq!(bench.due_in(), Some(dead_after));
                bench.pass(dead_after - Duration::from_millis(100));
                assert!(bench.batch().is_none());
                bench.pass(Duration::from_millis(100));
                assert_eq!(dead(&mut bench), 0);
                refuse_one(&mut bench);
                assert_eq!(dead(&mut bench), 1, "{on_dead:?} {key:?}");
            }
        }
    }
}

fn secs((a, b): (u64, u64)) -> (Duration, Duration) {
    (Duration::from_secs(a), Duration::from_secs(b))
}

#[test]
fn rare_rows_of_a_topic_that_refuses_every_row_wait() {
    for apart in [3, 29].map(Duration::from_secs) {
        let park_after = Duration::from_secs(30);
        let mut bench = LaneHarness::with(LanePolicy { park_after, ..policy() });
        bench.succeed("orders", "before");
        for _ in 0..25 {
            bench.push("orders", "k", 1);
            while let Some(batch) = bench.batch() {
                bench.refuse_as_invalid(batch);
            }
            bench.pass(apart);
        }
        assert_eq!(dead(&mut bench), 0, "{apart:?}");
    }
}

#[test]
fn without_dispatch_state_an_invalid_row_is_dead_at_once() {
    let park_after = LanePolicy::NEVER_PARKS;
    let mut bench = LaneHarness::with(LanePolicy { park_after, ..policy() });
    bench.push("orders", "bad", 1);
    let batch = bench.batch().unwrap();
    bench.refuse_as_invalid(batch);
    assert_eq!(dead(&mut bench), 1);
}

#[test]
fn invalid_rows_among_good_ones_are_dead_however_many_they_are() {
    for on_dead in [OnDead::Continue, OnDead::Hold] {
        let mut bench = bench(on_dead);
        let mut found = 0;
        bench.succeed("orders", "good");
        for number in 0..200 {
            bench.push("orders", &format!("bad{number}"), 1);
            refuse_one(&mut bench);
            if number % 19 == 18 || number == 199 {
                bench.succeed("orders", "good");
                bench.batches().into_iter().for_each(|batch| bench.refuse_as_invalid(batch));
            }
            found += dead(&mut bench);
        }
        assert_eq!(found, 200, "{on_dead:?}");
    }
}

#[test]
fn an_invalid_row_of_dispatch_state_is_dead() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "k", None);
    bench.pass(Duration::ZERO);
    bench.claim(&[(100, 0)]);
    let batch = bench.batch().unwrap();
    bench.refuse_as_invalid(batch);
    assert!(bench.finished().is_empty(), "it is not known yet");
    bench.pass(PARK_AFTER);
    refuse_one(&mut bench);
    let outcome = bench.finished().pop().map(|row| row.outcome);
    assert!(matches!(outcome, Some(Outcome::Dead { .. })), "{outcome:?}");
}

#[test]
fn invalid_rows_of_dispatch_state_of_three_keys_wait_for_their_topic() {
    let mut bench = LaneHarness::new();
    for key in ["a", "b", "c"] {
        bench.park("orders", key, None);
    }
    bench.pass(Duration::ZERO);
    for row in 100..103 {
        bench.claim(&[(row, 0)]);
    }
    refuse_everything(&mut bench, Duration::from_secs(5));
    let outcomes: Vec<_> = bench.finished().into_iter().map(|row| row.outcome).collect();
    let waits = |outcome: &Outcome| {
        matches!(outcome, Outcome::Again { attempts: 0, failure: Some(failure), .. }
            if matches!(failure.code, FailureCode::Call(_)))
    };
    assert!(outcomes.len() == 3 && outcomes.iter().all(waits), "{outcomes:?}");
}

#[test]
fn rows_before_a_row_that_may_be_stored_are_dead() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 2);
    refuse_one(&mut bench);
    refuse_one(&mut bench);
    let second = bench.batch().unwrap();
    bench.lanes.refused_or_undecided(second, &failure(FailureClass::Transient), bench.now);
    assert_eq!(dead(&mut bench), 1, "the second may be stored although its reply was lost");
}
