//! Parked keys without a lane, step by step.

use std::time::Duration;

use walrelay_core::{FailureClass, LaneId, LanePolicy};

use super::bench::{LaneHarness, policy, steady};

const MOMENT: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);

/// A bench in which one parked key has the only lane and another key is resting.
fn crowded() -> LaneHarness {
    let mut bench = LaneHarness::with(LanePolicy { parked_lanes: 1, ..policy() });
    bench.park("orders", "first", Some(SECOND * 3_600));
    assert_eq!(counts(&bench), (1, 0));
    bench.park("orders", "resting", Some(SECOND * 3_600));
    assert_eq!(counts(&bench), (1, 1));
    bench
}

/// The number of lanes, and the number of resting keys.
fn counts(bench: &LaneHarness) -> (usize, usize) {
    (bench.lanes.len(), bench.lanes.resting_keys())
}

/// Pushes rows of the resting key, which wakes the key. Returns its lane.
fn woken(bench: &mut LaneHarness, rows: u32) -> LaneId {
    bench.push("orders", "resting", rows);
    assert_eq!(counts(bench), (2, 0));
    let recorded = bench.taken_to_record();
    assert_eq!(recorded.len(), rows as usize, "behind those in the table");
    recorded[0].lane.unwrap()
}

#[test]
fn a_fingerprint_takes_a_few_bytes() {
    let mut bench = LaneHarness::with(LanePolicy { parked_lanes: 0, ..policy() });
    assert_eq!(bench.lanes.resting_memory(), 0);
    for key in 0..1_000 {
        bench.park("orders", &format!("k{key}"), Some(SECOND));
    }
    assert_eq!((bench.lanes.parked_keys(), counts(&bench)), (1_000, (0, 1_000)));
    let memory = bench.lanes.resting_memory();
    assert!((16_000..48_000).contains(&memory), "{memory}");
}

#[test]
fn keys_that_do_not_rest_flow_beside_one_that_does() {
    let mut bench = crowded();
    bench.push("orders", "live", 1);
    bench.push("other", "resting", 1);
    assert_eq!(bench.batches().len(), 2);
    assert_eq!(bench.lanes.resting_keys(), 1);
}

#[test]
fn a_key_woken_by_a_row_is_not_claimed_until_the_table_says_that_it_is_due() {
    let mut bench = crowded();
    woken(&mut bench, 1);
    bench.pass(Duration::ZERO);
    assert!(!bench.lanes.has_claims());
    bench.mark_due("orders", "resting");
    bench.pass(Duration::ZERO);
    assert!(bench.lanes.has_claims());
}

#[test]
fn the_head_of_a_key_that_rested_goes_alone() {
    let mut bench = crowded();
    bench.mark_due("orders", "resting");
    bench.pass(Duration::ZERO);
    bench.claim(&[(1, 0), (2, 0)]);
    assert_eq!(bench.batch().unwrap().messages().len(), 1, "its last delivery may have failed");
}

#[test]
fn a_key_rests_again_when_all_its_rows_are_durable() {
    let mut bench = crowded();
    let lane = woken(&mut bench, 2);
    bench.lanes.appended(lane);
    assert_eq!(counts(&bench), (2, 0), "one is not");
    bench.lanes.appended(lane);
    assert_eq!(counts(&bench), (1, 1));
}

#[test]
fn a_key_that_is_looked_at_within_half_a_second_keeps_its_lane() {
    let half = Duration::from_millis(500);
    for (passed, rests) in [(SECOND * 60 - half, 1), (SECOND * 60 - half + MOMENT, 0)] {
        let mut bench = crowded();
        let lane = woken(&mut bench, 1);
        bench.pass(passed);
        bench.lanes.appended(lane);
        assert_eq!(bench.lanes.resting_keys(), rests, "after {passed:?}");
    }
}

#[test]
fn a_key_whose_time_the_table_does_not_know_keeps_its_lane() {
    let mut bench = crowded();
    bench.park("orders", "untimed", None);
    assert_eq!(counts(&bench), (2, 1));
}

#[test]
fn a_key_that_backs_off_rests_where_lanes_are_scarce() {
    // The delay is never below half a second, for any random number.
    let redelivery = steady(SECOND * 10);
    for (parked_lanes, expected) in [(1, (1, 1)), (2, (2, 0))] {
        let mut bench = LaneHarness::with(LanePolicy { parked_lanes, redelivery, ..policy() });
        bench.park("orders", "first", Some(SECOND * 3_600));
        bench.park("orders", "failing", None);
        bench.pass(Duration::ZERO);
        let claims = bench.claims();
        bench.answer(&claims[0], &[(1, 0), (2, 0)]);
        bench.refuse_all(FailureClass::Transient);
        assert_eq!(counts(&bench), expected, "{parked_lanes} lanes");
        assert_eq!(bench.lanes.parked_keys(), 2);
    }
}

#[test]
fn more_keys_are_woken_when_half_of_the_lanes_are_left() {
    assert!(!crowded().lanes.has_lanes_to_wake(), "no lane is left");
    let mut bench = LaneHarness::with(LanePolicy { parked_lanes: 1, ..policy() });
    bench.park("orders", "first", Some(SECOND * 5));
    bench.park("orders", "resting", Some(SECOND * 5));
    bench.pass(SECOND * 5);
    let claims = bench.claims();
    bench.answer(&claims[0], &[]);
    assert_eq!(counts(&bench), (0, 1), "a lane is left");
    assert!(bench.lanes.has_lanes_to_wake());
    assert!(!LaneHarness::new().lanes.has_lanes_to_wake(), "none rests");
}

#[test]
fn a_key_that_rests_is_claimed_when_its_head_has_no_time_of_its_own() {
    let mut bench = crowded();
    let topic = walrelay_core::Topic::from("orders");
    bench.lanes.mark_without_due_time(&topic, "first", bench.now);
    bench.pass(Duration::ZERO);
    assert!(!bench.lanes.has_claims(), "it does not rest, and has a time at which it looks");
    bench.lanes.mark_without_due_time(&topic, "resting", bench.now);
    bench.pass(Duration::ZERO);
    assert!(bench.lanes.has_claims());
    assert_eq!(counts(&bench), (2, 0));
}

#[test]
fn a_key_whose_rows_nobody_knew_of_is_claimed_when_its_head_has_no_time_and_live_rows_wait_behind()
{
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 1);
    bench.lanes.mark_without_due_time(&walrelay_core::Topic::from("orders"), "k", bench.now);
    assert!(bench.batch().is_none(), "it goes behind what is in the table");
    let recorded = bench.taken_to_record();
    bench.lanes.appended(recorded[0].lane.unwrap());
    bench.pass(SECOND);
    assert_eq!(bench.claims().len(), 1);
}
