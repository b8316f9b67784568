//! Messages that fail with an error that says nothing about an event: either every message fails,
//! or one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_core::Random;
use walrelay_inbox_core::{
    Batch, Delivery, Failure, Fate, Intake, IntakeLimits, Outcome, Standing,
};

/// Longer than any wait between two batches, shorter than a lease.
const LATER: Duration = Duration::from_secs(6);

type Name = String;

struct InboxDatabase {
    intake: Intake<Name>,
    began: Instant,
    now: Instant,
    sick: BTreeSet<Name>,
    keys: BTreeMap<Name, String>,
    /// Keys that have a stored event. Later events of such a key are stored without an attempt.
    held: BTreeSet<String>,
    failure: Failure,
    /// Whether a failing event makes all events of its batch fail. Its handler left another role.
    spoils: bool,
    applied: Vec<Name>,
    stored: Vec<Name>,
}

impl InboxDatabase {
    fn new(batch: usize, workers: usize) -> Self {
        let bounds = IntakeLimits {
            batch,
            workers,
            messages: 1_000,
            bytes: 1 << 20,
            lease: Duration::from_hours(1),
            max_lease: Duration::from_hours(2),
        };
        let now = Instant::now();
        Self {
            intake: Intake::new(bounds, Random::new(3)),
            began: now,
            now,
            sick: BTreeSet::new(),
            keys: BTreeMap::new(),
            held: BTreeSet::new(),
            failure: Failure::Operator,
            spoils: false,
            applied: Vec::new(),
            stored: Vec::new(),
        }
    }

    fn deliver(&mut self, name: &str, key: &str) {
        if !key.is_empty() {
            self.keys.insert(name.to_owned(), key.to_owned());
        }
        let ack_id = format!("ack {name}");
        let delivery = Delivery { message_id: name, ack_id, ordering_key: key, bytes: 10 };
        self.intake.arrive(delivery, &Arc::new(name.to_owned()), self.now);
    }

    fn deliver_failing(&mut self, name: &str, key: &str) {
        self.sick.insert(name.to_owned());
        self.deliver(name, key);
    }

    /// Ends a batch as the database would. On a refusal of the handler's actions the database tries
    /// each event alone. If one event passes, it stores the failing ones. Every other failure fails
    /// the whole batch.
    fn end(&mut self, batch: &Batch<Name>) {
        let names = || batch.messages.iter().map(|it| it.as_str());
        let is_held = |name: &str| self.keys.get(name).is_some_and(|key| self.held.contains(key));
        let is_failing_topic = |name: &str| self.sick.contains(name);
        let tried = || names().filter(|it| !is_held(it));
        let is_told_apart = batch.standing == Standing::ToBeStored
            || self.failure == Failure::Operator && !self.spoils && !tried().all(is_failing_topic);
        let outcome = match tried().any(is_failing_topic) && !is_told_apart {
            true => Outcome::Failed(self.failure),
            false => Outcome::Committed(
                names()
                    .map(|it| if is_failing_topic(it) { Fate::Recorded } else { Fate::Applied })
                    .collect(),
            ),
        };
        if let Outcome::Committed(_) = outcome {
            let (stored, applied): (Vec<&str>, Vec<&str>) =
                names().partition(|it| is_failing_topic(it));
            let keys: Vec<String> =
                stored.iter().filter_map(|it| self.keys.get(*it)).cloned().collect();
            self.held.extend(keys);
            self.stored.extend(stored.into_iter().map(str::to_owned));
            self.applied.extend(applied.into_iter().map(str::to_owned));
        }
        self.intake.settle(batch.id, &outcome, self.now);
    }

    /// Sends the next batch, which may start at once.
    fn go(&mut self) -> Vec<Name> {
        let batch = self.intake.next_batch(self.now).expect("a batch may go");
        self.end(&batch);
        batch.messages.iter().map(|it| (**it).clone()).collect()
    }

