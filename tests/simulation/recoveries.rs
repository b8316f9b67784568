//! Recoveries from the table, killed at each step. The relay's own loop publishes the rows that the
//! old slot may not have settled, in one process after the other. A separate judge checks the
//! result.
//!
//! The judge knows which rows must be published, and which rows Pub/Sub and dispatch state have. It
//! knows no type of the relay.

mod bug;
mod disk;
mod judge;
mod process;
mod publisher;
mod slot;
mod table;
mod world;

use std::sync::Arc;

use walrelay_testkit::seed::Seed;

use crate::judge::Fault;
use bug::Bug;
use process::{Outcome, Processes};
use world::InboxDatabase;

/// Runs the recovery of a seed. Its first process is killed at `dies_at`, later ones at random
/// steps.
fn recover(seed: u64, dies_at: Option<u64>, bug: Option<Bug>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut seed = Seed::new(seed);
        let world = InboxDatabase::new(&mut seed, bug);
        Processes::new(Arc::new(world)).run(dies_at).await
    })
}

/// The number of steps that are tried one by one. A recovery of the plan has a few hundred.
const STEPS: u64 = 160;

#[test]
fn a_recovery_that_is_killed_at_any_step_is_finished_in_order_and_repeats_little() {
    let mut repeated = 0;
    for dies_at in (0..STEPS).map(|step| (step > 0).then_some(step)) {
        for seed in 0..3 {
            let outcome = recover(seed + 1_000 * dies_at.unwrap_or_default(), dies_at, None);
            let Outcome { findings, steps, .. } = outcome;
            assert!(findings.is_empty(), "seed {seed}, {dies_at:?} of {steps}: {findings:#?}");
            repeated += outcome.repeated;
        }
    }
    assert!(repeated > 0, "a kill in the middle repeats what was in flight");
}

/// Runs seeds with a planted bug until the judge finds a fault, and checks which one.
fn assert_judge_finds(bug: Bug, expected: &[Fault]) {
    const SEEDS_MAX: u64 = 300;
    let found = (0..SEEDS_MAX).find_map(|seed| {
        let outcome = recover(seed, Some(20 + seed % 100), Some(bug));
        outcome.findings.first().map(|(fault, text)| (seed, *fault, text.clone()))
    });
    let Some((seed, fault, text)) = found else { panic!("{bug:?}: nobody objects") };
    assert!(expected.contains(&fault), "{bug:?}, seed {seed}: found {fault:?} instead: {text}");
}

#[test]
fn a_recovery_that_begins_with_the_first_row_each_time_is_found() {
    assert_judge_finds(Bug::ForgetsItsPlace, &[Fault::Repeated]);
}

#[test]
fn a_place_that_outlives_its_slot_is_found() {
    let faults = [Fault::Lost, Fault::Reordered, Fault::Altered];
    assert_judge_finds(Bug::KeepsThePlaceOfAnotherSlot, &faults);
}

#[test]
fn a_place_behind_rows_that_are_only_read_is_found() {
    assert_judge_finds(Bug::NotesWhatIsOnlyRead, &[Fault::Lost, Fault::Reordered]);
}

#[test]
fn rows_that_have_other_positions_after_a_kill_are_found() {
    assert_judge_finds(Bug::NumbersFromZero, &[Fault::Altered]);
}

#[test]
fn a_recovery_that_leaves_its_slot_is_found() {
    assert_judge_finds(Bug::LeavesTheSlot, &[Fault::OverWalBudget]);
}

#[test]
fn rows_of_the_slot_that_overtake_rows_of_the_table_are_found() {
    assert_judge_finds(Bug::SeesRowsOfTheSlot, &[Fault::Reordered]);
}

#[test]
fn rows_of_a_second_slot_among_rows_of_the_first_are_found() {
    assert_judge_finds(Bug::JoinsParts, &[Fault::Reordered, Fault::Altered]);
}
