//! Parked keys step by step: into the table, back from it, and into a live lane again.

use std::time::Duration;

use walrelay_core::{
    Backoff, Batch, ClaimAnswer, FailureClass, LaneId, LanePolicy, Outcome, RecordReason,
    RowToRecord, SpillMode, Topic,
};

use super::bench::{LaneHarness, message, policy, steady};

const MOMENT: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
/// The delay after which a key that was not ready is checked again.
const CLAIM_RETRY_PAUSE: Duration = Duration::from_millis(20);

fn nothing(held_for: Option<Duration>) -> ClaimAnswer {
    ClaimAnswer { rows: Vec::new(), held_for }
}

/// A bench with one parked key that is being claimed.
fn claiming(policy: LanePolicy, key: &str) -> (LaneHarness, LaneId) {
    let mut bench = LaneHarness::with(policy);
    bench.succeed("well", "k");
    bench.park("orders", key, None);
    bench.pass(Duration::ZERO);
    let lane = bench.claims().first().unwrap().lane;
    (bench, lane)
}

fn answer(bench: &mut LaneHarness, lane: LaneId, key: &str, rows: &[(u32, u32)]) {
    let rows = rows.iter().map(|(row, attempts)| (message(*row, "orders", key), *attempts));
    let claimed = ClaimAnswer { rows: rows.collect(), held_for: None };
    bench.lanes.claimed(lane, claimed, bench.now);
    bench.lanes.check();
}

/// The outcomes of claimed rows after a failed delivery: attempts, and whether the row has a retry
/// time. `None` marks dead rows.
fn verdicts(bench: &mut LaneHarness) -> Vec<(u32, Option<bool>)> {
    let finished = bench.finished().into_iter();
    finished
        .map(|row| match row.outcome {
            Outcome::Again { attempts, after, failure, .. } => {
                assert_eq!(after.is_some(), failure.is_some(), "the reason goes with the time");
                (attempts, Some(after.is_some()))
            }
            Outcome::Dead { attempts, .. } => (attempts, None),
            Outcome::Published { .. } => panic!("nothing was published"),
        })
        .collect()
}

fn is_stuck_with_time(row: &RowToRecord) -> Option<bool> {
    match &row.reason {
        RecordReason::Stuck { next_attempt_in, .. } => Some(next_attempt_in.is_some()),
        RecordReason::Queued | RecordReason::Spilled { .. } | RecordReason::Dead { .. } => None,
    }
}

#[test]
fn after_a_start_a_parked_key_is_looked_at_when_its_head_is_due() {
    for due_in in [3, 30] {
        let mut bench = LaneHarness::new();
        bench.park("orders", "k", Some(SECOND * due_in));
        assert_eq!(bench.due_in(), Some(SECOND * due_in));
        bench.pass(SECOND * due_in - MOMENT);
        assert!(!bench.lanes.has_claims());
        bench.pass(MOMENT);
        assert!(bench.lanes.has_claims());
    }
}

#[test]
fn so_many_keys_are_claimed_at_once_and_the_others_later() {
    let mut bench = LaneHarness::new();
    for key in ["a", "b", "c"] {
        bench.park("orders", key, None);
    }
    assert!(!bench.lanes.has_claims());
    bench.pass(SECOND);
    assert_eq!(bench.lanes.claims(2, bench.now).len(), 2);
    assert!(bench.lanes.has_claims());
    assert_eq!(bench.lanes.claims(2, bench.now).len(), 1);
    assert!(!bench.lanes.has_claims());
}

#[test]
fn a_key_that_is_put_off_before_it_was_claimed_waits() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "k", None);
    bench.pass(Duration::ZERO);
    bench.park("orders", "k", Some(SECOND));
    assert!(bench.claims().is_empty());
    bench.pass(SECOND);
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn an_operator_makes_a_parked_key_due_at_once() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "k", Some(SECOND));
    bench.mark_due("orders", "k");
    bench.pass(Duration::ZERO);
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn a_key_that_is_due_already_or_on_its_way_is_not_noted_twice() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "k", None);
    bench.pass(Duration::ZERO);
    bench.mark_due("orders", "k");
    assert_eq!(bench.due_in(), None);
    let claims = bench.claims();
    bench.mark_due("orders", "k");
    bench.answer(&claims[0], &[(1, 0)]);
    bench.mark_due("orders", "k");
    assert_eq!((bench.due_in(), bench.batch().is_some()), (None, true));
}

