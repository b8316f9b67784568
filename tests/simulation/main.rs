//! Seeded runs of the production loop in virtual time.
//!
//! One or several processes run the supervisor and all code below it. They read real bytes from a
//! scripted server. Pub/Sub and the dispatch table are simulated with faults. One seed determines
//! everything. `WALRELAY_SIM_SEED=N` runs one seed and prints its story, `WALRELAY_SIM_SEEDS=N`
//! runs the first N.

mod bugs;
mod database;
mod events;
mod harness;
mod instance;
mod judge;
mod mutants;
mod plan;
mod pubsub;
mod recoveries;
mod relay;
mod replayer;
mod replays;
mod resets;
mod rows;
mod run;
mod store_conformance;
mod table;
mod topic_replays;
mod world;

use std::time::Duration;

use bugs::{ReplayBug, ResetBug};
use harness::Harness;
use harness::PlainHarness::{
    DisregardsTheRecord, Faithful, ReadsParkedKeysEarly, Replay, Reset, Unbudgeted, UntilCaughtUp,
};
use judge::Fault;
use mutants::{ConfirmingKeepalivesInTransactions, Impatient, PublisherBug, StoreBug};
use plan::{Plan, RESET_STEPS};
use run::Outcome;
use walrelay_core::WalBudgetLimit;

/// The number of seeds of a regular run, over all ranges.
const SEEDS_DEFAULT: u64 = 1_000;

/// The number of test functions that share the seeds, so that every processor has work.
const RANGES: u64 = 4;

fn simulate<F: Harness>(seed: u64, plan: Option<Plan>, fitting: F, lines: usize) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(run::run(seed, plan, fitting, lines))
}

