//! The intake against models of Pub/Sub and of a database, with seeded random faults. The faults
//! are duplicates, redelivered tails, expired leases, lost acknowledgements, broken streams,
//! unknown commits and two concurrent instances.
//!
//! The judge shares no code with the intake. It checks only the behaviour visible from outside: the
//! applied events, the acknowledged messages, and the order and time of both.

mod producer;
mod pubsub;
mod store;
mod world;

use walrelay_testkit::inbox_model::PlantedBug;
use world::{InboxDatabase, Plan};

/// Enough seeds for every combination of faults. The run takes some seconds.
const SEEDS: u64 = 300;

#[test]
fn one_instance_applies_everything_once_and_in_order_whatever_breaks() {
    for seed in 0..SEEDS {
        let mut world = InboxDatabase::new(seed, Plan { instances: 1, ..Plan::WITH_FAULTS });
        world.run();
        world.judge();
        assert_eq!(world.store.late(), 0, "seed {seed}: an event was overtaken in one instance");
    }
}

#[test]
fn two_instances_lose_nothing_and_double_nothing_also_when_leases_are_lost() {
    let mut late = 0;
    for seed in 0..SEEDS {
        let mut world = InboxDatabase::new(seed, Plan { instances: 2, ..Plan::WITH_FAULTS });
        world.run();
        world.judge();
        late += world.store.late();
    }
    eprintln!("{late} events were late in {SEEDS} runs");
}

#[test]
fn while_nothing_breaks_no_lease_runs_out_and_nothing_is_delivered_twice() {
    for seed in 0..SEEDS {
        let mut world = InboxDatabase::new(seed, Plan { instances: 2, ..Plan::EMPTIED_TABLE });
        world.run();
        world.judge();
        assert_eq!(world.pubsub.expired, 0, "C8: seed {seed}");
        assert_eq!(world.pubsub.redelivered, 0, "seed {seed}");
    }
}

#[test]
fn no_event_is_applied_before_a_missing_version_of_its_key_comes_or_somebody_says_so() {
    let (mut behind, mut released, mut discarded) = (0, 0, 0);
    for seed in 0..SEEDS {
        for instances in [1, 2] {
            let mut world = InboxDatabase::new(seed, Plan { instances, ..Plan::LEFT });
            world.run();
            world.judge();
            behind += world.judge_gaps();
            released += world.store.released.len();
            discarded += world.store.discarded.len();
        }
    }
    // The runs must contain three cases: withheld versions that came after a release, releases and
    // discards.
    eprintln!("{behind} came behind, {released} were released, {discarded} discarded");
    assert!(behind > 100 && released > 100 && discarded > 100);
}

#[test]
fn what_waits_for_a_version_goes_on_by_itself_when_that_comes() {
    for seed in 0..SEEDS {
        for instances in [1, 2] {
            let mut world = InboxDatabase::new(seed, Plan { instances, ..Plan::FILLED });
            world.run();
            world.judge();
            world.judge_gaps();
        }
    }
}

#[test]
#[should_panic(expected = "not everything was acknowledged and applied")]
fn the_judge_notices_what_waits_for_ever_because_it_is_looked_for_by_position() {
    for seed in 0..SEEDS {
        let planted = Some(PlantedBug::WaitsByPosition);
        InboxDatabase::new(seed, Plan { planted, ..Plan::FILLED }).run();
    }
}

fn judge_gaps_of(planted: PlantedBug) {
    for seed in 0..SEEDS {
        let mut world = InboxDatabase::new(seed, Plan { planted: Some(planted), ..Plan::LEFT });
        world.run();
        world.judge_gaps();
    }
}

#[test]
#[should_panic(expected = "was applied before version")]
fn the_judge_notices_what_comes_out_of_the_inbox_without_a_look_at_versions() {
    judge_gaps_of(PlantedBug::RedeliversOverGaps);
}

#[test]
#[should_panic(expected = "was applied before version")]
fn the_judge_notices_that_one_missing_version_is_overlooked() {
    judge_gaps_of(PlantedBug::OverlooksOne);
}

#[test]
#[should_panic(expected = "was applied before version")]
fn the_judge_notices_that_what_waits_counts_as_applied() {
    judge_gaps_of(PlantedBug::CountsWhatWaits);
}

#[test]
#[should_panic(expected = "was released and waits again")]
fn the_judge_notices_that_what_was_released_waits_again_after_a_failure() {
    judge_gaps_of(PlantedBug::ForgetsRelease);
}

#[test]
#[should_panic(expected = "seed 1: key")]
fn the_judge_misses_an_event_that_is_gone() {
    let mut world = InboxDatabase::new(1, Plan { instances: 1, ..Plan::EMPTIED_TABLE });
    world.run();
    world.store.lose_an_effect();
    world.judge();
}