    /// Sends the next batch after the longest possible wait.
    fn turn(&mut self) -> (Vec<Name>, Standing) {
        self.now += LATER;
        let batch = self.intake.next_batch(self.now).expect("a batch may go");
        self.end(&batch);
        (batch.messages.iter().map(|it| (**it).clone()).collect(), batch.standing)
    }

    /// Sends batches for this time, each as soon as it may start.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            while let Some(batch) = self.intake.next_batch(self.now) {
                self.end(&batch);
            }
            self.now += Duration::from_millis(10);
        }
    }
}

fn alone(name: &str, standing: Standing) -> (Vec<Name>, Standing) {
    (vec![name.to_owned()], standing)
}

#[test]
fn what_fails_alone_while_others_pass_is_to_be_stored_and_nothing_else_is() {
    for (failure, in_doubt) in
        [(Failure::Operator, Standing::Unknown), (Failure::Outage, Standing::Doubtful)]
    {
        let mut world = InboxDatabase { failure, ..InboxDatabase::new(1, 1) };
        world.deliver_failing("bad", "a");
        assert_eq!(world.turn(), alone("bad", Standing::Unknown));
        assert_eq!(world.turn(), alone("bad", in_doubt), "nothing passes: {failure:?}");

        world.deliver("good", "b");
        assert_eq!(world.turn(), alone("good", Standing::Unknown));
        assert_eq!(world.turn(), alone("bad", Standing::ToBeStored), "{failure:?}");
        assert_eq!((&*world.applied, &*world.stored), (&["good".into()][..], &["bad".into()][..]));
    }
}

#[test]
fn a_stored_event_is_no_proof_that_others_pass() {
    let mut world = InboxDatabase::new(1, 1);
    world.deliver_failing("first", "a");
    world.turn();
    world.deliver("good", "b");
    world.turn();
    // From here on no event passes.
    world.deliver_failing("second", "c");
    world.run(LATER);
    assert_eq!(world.stored, ["first"]);
}

#[test]
fn what_meets_others_is_in_doubt_when_it_does_so_again_and_again_alone() {
    for failure in [Failure::Conflict, Failure::Locked] {
        let mut world = InboxDatabase { failure, ..InboxDatabase::new(8, 1) };
        world.deliver_failing("bad", "a");
        let mut tries = 0;
        while world.stored.is_empty() {
            world.deliver(&format!("good-{tries}"), "b");
            world.turn();
            tries += 1;
            assert!(tries < 20, "it is never stored");
        }
        assert!(tries > 4, "{tries}: two that meet by accident are nobody's fault");
    }
}

#[test]
fn what_is_in_doubt_goes_without_what_stands_behind_it_in_its_key() {
    let mut world = InboxDatabase::new(4, 1);
    world.deliver_failing("bad", "a");
    for name in ["second", "third"] {
        world.deliver_failing(name, "a");
    }
    world.turn();
    world.intake.others_passed();
    assert_eq!(world.turn(), alone("bad", Standing::ToBeStored));
}

#[test]
fn what_has_not_failed_does_not_go_with_what_has() {
    for failure in [Failure::Locked, Failure::Outage, Failure::Conflict] {
        let mut world = InboxDatabase { failure, ..InboxDatabase::new(100, 2) };
        for n in 0..20 {
            world.deliver_failing(&format!("bad-{n}"), &format!("a-{n}"));
        }
        world.run(Duration::from_secs(2));
        for n in 0..500 {
            world.deliver(&format!("good-{n}"), &format!("b-{n}"));
            world.run(Duration::from_millis(20));
        }
        assert_eq!((world.applied.len(), world.stored.len()), (500, 20), "{failure:?}");
    }
}

#[test]
fn what_was_beside_others_that_failed_does_not_wait_until_they_are_tried_again() {
    for failure in [Failure::Locked, Failure::Conflict, Failure::Severed] {
        for workers in [1, 4] {
            let mut world = InboxDatabase { failure, ..InboxDatabase::new(200, workers) };
            for n in 0..600 {
                world.deliver_failing(&format!("bad-{n}"), &format!("a-{n}"));
            }
            for n in 0..20 {
                world.deliver(&format!("good-{n}"), &format!("b-{n}"));
            }
            world.run(Duration::from_secs(3));
            assert_eq!(world.applied.len(), 20, "{failure:?}, {workers} workers");
        }
    }
}