#[test]
fn a_live_key_whose_rows_are_retried_goes_behind_them() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 2);
    bench.mark_due("orders", "k");
    let recorded = bench.taken_to_record();
    assert!(recorded.iter().all(|row| matches!(row.reason, RecordReason::Queued)));
    assert_eq!((recorded.len(), bench.batch().is_none()), (2, true));
    bench.pass(Duration::ZERO);
    assert_eq!(bench.claims().len(), 1, "what is recorded comes behind what is claimed");
}

#[test]
fn a_key_is_not_claimed_while_a_batch_of_it_is_out() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 1);
    let batch = bench.batch().unwrap();
    bench.mark_due("orders", "k");
    bench.pass(Duration::ZERO);
    assert!(bench.claims().is_empty());
    assert_eq!(bench.due_in(), Some(CLAIM_RETRY_PAUSE));
    bench.store(batch);
    bench.pass(CLAIM_RETRY_PAUSE);
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn a_batch_refused_after_its_key_was_parked_goes_into_the_table() {
    for class in [FailureClass::Transient, FailureClass::Row] {
        let mut bench = LaneHarness::new();
        bench.push("orders", "k", 2);
        let batch = bench.batch().unwrap();
        bench.mark_due("orders", "k");
        bench.refuse_as(batch, class);
        let times: Vec<_> = bench.taken_to_record().iter().map(is_stuck_with_time).collect();
        assert_eq!(times, [Some(true), Some(false)], "{class:?}: the head has a time of its own");
        assert!(bench.batch().is_none());
    }
}

#[test]
fn rows_without_a_key_flow_while_others_of_the_topic_are_in_the_table() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "", None);
    bench.push("orders", "", 2);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.claims().len(), 1, "whether rows wait or not");
    assert_eq!(bench.batch().unwrap().messages().len(), 2);
    assert!(bench.taken_to_record().is_empty());
}

/// A lane that is refused every half second while another one succeeds. The lane was refused once
/// at the start and then `halves` times. Its last batch is returned unanswered.
fn stuck_for(halves: u32, key: &str) -> (LaneHarness, Batch) {
    let policy = LanePolicy {
        park_after: SECOND * 2,
        transient: steady(MOMENT * 10),
        redelivery: steady(SECOND),
        ..policy()
    };
    let mut bench = LaneHarness::with(policy);
    bench.succeed("well", "k");
    bench.push("orders", key, 2);
    let mut sick = bench.batch().unwrap();
    for _ in 0..halves {
        bench.refuse(sick);
        bench.pass(SECOND / 2);
        bench.push("well", "k", 1);
        let mut out = bench.batches();
        let well = out.pop().unwrap();
        sick = out.pop().unwrap();
        bench.store(well);
    }
    (bench, sick)
}

#[test]
fn a_lane_is_parked_once_it_was_stuck_long_enough_in_healthy_time() {
    for key in ["k", ""] {
        let (mut early, batch) = stuck_for(3, key);
        early.refuse(batch);
        assert_eq!(early.lanes.parked_keys(), 0, "a second and a half");
        let (mut bench, last) = stuck_for(4, key);
        bench.refuse(last);
        assert_eq!(bench.lanes.parked_keys(), 1, "two seconds");
        let times: Vec<_> = bench.taken_to_record().iter().map(is_stuck_with_time).collect();
        assert_eq!(times, [Some(true), Some(key.is_empty())], "rows without a key are due each");
        let wait = bench.due_in().unwrap();
        assert!(wait >= SECOND / 10 && wait <= SECOND, "{wait:?}");
    }
}

