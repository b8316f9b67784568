//! The intake against a model of Pub/Sub and of a database, by seeds: copies, redelivered tails, leases
//! that run out, lost acknowledgements, streams that break, unknown commits, two instances at once.
//!
//! The judge shares no code with the intake. It keeps to what can be seen from outside: what is applied,
//! what is acknowledged, and when.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod pubsub;
mod store;
mod world;

use world::{Plan, World};

/// Enough seeds for every fault to meet every other; some seconds.
const SEEDS: u64 = 300;

#[test]
fn one_instance_applies_everything_once_and_in_order_whatever_breaks() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Plan { instances: 1, ..Plan::ROUGH });
        world.run();
        world.judge();
        assert_eq!(world.store.late, 0, "seed {seed}: an event was overtaken in one instance");
    }
}

#[test]
fn two_instances_lose_nothing_and_double_nothing_also_when_leases_are_lost() {
    let mut late = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Plan { instances: 2, ..Plan::ROUGH });
        world.run();
        world.judge();
        late += world.store.late;
    }
    eprintln!("{late} events were late in {SEEDS} runs");
}

#[test]
fn while_nothing_breaks_no_lease_runs_out_and_nothing_is_delivered_twice() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Plan { instances: 2, ..Plan::CALM });
        world.run();
        world.judge();
        assert_eq!(world.pubsub.expired, 0, "C8: seed {seed}");
        assert_eq!(world.pubsub.redelivered, 0, "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "seed 1: key")]
fn the_judge_misses_an_event_that_is_gone() {
    let mut world = World::new(1, Plan { instances: 1, ..Plan::CALM });
    world.run();
    world.store.order.values_mut().next().unwrap().pop();
    world.judge();
}
