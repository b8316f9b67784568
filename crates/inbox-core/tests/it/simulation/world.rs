//! Instances, Pub/Sub and the database, turn by turn in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_core::Random;
use walrelay_inbox_core::{
    Batch, Delivery, DeliveryKind, Failure, Fate, Intake, IntakeLimits, Outcome,
};
use walrelay_testkit::inbox_model::{OnDead, OnGap, PlantedBug, Rules};

use super::producer::{GapMode, Producer};
use super::pubsub::{KEYS, LEASE, Message, PubSub};
use super::store::Store;

const EVENTS: u64 = 120;
const TURNS_MAX: u32 = 20_000;
const TURN: Duration = Duration::from_millis(50);

/// The kinds and rates of faults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) instances: usize,
    pub(crate) breaks_percent: u32,
    /// With gaps, an event waits for the version before its own.
    pub(crate) gaps: GapMode,
    pub(crate) planted: Option<PlantedBug>,
}

impl Plan {
    pub(crate) const WITH_FAULTS: Self =
        Self { instances: 1, breaks_percent: 12, gaps: GapMode::Absent, planted: None };
    pub(crate) const EMPTIED_TABLE: Self = Self { breaks_percent: 0, ..Self::WITH_FAULTS };
    pub(crate) const FILLED: Self = Self { gaps: GapMode::Filled, ..Self::WITH_FAULTS };
    pub(crate) const LEFT: Self = Self { gaps: GapMode::Left, ..Self::WITH_FAULTS };
}

/// A batch in flight.
struct Out {
    batch: Batch<Message>,
    ends_at: Instant,
}

struct Instance {
    intake: Intake<Message>,
    out: Vec<Out>,
    is_open: bool,
    /// For C7: the arrival number of each message and of each delivery, and the last acknowledged
    /// arrival of each key.
    arrivals: BTreeMap<(usize, usize), u64>,
    deliveries: BTreeMap<String, u64>,
    acknowledged: BTreeMap<usize, u64>,
}

pub(crate) struct InboxDatabase {
    plan: Plan,
    seed: u64,
    random: Random,
    now: Instant,
    instances: Vec<Instance>,
    pub(crate) pubsub: PubSub,
    pub(crate) store: Store,
    producer: Producer,
    /// Whether faults have stopped. Events that are still missing then are lost, not late.
    is_calm: bool,
    arrival: u64,
}

const BOUNDS: IntakeLimits = IntakeLimits {
    batch: 3,
    workers: 3,
    messages: 40,
    bytes: 4_000,
    lease: LEASE,
    max_lease: Duration::from_secs(60),
};