#[test]
fn a_lane_is_parked_when_its_time_is_over_neither_sooner_nor_a_back_off_later() {
    for class in [FailureClass::Transient, FailureClass::Operator] {
        let policy = LanePolicy {
            park_after: SECOND * 2,
            transient: steady(SECOND * 60),
            operator: steady(SECOND * 60),
            ..policy()
        };
        let mut bench = LaneHarness::with(policy);
        bench.succeed("well", "k");
        // A silence before the first attempt does not count as stuck.
        bench.pass(Duration::from_millis(900));
        bench.push("orders", "sick", 1);
        bench.refuse_all(class);
        const STEP: Duration = Duration::from_millis(100);
        let mut stuck = Duration::ZERO;
        while bench.lanes.parked_keys() == 0 {
            bench.pass(STEP);
            stuck += STEP;
            bench.push("well", "k", 1);
            for batch in bench.batches() {
                match batch.ordering_key() {
                    "sick" => bench.refuse_as(batch, class),
                    _ => bench.store(batch),
                }
            }
        }
        assert_eq!(stuck, SECOND * 2, "{class:?}");
    }
}

#[test]
fn an_outage_parks_nobody_however_long_a_lane_was_stuck_before() {
    let (mut bench, batch) = stuck_for(4, "k");
    bench.pass(SECOND * 3);
    bench.refuse(batch);
    assert!(bench.lanes.is_outage(bench.now));
    assert_eq!(bench.lanes.parked_keys(), 0);
}