#[test]
fn hundreds_of_sick_keys_before_the_healthy_ones_do_not_keep_them_waiting() {
    let mut world = InboxDatabase::new(200, 4);
    for n in 0..300 {
        for event in 0..3 {
            world.deliver_failing(&format!("bad-{n}-{event}"), &format!("a-{n}"));
        }
    }
    for n in 0..100 {
        world.deliver(&format!("good-{n}"), &format!("b-{n}"));
    }
    world.run(Duration::from_secs(2));
    assert_eq!(world.applied.len(), 100);
}

#[test]
fn a_refusal_that_takes_long_is_that_of_the_first_two_keys_and_the_others_go_on_in_smaller_batches()
{
    let mut world = InboxDatabase::new(200, 1);
    for name in ["bad-1", "bad-2"] {
        world.deliver_failing(name, name);
    }
    for n in 0..198 {
        world.deliver(&format!("good-{n}"), &format!("b-{n}"));
    }
    let batch = world.intake.next_batch(world.now).expect("a batch may go");
    assert_eq!(batch.messages.len(), 200);
    world.now += Duration::from_secs(20);
    world.intake.settle(batch.id, &Outcome::Failed(Failure::Operator), world.now);

    // No event has passed, yet the next batch does not wait, because it has other events.
    world.now += Duration::from_millis(10);
    assert_eq!(world.go(), ["bad-1", "bad-2"]);
    let smaller = world.go();
    assert_eq!(smaller.len(), 10);
    assert!(smaller.iter().all(|name| name.starts_with("good")), "{smaller:?}");
}

#[test]
fn a_batch_that_was_cut_short_makes_the_next_one_smaller_and_a_quick_one_does_not() {
    for (seconds, most) in [(10, 20), (1, 200)] {
        let mut world = InboxDatabase::new(200, 1);
        for n in 0..400 {
            world.deliver(&format!("m{n}"), "");
        }
        let batch = world.intake.next_batch(world.now).expect("a batch may go");
        world.now += Duration::from_secs(seconds);
        let mut fates = vec![Fate::Applied; 200];
        fates[199] = Fate::Deferred;
        world.intake.settle(batch.id, &Outcome::Committed(fates), world.now);
        let next = world.intake.next_batch(world.now).expect("a batch may go");
        assert_eq!(next.messages.len(), most, "after {seconds} s");
    }
}

#[test]
fn one_worker_is_shared_by_time_between_what_is_in_doubt_and_what_is_not() {
    let mut world = InboxDatabase::new(1, 1);
    for n in 0..20 {
        world.deliver_failing(&format!("bad-{n}"), &format!("a-{n}"));
    }
    for n in 0..5_000 {
        world.deliver(&format!("good-{n}"), &format!("b-{n}"));
    }
    let mut slow = Duration::ZERO;
    while world.applied.len() < 800 {
        let batch = world.intake.next_batch(world.now).expect("there is always something to try");
        let is_slow = batch.messages[0].starts_with("bad");
        let time = if is_slow { Duration::from_secs(2) } else { Duration::from_millis(100) };
        world.now += time;
        slow += if is_slow { time } else { Duration::ZERO };
        world.end(&batch);
    }
    let all = world.now - world.began;
    assert!(slow < all.mul_f64(0.6), "{slow:?} of {all:?} with what fails");
}

#[test]
fn where_all_that_is_held_is_sick_room_is_made_for_others() {
    for keys in [1_000, 1] {
        let mut world = InboxDatabase::new(200, 4);
        let sick = (0..1_500).map(|n| (format!("bad-{n}"), format!("a-{}", n % keys)));
        let healthy = (0..50).map(|n| (format!("good-{n}"), format!("b-{n}")));
        let mut coming = sick.chain(healthy);
        while world.now < world.began + Duration::from_secs(60) && world.applied.len() < 50 {
            while world.intake.has_room()
                && let Some((name, key)) = coming.next()
            {
                world.sick.extend(name.starts_with("bad").then(|| name.clone()));
                world.deliver(&name, &key);
            }
            world.run(Duration::from_secs(1));
        }
        assert_eq!(world.applied.len(), 50, "{keys} keys");
    }
}