impl InboxDatabase {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut random = Random::new(seed);
        let (mut pubsub, mut producer) = (PubSub::default(), Producer::default());
        for _ in 0..EVENTS {
            let key = random.next_u32() as usize % KEYS;
            let times = if plan.breaks_percent > random.next_u32() % 100 { 2 } else { 1 };
            if plan.gaps != GapMode::Absent && random.next_u32().is_multiple_of(8) {
                producer.stumble(&mut pubsub, plan.gaps, key, &mut random);
            } else {
                producer.publish(&mut pubsub, key, times);
            }
        }
        let instances = (0..plan.instances).map(|_| Instance {
            intake: Intake::new(BOUNDS, Random::new(random.fork())),
            out: Vec::new(),
            is_open: true,
            arrivals: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
        });
        let instances = instances.collect();
        let rules = Rules {
            on_gap: if plan.gaps == GapMode::Absent { OnGap::Accept } else { OnGap::Hold },
            on_dead: OnDead::Hold,
            max_attempts: 10,
            planted: plan.planted,
        };
        let (now, store) = (Instant::now(), Store::new(rules));
        let is_calm = false;
        Self { plan, seed, random, now, instances, pubsub, store, producer, is_calm, arrival: 0 }
    }

    fn strikes(&mut self) -> bool {
        let drawn = self.random.next_u32() % 100;
        !self.is_calm && drawn < self.plan.breaks_percent
    }

    /// Runs until every message is acknowledged.
    pub(crate) fn run(&mut self) {
        for turn in 0..TURNS_MAX {
            self.is_calm = turn > TURNS_MAX / 2;
            if self.pubsub.is_done() && self.producer.is_done() && !self.store.is_waiting() {
                return;
            }
            self.now += TURN;
            self.producer.publish_withheld(&mut self.pubsub, turn);
            if self.plan.gaps == GapMode::Left && self.random.next_u32().is_multiple_of(50) {
                self.store.operate(&mut self.random);
            }
            self.pubsub.expire(self.now);
            for index in 0..self.instances.len() {
                self.keep_stream(index);
                self.deliver(index);
                self.begin(index);
                self.end(index);
                self.redeliver();
                self.acknowledge(index);
            }
        }
        panic!("seed {}: not everything was acknowledged and applied", self.seed);
    }

    /// Returns whether the handler fails this time. It fails only in runs with an operator.
    fn fails(plan: Plan, random: &mut Random) -> bool {
        plan.gaps == GapMode::Left && random.next_u32().is_multiple_of(12)
    }

    fn commit<'a>(&mut self, messages: impl Iterator<Item = &'a Message>) {
        let (plan, random) = (self.plan, &mut self.random);
        self.store.commit(messages, || Self::fails(plan, random));
    }

    fn redeliver(&mut self) {
        if self.random.next_u32().is_multiple_of(8) {
            let (plan, random) = (self.plan, &mut self.random);
            self.store.redeliver(|| Self::fails(plan, random));
        }
    }

    /// Breaks and reopens streams, and renews leases while a stream is open.
    fn keep_stream(&mut self, index: usize) {
        let breaks = self.strikes() && self.strikes();
        let comes_back = self.random.next_u32().is_multiple_of(200);
        let loses_renewals = self.strikes();
        let now = self.now;
        let instance = &mut self.instances[index];
        let renewed = match (instance.is_open, breaks, comes_back) {
            (true, true, _) => {
                instance.is_open = false;
                return;
            }
            (true, false, _) => instance.intake.renewals(now),
            (false, _, true) => {
                instance.is_open = true;
                instance.intake.reopened(now)
            }
            (false, _, false) => {
                instance.intake.lapse(now);
                return;
            }
        };
        for id in renewed.iter().filter(|_| !loses_renewals) {
            self.pubsub.renew(id, now + LEASE);
        }
    }

    fn deliver(&mut self, index: usize) {
        if self.strikes() {
            let (key, place) =
                (self.random.next_u32() as usize % KEYS, self.random.next_u32() % 30);
            self.pubsub.hiccup(key, place as usize);
        }
        for _ in 0..self.random.next_u32() % 12 {
            let instance = &mut self.instances[index];
            if !instance.is_open || !instance.intake.has_room() {
                return;
            }
            let key = self.random.next_u32() as usize % KEYS;
            let delivered = self.pubsub.deliver(key, index, self.now + LEASE);
            let Some((message, ack_id)) = delivered else { continue };
            let name = (message.key, message.place);
            let delivery = Delivery {
                message_id: &format!("{}/{}", name.0, name.1),
                ack_id: ack_id.clone(),
                ordering_key: &format!("key-{}", name.0),
                bytes: 50,
            };
            if instance.intake.arrive(delivery, &Arc::new(message), self.now) == DeliveryKind::New {
                self.arrival += 1;
                instance.arrivals.insert(name, self.arrival);
            }
            instance.deliveries.insert(ack_id, instance.arrivals[&name]);
            assert!(instance.intake.messages() <= BOUNDS.messages, "C8: more than the budget");
        }
    }

    fn begin(&mut self, index: usize) {
        while let Some(batch) = self.instances[index].intake.next_batch(self.now) {
            let out = self.instances[index].out.iter().flat_map(|out| &out.batch.messages);
            let busy: BTreeSet<usize> = out.map(|message| message.key).collect();
            let is_busy = batch.messages.iter().any(|message| busy.contains(&message.key));
            assert!(!is_busy, "C3: seed {}: two batches of a key", self.seed);
            let pause = TURN * (self.random.next_u32() % 8);
            // A transaction that hangs outlives its leases.
            let hangs = if self.strikes() && self.strikes() { LEASE * 2 } else { Duration::ZERO };
            let ends_at = self.now + pause + hangs;
            self.instances[index].out.push(Out { batch, ends_at });
        }
    }

    fn end(&mut self, index: usize) {
        let now = self.now;
        let out = &mut self.instances[index].out;
        let over: Vec<Out> = out.extract_if(.., |out| out.ends_at <= now).collect();
        for Out { batch, .. } in over {
            let outcome = self.outcome(&batch);
            self.instances[index].intake.settle(batch.id, &outcome, now);
        }
    }

    fn outcome(&mut self, batch: &Batch<Message>) -> Outcome {
        let messages = || batch.messages.iter().map(AsRef::as_ref);
        if self.strikes() {
            match self.random.next_u32() % 7 {
                0 => return Outcome::Failed(Failure::Conflict),
                1 => return Outcome::Failed(Failure::Outage),
                4 => return Outcome::Failed(Failure::Locked),
                5 => return Outcome::Failed(Failure::Operator),
                6 => return Outcome::Failed(Failure::Severed),
                // The batch committed, and the consumer does not learn of the commit.
                2 => {
                    self.commit(messages());
                    return Outcome::Failed(Failure::Outage);
                }
                _ => {}
            }
        }
        // The database defers a key from some message on. It still finds duplicates of stored
        // events.
        let mut deferred = BTreeSet::new();
        let mut fates = Vec::new();
        for message in messages() {
            if self.strikes() {
                deferred.insert(message.key);
            }
            let is_copy = self.store.knows(message.event);
            let is_deferred = deferred.contains(&message.key) && !is_copy;
            fates.push(match (is_deferred, is_copy) {
                (true, _) => Fate::Deferred,
                (false, true) => Fate::Recorded,
                (false, false) => Fate::Applied,
            });
        }
        let committed = messages().zip(&fates).filter(|(_, fate)| **fate != Fate::Deferred);
        self.commit(committed.map(|(message, _)| message));
        Outcome::Committed(fates)
    }

    fn acknowledge(&mut self, index: usize) {
        if !self.instances[index].is_open {
            return;
        }
        for id in self.instances[index].intake.acknowledgements(usize::MAX) {
            let Message { key, event, .. } = self.pubsub.message(&id);
            let seed = self.seed;
            assert!(self.store.knows(event), "C2: seed {seed}: {id} is not committed");
            let instance = &mut self.instances[index];
            let arrival = instance.deliveries[&id];
            let before = instance.acknowledged.insert(key, arrival);
            assert!(before.is_none_or(|it| it < arrival), "C7: seed {seed}: {id} out of order");
            if !self.strikes() {
                self.pubsub.acknowledge(&id);
            }
        }
    }

    /// Checks that every event was applied once, and in order unless the event was late. Discarded
    /// events must not be applied.
    pub(crate) fn judge(&self) {
        let all = self.store.applied();
        for (key, mut expected) in self.pubsub.events() {
            expected.dedup();
            expected.retain(|event| !self.store.discarded.contains_key(event));
            let of_key = all.iter().filter(|(its_key, ..)| *its_key == key);
            let mut applied: Vec<u64> = of_key.map(|(_, _, event)| *event).collect();
            if self.store.late() > 0 || self.plan.gaps != GapMode::Absent {
                applied.sort_unstable();
                expected.sort_unstable();
            }
            assert_eq!(applied, expected, "seed {}: key {key}", self.seed);
        }
    }

    /// Checks that no event was applied before a missing version of its key, unless a person
    /// released the event. Returns the number of events that came after a higher version.
    pub(crate) fn judge_gaps(&self) -> usize {
        let versions: BTreeMap<u64, (usize, i64)> = self.pubsub.versions();
        let mut reached: BTreeMap<usize, i64> = BTreeMap::new();
        let mut behind = 0;
        for (count, (key, version, event)) in self.store.applied().into_iter().enumerate() {
            let discarded = self.store.discarded.iter();
            let by_now = discarded.filter(|(_, applied_by_then)| **applied_by_then <= count);
            let by_now = by_now.map(|(other, _)| versions[other]);
            let tried = self.store.tried.iter();
            let tried = tried.filter(|(_, applied_by_then)| **applied_by_then <= count);
            let tried = tried.map(|(other, _)| (versions[other].0, versions[other].1 - 1));
            for (its_key, its_version) in by_now.chain(tried) {
                reached.entry(its_key).and_modify(|last| *last = its_version.max(*last));
            }
            let last = *reached.entry(key).or_insert(version);
            let is_excused = self.store.released.contains(&event);
            assert!(
                version <= last + 1 || is_excused,
                "seed {}: key {key}: version {version} was applied before version {}",
                self.seed,
                last + 1
            );
            behind += usize::from(version < last);
            reached.insert(key, version.max(last));
        }
        behind
    }
}