#[test]
fn a_parked_key_is_claimed_when_its_rows_are_durable() {
    let policy = LanePolicy { operator: steady(MOMENT * 10), park_after: SECOND * 2, ..policy() };
    let mut bench = LaneHarness::with(policy);
    bench.push("orders", "k", 2);
    bench.refuse_all(FailureClass::Operator);
    bench.pass(SECOND * 2 - MOMENT);
    bench.refuse_all(FailureClass::Operator);
    assert_eq!(bench.lanes.parked_keys(), 0, "a moment is left");
    bench.pass(MOMENT * 10);
    bench.refuse_all(FailureClass::Operator);
    assert_eq!(bench.lanes.parked_keys(), 1, "the clock tells, though nothing is stored");
    let lane = bench.taken_to_record()[0].lane.unwrap();
    bench.pass(SECOND * 10);
    for durable in 0..2 {
        assert!(bench.claims().is_empty(), "{durable} of 2 rows are durable");
        assert_eq!(bench.due_in(), Some(CLAIM_RETRY_PAUSE));
        bench.lanes.appended(lane);
        bench.pass(CLAIM_RETRY_PAUSE);
    }
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn a_key_is_live_again_when_the_table_holds_nothing_of_it() {
    let (mut bench, lane) = claiming(policy(), "k");
    bench.lanes.claimed(lane, nothing(None), bench.now);
    assert_eq!((bench.lanes.parked_keys(), bench.lanes.len()), (0, 0));
    bench.push("orders", "k", 1);
    assert!(bench.batch().is_some());
}

#[test]
fn a_key_that_is_held_is_looked_at_when_the_table_says() {
    let (mut bench, lane) = claiming(policy(), "k");
    bench.lanes.claimed(lane, nothing(Some(SECOND * 3)), bench.now);
    assert_eq!((bench.lanes.parked_keys(), bench.due_in()), (1, Some(SECOND * 3)));
}

#[test]
fn an_answer_is_stale_when_rows_were_recorded_after_the_question() {
    // A row on its way into the table, and a row that is already there.
    for is_durable in [false, true] {
        let (mut bench, lane) = claiming(policy(), "k");
        bench.push("orders", "k", 1);
        if is_durable {
            bench.lanes.appended(lane);
        }
        bench.lanes.claimed(lane, nothing(None), bench.now);
        assert_eq!((bench.lanes.parked_keys(), bench.due_in()), (1, Some(CLAIM_RETRY_PAUSE)));
    }
}

#[test]
fn an_answer_is_stale_while_rows_are_on_their_way_into_the_table() {
    let mut bench = LaneHarness::new();
    bench.park("orders", "k", None);
    bench.push("orders", "k", 1);
    bench.pass(Duration::ZERO);
    let claims = bench.claims();
    bench.answer(&claims[0], &[]);
    assert_eq!((bench.lanes.parked_keys(), bench.due_in()), (1, Some(CLAIM_RETRY_PAUSE)));
    bench.lanes.appended(claims[0].lane);
    bench.pass(CLAIM_RETRY_PAUSE);
    bench.claim(&[]);
    assert_eq!(bench.lanes.parked_keys(), 0);
}

#[test]
fn a_claim_that_failed_is_tried_again_at_the_time_told() {
    let (mut bench, lane) = claiming(policy(), "k");
    bench.lanes.claim_failed(lane, bench.now + SECOND * 3);
    assert_eq!(bench.due_in(), Some(SECOND * 3));
    bench.pass(SECOND * 3);
    assert_eq!(bench.claims().len(), 1);
}

#[test]
fn a_key_rests_when_nothing_of_it_is_on_its_way() {
    let mut bench = LaneHarness::new();
    let rests = |of: &LaneHarness| of.lanes.rests(&Topic::from("orders"), "k", of.now);
    assert!(rests(&bench), "nobody knows it");
    bench.park("orders", "k", Some(SECOND));
    assert!(rests(&bench), "it is not due");
    bench.pass(SECOND);
    assert!(!rests(&bench), "it is due");
    let claims = bench.claims();
    assert!(!rests(&bench), "it is being claimed");
    bench.answer(&claims[0], &[(1, 0)]);
    assert!(!rests(&bench), "it is being published");
}

#[test]
fn only_a_row_that_failed_alone_and_by_itself_counts_an_attempt() {
    use FailureClass::{Operator, Transient};
    // (claimed rows with their attempts, the failure, whether it is an outage, the expected
    // outcomes).
    type Case = (&'static [(u32, u32)], FailureClass, bool, &'static [(u32, Option<bool>)]);
    let cases: &[Case] = &[
        (&[(1, 0)], Transient, false, &[(1, Some(true))]),
        (&[(1, 1)], Transient, false, &[(2, None)]),
        (&[(1, 0), (2, 0)], Transient, false, &[(0, Some(true)), (0, Some(false))]),
        (&[(1, 5)], Operator, false, &[(5, Some(true))]),
        (&[(1, 5)], Transient, true, &[(5, Some(true))]),
    ];
    for (rows, class, is_outage, expected) in cases {
        let (mut bench, mut lane) = claiming(policy(), "k");
        if rows.len() == 1 {
            lane = failed_while_others_succeed(&mut bench, lane);
        }
        answer(&mut bench, lane, "k", rows);
        let batch = bench.batch().unwrap();
        assert_eq!(batch.messages().len(), rows.len());
        if *is_outage {
            bench.now += SECOND * 60;
        }
        bench.refuse_as(batch, *class);
        assert_eq!(verdicts(&mut bench), *expected, "{rows:?} {class:?} {is_outage}");
        assert!(bench.due_in().unwrap() >= Duration::from_millis(100), "it backs off");
    }
}

/// Fails one delivery of the key, then stores a row of another key of the topic. Returns the lane
/// of the key's next claim.
fn failed_while_others_succeed(bench: &mut LaneHarness, lane: LaneId) -> LaneId {
    answer(bench, lane, "k", &[(0, 0)]);
    bench.refuse_all(FailureClass::Transient);
    assert_eq!(verdicts(bench), [(0, Some(true))], "nobody knows yet whose fault it is");
    bench.pass(SECOND);
    bench.succeed("orders", "well");
    bench.claims().first().unwrap().lane
}

#[test]
fn an_outage_counts_no_attempt_from_its_first_moment_on() {
    let policy = LanePolicy { park_after: SECOND * 1_000, ..policy() };
    let (mut bench, mut lane) = claiming(policy, "k");
    for _ in 0..5 {
        answer(&mut bench, lane, "k", &[(1, 0)]);
        bench.refuse_all(FailureClass::Transient);
        assert_eq!(verdicts(&mut bench), [(0, Some(true))], "nothing has been stored since");
        bench.pass(SECOND * 60);
        lane = bench.claims().first().unwrap().lane;
    }
    bench.succeed("orders", "well");
    answer(&mut bench, lane, "k", &[(1, 0)]);
    bench.refuse_all(FailureClass::Transient);
    assert_eq!(verdicts(&mut bench), [(1, Some(true))], "others succeed, and it does not");
}

#[test]
fn an_outage_of_one_topic_counts_no_attempt_however_much_of_another_is_stored() {
    let policy = LanePolicy { park_after: SECOND * 1_000, ..policy() };
    let (mut bench, mut lane) = claiming(policy, "k");
    for _ in 0..5 {
        answer(&mut bench, lane, "k", &[(1, 0)]);
        bench.refuse_all(FailureClass::Transient);
        assert_eq!(verdicts(&mut bench), [(0, Some(true))], "nothing of its topic was stored");
        bench.pass(SECOND * 60);
        bench.succeed("well", "k");
        lane = bench.claims().first().unwrap().lane;
    }
    bench.succeed("orders", "well");
    answer(&mut bench, lane, "k", &[(1, 0)]);
    bench.refuse_all(FailureClass::Transient);
    assert_eq!(verdicts(&mut bench), [(1, Some(true))], "its topic takes others, and not it");
}

#[test]
fn an_outage_of_one_topic_that_comes_and_goes_counts_no_attempt_beside_one_that_flows() {
    let policy = LanePolicy { park_after: SECOND * 1_000, ..policy() };
    let (mut bench, mut lane) = claiming(policy, "k");
    for _ in 0..5 {
        answer(&mut bench, lane, "k", &[(1, 0)]);
        bench.refuse_all(FailureClass::Transient);
        assert_eq!(verdicts(&mut bench), [(0, Some(true))]);
        // The other topic succeeds between the refusals of this one.
        bench.succeed("well", "k");
        bench.push("orders", "well", 1);
        assert_eq!(bench.refuse_all(FailureClass::Transient), 1);
        bench.pass(SECOND * 60);
        let well = bench.batch().unwrap();
        bench.store(well);
        lane = bench.claims().first().unwrap().lane;
    }
}

#[test]
fn an_outage_that_comes_and_goes_counts_no_attempt_where_keys_that_were_well_are_refused_with_the_row()
 {
    let policy = LanePolicy { park_after: SECOND * 1_000, ..policy() };
    for other_key_fails_too in [true, false] {
        let (mut bench, mut lane) = claiming(policy, "k");
        let mut counted = 0;
        for _ in 0..4 {
            // The service is down: it refuses the parked row and, in one case, then a healthy key.
            answer(&mut bench, lane, "k", &[(1, counted)]);
            bench.refuse_all(FailureClass::Transient);
            match verdicts(&mut bench)[..] {
                [(attempts, _)] => counted = attempts,
                _ => panic!("one row was claimed"),
            }
            bench.push("orders", "well", 1);
            if other_key_fails_too {
                assert_eq!(bench.refuse_all(FailureClass::Transient), 1);
            }
            // The service is up again.
            bench.pass(SECOND * 5);
            let well = bench.batch().unwrap();
            bench.store(well);
            bench.pass(SECOND * 60);
            lane = bench.claims().first().unwrap().lane;
            if counted == 2 {
                break;
            }
        }
        assert_eq!(counted, if other_key_fails_too { 0 } else { 2 });
    }
}

#[test]
fn after_a_failed_delivery_the_head_goes_alone_and_what_is_behind_it_is_let_go() {
    for key in ["k", ""] {
        let (mut bench, lane) = claiming(policy(), key);
        answer(&mut bench, lane, key, &[(1, 0), (2, 0)]);
        let batch = bench.batch().unwrap();
        bench.refuse(batch);
        let each = Some(key.is_empty());
        assert_eq!(verdicts(&mut bench), [(0, Some(true)), (0, each)], "key {key:?}");
        bench.pass(SECOND);
        bench.succeed("orders", "well");
        bench.claim(&[(1, 0), (2, 1)]);
        let head = bench.batch().unwrap();
        assert_eq!(head.messages().len(), 1);
        bench.refuse(head);
        assert_eq!(verdicts(&mut bench), [(1, Some(true)), (1, Some(false))], "key {key:?}");
    }
}

#[test]
fn failed_deliveries_of_a_key_double_its_rest() {
    let redelivery = Backoff { base: Duration::from_millis(100), cap: SECOND * 600 };
    let policy = LanePolicy { redelivery, park_after: SECOND * 1_000, ..policy() };
    let (mut bench, mut lane) = claiming(policy, "k");
    for doublings in 0..10 {
        answer(&mut bench, lane, "k", &[(1, 0)]);
        bench.refuse_all(FailureClass::Operator);
        let (wait, whole) = (bench.due_in().unwrap(), redelivery.base * (1 << doublings));
        assert!(wait >= whole / 10 && wait <= whole, "{wait:?} of {whole:?}");
        // A topic that waits for an operator is probed at least every five seconds.
        bench.pass(wait.max(SECOND * 10));
        lane = bench.claims().first().unwrap().lane;
    }
}

#[test]
fn in_an_outage_a_parked_key_may_be_the_one_that_tries() {
    let policy = LanePolicy { redelivery: steady(SECOND * 60), ..policy() };
    let (mut bench, lane) = claiming(policy, "k");
    answer(&mut bench, lane, "k", &[(1, 0)]);
    let batch = bench.batch().unwrap();
    bench.pass(SECOND * 60);
    bench.refuse(batch);
    assert_eq!(bench.due_in(), Some(SECOND * 2));
}

#[test]
fn what_comes_behind_a_spilled_row_of_its_key_is_spilled_too() {
    let mut bench = LaneHarness::new();
    bench.push("orders", "k", 1);
    bench.lanes.spill(SpillMode::Everything, bench.now);
    bench.lanes.spill(SpillMode::Off, bench.now);
    bench.push("orders", "k", 1);
    bench.push("orders", "live", 1);
    let recorded = bench.taken_to_record();
    let times: Vec<_> = recorded
        .iter()
        .map(|row| match &row.reason {
            RecordReason::Spilled { next_attempt_in, .. } => next_attempt_in.is_some(),
            RecordReason::Stuck { .. } | RecordReason::Queued | RecordReason::Dead { .. } => {
                panic!("{row:?}")
            }
        })
        .collect();
    assert_eq!(times, [true, false], "the first has a time, and the other key flows");
}

#[test]
fn what_is_spilled_after_a_refusal_says_so_of_the_first_row_of_its_key() {
    // Rows that are refused before spilling starts, and rows that are refused during it.
    for spills_before in [false, true] {
        let mut bench = LaneHarness::new();
        bench.push("orders", "k", 2);
        if spills_before {
            bench.lanes.spill(SpillMode::Failing, bench.now);
        }
        bench.refuse_all(FailureClass::Operator);
        bench.lanes.spill(SpillMode::Everything, bench.now);
        bench.push("orders", "untried", 1);
        let recorded = bench.taken_to_record();
        let refused: Vec<_> = recorded
            .iter()
            .map(|row| match &row.reason {
                RecordReason::Spilled { failure, .. } => {
                    failure.as_ref().map(|failure| failure.class) == Some(FailureClass::Operator)
                }
                RecordReason::Stuck { .. } | RecordReason::Queued | RecordReason::Dead { .. } => {
                    panic!("{row:?}")
                }
            })
            .collect();
        assert_eq!(refused, [true, false, false], "{spills_before}");
    }
}

#[test]
fn what_comes_behind_a_spilled_row_is_spilled_after_a_restart_too() {
    let mut bench = LaneHarness::new();
    let topic = Topic::from("orders");
    bench.lanes.load_spilled(&topic, "k", Some(SECOND), bench.now);
    bench.lanes.load_parked(&topic, "failed", Some(SECOND), bench.now);
    for key in ["k", "failed"] {
        bench.push("orders", key, 1);
    }
    let recorded = bench.taken_to_record();
    assert!(matches!(recorded[0].reason, RecordReason::Spilled { next_attempt_in: None, .. }));
    assert!(matches!(recorded[1].reason, RecordReason::Queued));
}