#[expect(
    clippy::disallowed_methods,
    reason = "how many seeds, is for whoever runs the tests to say"
)]
fn number_from(names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

fn the_promise_holds_for_seeds_of_range(range: u64) {
    if let Some(seed) = number_from(&["WALRELAY_SIM_SEED", "SEED"]) {
        if range == 0 {
            let outcome = simulate(seed, None, Faithful, usize::MAX);
            eprintln!("{}", outcome.story);
            assert!(outcome.findings.is_empty(), "seed {seed}: {:#?}", outcome.findings);
        }
        return;
    }
    let seeds = number_from(&["WALRELAY_SIM_SEEDS"]).unwrap_or(SEEDS_DEFAULT);
    let (mut stored, mut repeated) = (0, 0);
    let mut failed = Vec::new();
    for seed in (range..seeds).step_by(usize::try_from(RANGES).unwrap_or(1)) {
        let outcome = simulate(seed, None, Faithful, STORY_LINES);
        stored += outcome.stored;
        repeated += outcome.repeated;
        if !outcome.findings.is_empty() {
            failed.push((seed, outcome));
        }
    }
    eprintln!("range {range}: {stored} messages stored, {repeated} of them repeated");
    let Some((first, outcome)) = failed.first() else { return };
    let others: Vec<_> = failed.iter().map(|(other, run)| (other, run.findings[0].0)).collect();
    panic!(
        "{} seeds failed: {others:?}\nseed {first}: {:#?}\nthe end of its story:\n{}\n\
         all of it: WALRELAY_SIM_SEED={first}",
        failed.len(),
        outcome.findings,
        outcome.story,
    );
}

/// The number of events that a failing seed prints at once.
const STORY_LINES: usize = 80;

#[test]
fn the_promise_holds_for_every_seed_1_of_4() {
    the_promise_holds_for_seeds_of_range(0);
}

#[test]
fn the_promise_holds_for_every_seed_2_of_4() {
    the_promise_holds_for_seeds_of_range(1);
}

#[test]
fn the_promise_holds_for_every_seed_3_of_4() {
    the_promise_holds_for_seeds_of_range(2);
}

#[test]
fn the_promise_holds_for_every_seed_4_of_4() {
    the_promise_holds_for_seeds_of_range(3);
}

#[test]
fn rows_of_a_key_wait_at_a_restart_for_earlier_ones_that_the_slot_sends_again() {
    for seed in 0..20 {
        let plan = Plan::parked_behind_a_row_that_is_out();
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        assert!(
            outcome.findings.is_empty(),
            "seed {seed}: {:#?}\n{}",
            outcome.findings,
            outcome.story
        );
    }
}

#[test]
fn rows_beyond_the_budget_stay_in_the_slot_during_an_outage() {
    let outcome = simulate(0, Some(Plan::flood()), Faithful, STORY_LINES);
    assert!(outcome.findings.is_empty(), "{:#?}\n{}", outcome.findings, outcome.story);
}

#[test]
fn a_key_that_is_replayed_in_place_has_its_history_in_one_piece_and_then_what_has_waited() {
    for seed in 0..40 {
        let plan = Plan::replays_under_traffic();
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        let Outcome { findings, story, replayed, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
        assert!(replayed > 20, "seed {seed}: {replayed} rows came again\n{story}");
    }
}

#[test]
fn a_reset_that_is_killed_after_any_step_is_finished_and_every_key_comes_again_from_the_target() {
    for dies_after in (0..=RESET_STEPS).map(|step| (step > 0).then_some(step)) {
        for seed in 0..8 {
            let plan = Plan::resets_under_traffic(dies_after);
            let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
            let Outcome { findings, story, resets, .. } = outcome;
            assert!(findings.is_empty(), "seed {seed}, {dies_after:?}: {findings:#?}\n{story}");
            assert_eq!(resets, 3, "seed {seed}, {dies_after:?}\n{story}");
        }
    }
}

#[test]
fn a_replay_to_a_topic_that_is_killed_again_and_again_has_each_row_there_in_the_order_of_its_key() {
    for seed in 0..40 {
        let plan = Plan::topic_replays_under_traffic();
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        let Outcome { findings, story, copies, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
        assert!(copies > 100, "seed {seed}: {copies} rows came again\n{story}");
    }
}

#[test]
fn one_failing_key_beyond_the_budget_delays_no_other() {
    for seed in 0..10 {
        for plan in
            [Plan::one_failing_key_beyond_the_budget(), Plan::one_failing_key_and_a_restart()]
        {
            let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
            let Outcome { findings, story, .. } = outcome;
            assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
        }
    }
}

#[test]
fn the_log_that_waits_stays_within_its_budget_however_long_pubsub_is_gone() {
    for seed in 0..20 {
        let plan = Plan::outage_beyond_the_wal_budget(seed);
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn no_row_dies_of_an_outage_that_comes_and_goes() {
    for seed in 0..20 {
        let plan = Plan::outage_that_comes_and_goes();
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn no_row_dies_of_an_outage_of_its_topic_while_another_topic_flows() {
    for seed in 0..20 {
        let outcome = simulate(seed, Some(Plan::outage_of_one_topic()), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn spilled_keys_follow_at_once_after_an_outage() {
    for seed in 0..30 {
        let outcome = simulate(seed, Some(Plan::outage_with_spilled_keys()), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn no_row_dies_of_a_topic_that_refuses_every_row_as_invalid() {
    for seed in 0..30 {
        // Busy topics, and topics with a row every few seconds.
        let commits_apart = Duration::from_millis([100, 1_000][usize::from(seed % 4 > 1)]);
        let plan = Plan::topic_that_refuses_every_row(seed, commits_apart);
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn no_row_dies_of_a_topic_that_is_repaired_after_it_refused_a_few_rows_as_invalid() {
    for seed in 0..30 {
        let plan = Plan::topic_that_refuses_a_few_rows(seed);
        let outcome = simulate(seed, Some(plan), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn a_wal_budget_that_nobody_keeps_is_found() {
    let mut plan = Plan::outage_beyond_the_wal_budget(0);
    plan.wal_budget = WalBudgetLimit::Off;
    assert_judge_finds(&Faithful, Some(&plan), &[Fault::OverWalBudget]);
}

#[test]
fn status_updates_flow_while_parked_keys_are_read() {
    for seed in 0..20 {
        let outcome = simulate(seed, Some(Plan::slow_table()), Faithful, STORY_LINES);
        let Outcome { findings, story, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

#[test]
fn a_run_until_caught_up_ends_under_traffic_and_not_before_what_was_there_has_had_its_turn() {
    for seed in 0..20 {
        let plan = Plan::caught_up_again_and_again();
        let outcome = simulate(seed, Some(plan), UntilCaughtUp, STORY_LINES);
        let Outcome { findings, story, caught_up, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
        assert!(caught_up > 25, "seed {seed}: ended {caught_up} times in a minute\n{story}");
    }
}

#[test]
fn a_run_until_caught_up_does_not_end_while_rows_of_the_log_of_its_start_are_spilled() {
    for seed in 0..20 {
        let plan = Plan::caught_up_after_an_outage();
        let outcome = simulate(seed, Some(plan), UntilCaughtUp, STORY_LINES);
        let Outcome { findings, story, caught_up, .. } = outcome;
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
        assert!(caught_up > 0, "seed {seed}: nobody has caught up\n{story}");
    }
}

#[test]
fn the_promise_holds_for_runs_until_caught_up() {
    for seed in 0..100 {
        let Outcome { findings, story, .. } = simulate(seed, None, UntilCaughtUp, STORY_LINES);
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{story}");
    }
}

/// Runs seeds with a planted bug until the judge finds a fault, and checks which one.
fn assert_judge_finds<F: Harness>(fitting: &F, plan: Option<&Plan>, expected: &[Fault]) {
    const SEEDS_MAX: u64 = 400;
    let found = (0..SEEDS_MAX).find_map(|seed| {
        let outcome = simulate(seed, plan.cloned(), fitting.clone(), STORY_LINES);
        outcome.findings.first().map(|(fault, _)| (seed, *fault, outcome.story))
    });
    let Some((seed, fault, story)) = found else { panic!("nobody objects in {SEEDS_MAX} seeds") };
    assert!(expected.contains(&fault), "seed {seed}: found {fault:?} instead\n{story}");
}

#[test]
fn a_keepalive_confirmed_inside_a_transaction_is_found() {
    let faults = [Fault::ConfirmedEarly, Fault::ConfirmedBeyond];
    assert_judge_finds(&ConfirmingKeepalivesInTransactions, None, &faults);
}

#[test]
fn a_refused_batch_taken_for_stored_is_found() {
    let faults = [Fault::ConfirmedEarly, Fault::Lost, Fault::Reordered];
    assert_judge_finds(&PublisherBug::TakesRefusedForStored, None, &faults);
}

#[test]
fn a_batch_retried_behind_the_next_one_is_found() {
    let faults = [Fault::Reordered, Fault::ConfirmedEarly];
    assert_judge_finds(&PublisherBug::RetriesBehindTheNext, None, &faults);
}

#[test]
fn an_invalid_row_retried_behind_the_next_one_is_found() {
    let plan = Plan::topic_that_refuses_a_few_rows(0);
    let bug = PublisherBug::RetriesInvalidBehindTheNext;
    assert_judge_finds(&bug, Some(&plan), &[Fault::Reordered]);
}

#[test]
fn rows_settled_before_their_park_is_durable_are_found() {
    let faults = [Fault::ConfirmedEarly, Fault::Reordered];
    assert_judge_finds(&StoreBug::SettlesBeforeDurable, None, &faults);
}

#[test]
fn parked_keys_forgotten_at_a_restart_are_found() {
    // Behind a reset, the slot sends parked rows also.
    let faults = [Fault::Reordered, Fault::Repeated];
    assert_judge_finds(&StoreBug::ForgetsParkedKeys, None, &faults);
}

#[test]
fn parked_keys_read_before_the_slot_is_taken_are_found() {
    // A key that is not known to be parked is overtaken, and is never claimed.
    let faults = [Fault::Reordered, Fault::ParkedForEver];
    assert_judge_finds(&ReadsParkedKeysEarly, None, &faults);
}

#[test]
fn a_start_that_disregards_the_record_is_found() {
    assert_judge_finds(&DisregardsTheRecord, None, &[Fault::Repeated]);
}

#[test]
fn recorded_rows_forgotten_at_a_restart_are_found() {
    let faults = [Fault::Repeated, Fault::Reordered];
    assert_judge_finds(&StoreBug::ForgetsRecordedRows, None, &faults);
}

#[test]
fn a_session_that_does_not_await_the_requests_of_the_one_before_is_found() {
    let faults = [Fault::TwoOutstanding, Fault::Repeated];
    assert_judge_finds(&Impatient::default(), None, &faults);
}

#[test]
fn a_budget_that_nobody_keeps_is_found() {
    assert_judge_finds(&Unbudgeted, Some(&Plan::flood()), &[Fault::OverBudget]);
}

#[test]
fn holds_forgotten_at_a_restart_are_found() {
    let plan = Plan::held_over_a_restart();
    assert_judge_finds(&StoreBug::ForgetsHolds, Some(&plan), &[Fault::Reordered]);
}

#[test]
fn rows_claimed_backwards_are_found() {
    assert_judge_finds(&StoreBug::ClaimsBackwards, None, &[Fault::Reordered]);
}

#[test]
fn a_held_key_taken_for_a_live_one_is_found() {
    assert_judge_finds(&StoreBug::ForgetsWhatIsHeld, None, &[Fault::Reordered]);
}

#[test]
fn a_key_that_stays_parked_is_found() {
    assert_judge_finds(&StoreBug::HoldsForEver, None, &[Fault::ParkedForEver]);
}

#[test]
fn outcomes_that_are_not_written_down_are_found() {
    let faults = [Fault::Repeated, Fault::ParkedForEver];
    assert_judge_finds(&StoreBug::ForgetsOutcomes, None, &faults);
}

#[test]
fn resets_with_a_planted_bug_are_found() {
    let plan = Plan::resets_under_traffic(None);
    let gap = [Fault::Reordered, Fault::Lost];
    assert_judge_finds(&Reset(ResetBug::KeepsWhatWasPublished), Some(&plan), &gap);
    assert_judge_finds(&Reset(ResetBug::KeepsWhatIsSettled), Some(&plan), &gap);
    let passed_over = [Fault::Reordered, Fault::Lost, Fault::ConfirmedEarly];
    assert_judge_finds(&Reset(ResetBug::BeginsAtTheEnd), Some(&plan), &passed_over);
    assert_judge_finds(&Reset(ResetBug::BeginsAtTheAnchor), Some(&plan), &[Fault::Repeated]);
    let never = [Fault::Unfinished, Fault::GaveUp];
    assert_judge_finds(&Reset(ResetBug::IsForgotten), Some(&plan), &never);
}

#[test]
fn replays_to_a_topic_with_a_planted_bug_are_found() {
    let plan = Plan::topic_replays_under_traffic();
    for (bug, fault) in [
        (ReplayBug::ForgetsItsMark, Fault::Unmarked),
        (ReplayBug::ForgetsItsPlace, Fault::Repeated),
        (ReplayBug::LeavesOut, Fault::ConfirmedEarly),
        (ReplayBug::NotesTooMuch, Fault::ConfirmedEarly),
        (ReplayBug::StreamsTheLiveSlot, Fault::TookLiveSlot),
        (ReplayBug::RetriesBehindTheNext, Fault::Reordered),
    ] {
        assert_judge_finds(&Replay(bug), Some(&plan), &[fault]);
    }
}