#[test]
fn where_nothing_passes_no_more_is_stored_than_may_be_held() {
    let mut world = InboxDatabase::new(200, 4);
    for n in 0..100_000 {
        match world.intake.has_room() {
            true => world.deliver_failing(&format!("bad-{n}"), &format!("a-{n}")),
            false => world.run(Duration::from_millis(20)),
        }
    }
    let (minutes, stored) = ((world.now - world.began).as_secs() / 60, world.stored.len() as u64);
    assert!(minutes > 20 && stored <= 1_000 * (minutes + 1), "{stored} in {minutes} min");
}

#[test]
fn however_many_sick_keys_come_before_them_the_healthy_are_reached() {
    for failure in [Failure::Operator, Failure::Severed] {
        let mut world = InboxDatabase { failure, ..InboxDatabase::new(200, 1) };
        let sick = (0..5_000).map(|n| (format!("bad-{n}"), format!("a-{n}")));
        let healthy = (0..50).map(|n| (format!("good-{n}"), format!("b-{n}")));
        let mut coming = sick.chain(healthy);
        while world.applied.len() < 50 {
            while world.intake.has_room()
                && let Some((name, key)) = coming.next()
            {
                world.sick.extend(name.starts_with("bad").then(|| name.clone()));
                world.deliver(&name, &key);
            }
            world.run(Duration::from_secs(1));
            assert!(world.now < world.began + Duration::from_mins(6), "{failure:?}");
        }
    }
}

#[test]
fn in_an_outage_a_few_are_read_on_and_where_the_server_refuses_as_many_as_ever() {
    let mut world = InboxDatabase { failure: Failure::Outage, ..InboxDatabase::new(10, 1) };
    world.deliver_failing("bad", "a");
    world.turn();
    assert!(world.intake.has_room(), "or nothing else could ever pass");
    for n in 0..100 {
        world.deliver_failing(&format!("m{n}"), "");
    }
    assert!(!world.intake.has_room());
    world.failure = Failure::Operator;
    world.turn();
    assert!(world.intake.has_room(), "the database is there");
}

#[test]
fn healthy_keys_do_not_wait_for_other_traffic_beside_an_event_that_makes_all_of_its_batch_fail() {
    for workers in [1, 4] {
        let mut world = InboxDatabase { spoils: true, ..InboxDatabase::new(100, workers) };
        for n in 0..20 {
            world.deliver(&format!("good-{n}"), &format!("b-{n}"));
        }
        world.deliver_failing("bad", "a");
        for n in 20..40 {
            world.deliver(&format!("good-{n}"), &format!("b-{n}"));
        }
        world.run(Duration::from_mins(1));
        assert_eq!((world.applied.len(), &*world.stored), (40, &["bad".into()][..]), "{workers}");
    }
}

#[test]
fn an_event_that_ends_each_of_its_sessions_is_stored_although_no_other_event_comes() {
    for failure in [Failure::Severed, Failure::Conflict, Failure::Locked] {
        let mut world = InboxDatabase { failure, ..InboxDatabase::new(100, 4) };
        world.deliver_failing("bad", "a");
        world.run(Duration::from_secs(3));
        assert_eq!(world.stored.len(), 0, "an accident may happen a few times: {failure:?}");
        world.run(Duration::from_mins(2));
        assert_eq!(world.stored.len(), 1, "{failure:?}");
    }
    let mut world = InboxDatabase { failure: Failure::Outage, ..InboxDatabase::new(100, 4) };
    world.deliver_failing("bad", "a");
    world.run(Duration::from_mins(2));
    assert_eq!(world.stored.len(), 0, "the database is away");
}
