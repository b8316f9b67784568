//! A message that fails for what says nothing about an event: everybody's trouble, or its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_core::Random;
use walrelay_inbox_core::{Batch, Bounds, Delivery, Failure, Fate, Intake, Outcome, Standing};

/// Longer than any wait between two batches, shorter than a lease.
const LATER: Duration = Duration::from_secs(6);

struct World {
    intake: Intake<&'static str>,
    now: Instant,
}

impl World {
    fn new(batch: usize) -> Self {
        let bounds = Bounds {
            batch,
            workers: 1,
            messages: 1_000,
            bytes: 1 << 20,
            lease: Duration::from_hours(1),
            max_lease: Duration::from_hours(2),
        };
        Self { intake: Intake::new(bounds, Random::new(3)), now: Instant::now() }
    }

    fn deliver(&mut self, name: &'static str, key: &str) {
        let ack_id = format!("ack {name}");
        let delivery = Delivery { message_id: name, ack_id, ordering_key: key, bytes: 10 };
        self.intake.arrive(delivery, &Arc::new(name), self.now);
    }

    /// The next batch; it fails so if the culprit is among it.
    fn turn(&mut self, culprit: &str, failure: Failure) -> (Vec<&'static str>, Standing) {
        self.now += LATER;
        let Batch { id, messages, standing } =
            self.intake.next_batch(self.now).expect("a batch may go");
        let names: Vec<&str> = messages.iter().map(|it| **it).collect();
        let outcome = match names.contains(&culprit) {
            true => Outcome::Failed(failure),
            false => Outcome::Committed(vec![Fate::Finished; names.len()]),
        };
        self.intake.settle(id, &outcome, self.now);
        (names, standing)
    }
}

#[test]
fn what_fails_alone_while_others_pass_is_told_as_that_and_nothing_else_is() {
    for failure in [Failure::Operator, Failure::Outage, Failure::Conflict] {
        let mut world = World::new(1);
        world.deliver("bad", "a");
        assert_eq!(world.turn("bad", failure), (vec!["bad"], Standing::Unknown));
        assert_eq!(world.turn("bad", failure), (vec!["bad"], Standing::Unknown), "nothing passes");

        world.deliver("good", "b");
        world.turn("bad", failure);
        assert_eq!(world.turn("bad", failure), (vec!["good"], Standing::Unknown));

        assert_eq!(world.turn("bad", failure), (vec!["bad"], Standing::OthersPass), "{failure:?}");
        assert_eq!(world.turn("bad", failure), (vec!["bad"], Standing::Unknown), "none since");
    }
}

#[test]
fn a_suspect_goes_without_what_stands_behind_it_in_its_key() {
    let mut world = World::new(4);
    for name in ["bad", "second", "third"] {
        world.deliver(name, "a");
    }
    world.turn("bad", Failure::Operator);
    world.intake.others_passed();
    world.deliver("good", "b");
    assert_eq!(world.turn("bad", Failure::Operator), (vec!["bad"], Standing::OthersPass));
}

#[test]
fn a_batch_of_several_keys_makes_nobody_a_suspect() {
    let mut world = World::new(4);
    world.deliver("bad", "a");
    world.deliver("good", "");
    world.turn("bad", Failure::Operator);
    world.intake.others_passed();
    let (names, standing) = world.turn("bad", Failure::Operator);
    assert_eq!((names.len(), standing), (2, Standing::Unknown));
}

#[test]
fn in_an_outage_a_few_are_read_on_and_where_the_server_refuses_as_many_as_ever() {
    let mut world = World::new(10);
    world.deliver("bad", "a");
    world.turn("bad", Failure::Outage);
    assert!(world.intake.has_room(), "or nothing else could ever pass");
    let names: Vec<&'static str> = (0..100).map(|n| &*format!("m{n}").leak()).collect();
    names.into_iter().for_each(|name| world.deliver(name, ""));
    assert!(!world.intake.has_room());
    world.turn("m0", Failure::Operator);
    assert!(world.intake.has_room(), "the database is there");
}
