//! Rows that wait in memory behind the last rows of their key in dispatch state.

use std::time::Duration;

use walrelay_core::{ClaimAnswer, ClaimKey, FailureClass, LanePolicy, OnDead, SpillMode};

use super::bench::{LaneHarness, policy};

const SECOND: Duration = Duration::from_secs(1);

/// A bench with one parked key, after its last row in the table was claimed. The next rows of the key
/// wait.
fn last_row_claimed(policy: LanePolicy) -> (LaneHarness, ClaimKey) {
    let mut bench = LaneHarness::with(policy);
    bench.succeed("well", "k");
    bench.park("orders", "k", None);
    bench.pass(Duration::ZERO);
    let claimed = bench.claims().remove(0);
    bench.answer(&claimed, &[(0, 0)]);
    bench.push("orders", "k", 3);
    assert!(bench.taken_to_record().is_empty(), "they wait in memory");
    (bench, claimed)
}

#[test]
fn a_busy_key_returns_to_its_live_lane_although_it_gets_rows_during_every_claim() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "k", None);
    let mut in_table = vec![(0, 0)];
    for _ in 0..3 {
        bench.pass(SECOND);
        let claims = bench.claims();
        bench.push("orders", "k", 2);
        let recorded = bench.taken_to_record();
        recorded.iter().for_each(|row| bench.lanes.appended(row.lane.expect("a lane")));
        bench.answer(&claims[0], &in_table);
        in_table = (0..).take(recorded.len()).map(|row| (row, 0)).collect();
        if let Some(batch) = bench.batch() {
            bench.push("orders", "k", 2);
            bench.store(batch);
        }
    }
    let batch = bench.batch().expect("the key is live again");
    assert!(batch.committed_at().is_some());
    assert_eq!(bench.lanes.parked_keys(), 0);
    bench.push("orders", "k", 1);
    assert!(bench.taken_to_record().is_empty());
}

#[test]
fn rows_that_wait_are_sent_once_the_table_holds_none_before_them() {
    let (mut bench, _) = last_row_claimed(policy());
    let last = bench.batch().unwrap();
    assert!(bench.batch().is_none(), "they wait for the outcome");
    bench.store(last);
    bench.pass(Duration::ZERO);
    assert!(bench.batch().is_none(), "the table may hold more");
    bench.claim(&[]);
    assert_eq!(bench.batch().unwrap().messages().len(), 3);
}

#[test]
fn rows_that_wait_go_into_the_table_when_the_last_rows_cannot_be_delivered() {
    let (mut bench, _) = last_row_claimed(policy());
    assert_eq!(bench.refuse_all(FailureClass::Transient), 1);
    assert_eq!(bench.taken_to_record().len(), 3);
}

#[test]
fn rows_that_wait_go_into_the_table_behind_a_row_that_somebody_holds() {
    let (mut bench, claimed) = last_row_claimed(policy());
    let last = bench.batch().unwrap();
    bench.store(last);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.claims().len(), 1);
    let held = ClaimAnswer { rows: Vec::new(), held_for: Some(SECOND) };
    bench.lanes.claimed(claimed.lane, held, bench.now);
    bench.lanes.check();
    assert_eq!(bench.taken_to_record().len(), 3);
}

#[test]
fn rows_that_wait_go_into_the_table_before_a_dead_row_that_holds_their_key() {
    let (mut bench, _) = last_row_claimed(LanePolicy { on_dead: OnDead::Hold, ..policy() });
    bench.push_dead("orders", "k");
    let recorded = bench.taken_to_record();
    let ids: Vec<_> = recorded.iter().map(|row| row.message.event_id()).collect();
    assert_eq!(ids, ["1", "2", "3", "4"]);
}

#[test]
fn rows_that_wait_go_into_the_table_when_the_wal_runs_short() {
    let (mut bench, _) = last_row_claimed(policy());
    bench.lanes.spill(SpillMode::Failing, bench.now);
    assert_eq!(bench.taken_to_record().len(), 3);
}

#[test]
fn rows_that_wait_go_into_the_table_on_request_and_so_do_the_next_until_a_claim() {
    let (mut bench, _) = last_row_claimed(policy());
    bench.lanes.record_waiting();
    assert_eq!(bench.taken_to_record().len(), 3);
    bench.push("orders", "k", 1);
    assert_eq!(bench.taken_to_record().len(), 1);
}

#[test]
fn no_more_than_ten_thousand_rows_of_a_key_wait() {
    let (mut bench, _) = last_row_claimed(policy());
    bench.push("orders", "k", 10_000 - 4);
    assert!(bench.taken_to_record().is_empty());
    bench.push("orders", "k", 2);
    assert_eq!(bench.taken_to_record().len(), 10_001);
}
