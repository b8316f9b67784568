//! The active faults, and their match with calls.

use std::time::Duration;

use tokio::sync::watch;
use tonic::Code;

use crate::faults::fault::{AckFailure, Call, Effect, Fault};
use crate::wire::limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(pub u64);

/// An active fault and its hits.
#[derive(Debug, Clone)]
pub struct FaultReport {
    pub id: FaultId,
    pub fault: Fault,
    /// The number of calls that the fault has affected.
    pub hits: u64,
}

/// The parts of a call that conditions match.
#[derive(Debug)]
pub(crate) struct CallFacts<'a> {
    pub(crate) call: Call,
    pub(crate) topic: &'a str,
    /// Empty for Publish.
    pub(crate) subscription: &'a str,
    /// The ordering key of each message, and the message as the client encoded it.
    pub(crate) messages: Vec<(&'a str, &'a [u8])>,
}

/// The treatment of one call.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) delay: Duration,
    pub(crate) outcome: Outcome,
}

impl Plan {
    /// The treatment of a call that no fault affects.
    pub(crate) const UNDISTURBED: Self =
        Self { delay: Duration::ZERO, outcome: Outcome::Undisturbed };

    pub(crate) fn is_undisturbed(&self) -> bool {
        self.delay.is_zero() && matches!(self.outcome, Outcome::Undisturbed)
    }
}

/// The effect on a call (see [`Effect`]).
#[derive(Debug)]
pub(crate) enum Outcome {
    Undisturbed,
    Reject(Code),
    FailAfter(Code),
    Hold(HoldRelease),
    HoldBefore(HoldRelease),
    BlackHole,
    Lose,
    Expire,
    FailIds(AckFailure),
}

/// Waits until the fault that holds a call is released or removed.
#[derive(Debug)]
pub(crate) struct HoldRelease(watch::Receiver<()>);

impl HoldRelease {
    pub(crate) async fn wait(mut self) {
        // An error means that the fault was removed, which releases its calls.
        drop(self.0.changed().await);
    }
}

#[derive(Debug)]
struct ActiveFault {
    id: FaultId,
    fault: Fault,
    random: SplitMix,
    matched: u64,
    hits: u64,
    release: watch::Sender<()>,
}

#[derive(Debug)]
pub(crate) struct Faults {
    active: Vec<ActiveFault>,
    next_id: u64,
    seed: u64,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { active: Vec::new(), next_id: 1, seed }
    }

    pub(crate) fn set(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.next_id);
        self.next_id += 1;
        // Each fault has a generator of its own, so that its draws do not depend on other faults.
        let random = SplitMix(self.seed ^ id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let release = watch::Sender::new(());
        self.active.push(ActiveFault { id, fault, random, matched: 0, hits: 0, release });
        id
    }

    pub(crate) fn clear(&mut self, id: FaultId) -> bool {
        let before = self.active.len();
        self.active.retain(|active| active.id != id);
        self.active.len() < before
    }

    pub(crate) fn clear_all(&mut self) {
        self.active.clear();
    }

    pub(crate) fn release(&self) {
        for active in &self.active {
            active.release.send_replace(());
        }
    }

    pub(crate) fn report(&self) -> Vec<FaultReport> {
        let report =
            |a: &ActiveFault| FaultReport { id: a.id, fault: a.fault.clone(), hits: a.hits };
        self.active.iter().map(report).collect()
    }

    /// Returns whether any fault affects such calls. Without such a fault, the caller need not read
    /// the messages.
    pub(crate) fn strike(&self, call: Call) -> bool {
        self.active.iter().any(|active| active.fault.call == call)
    }

    /// Returns the treatment of a call. Delays add up, and the first matching fault with another
    /// effect decides.
    pub(crate) fn plan(&mut self, call: &CallFacts<'_>) -> Plan {
        let mut delay = Duration::ZERO;
        for active in &mut self.active {
            if !active.hits(call) {
                continue;
            }
            let release = || HoldRelease(active.release.subscribe());
            let outcome = match active.fault.effect {
                Effect::Delay(time) => {
                    delay = delay.saturating_add(time);
                    continue;
                }
                Effect::Reject(code) => Outcome::Reject(code),
                Effect::FailAfter(code) => Outcome::FailAfter(code),
                Effect::Hold => Outcome::Hold(release()),
                Effect::HoldBefore => Outcome::HoldBefore(release()),
                Effect::BlackHole => Outcome::BlackHole,
                Effect::Lose => Outcome::Lose,
                Effect::Expire => Outcome::Expire,
                Effect::FailIds(reason) => Outcome::FailIds(reason),
            };
            return Plan { delay, outcome };
        }
        Plan { delay, outcome: Outcome::Undisturbed }
    }
}

impl ActiveFault {
    fn hits(&mut self, call: &CallFacts<'_>) -> bool {
        if !matches(&self.fault, call) {
            return false;
        }
        self.matched += 1;
        if self.matched <= self.fault.skip
            || self.fault.first.is_some_and(|first| self.hits >= first)
            || self.random.next() % 100 >= u64::from(self.fault.percent)
        {
            return false;
        }
        self.hits += 1;
        true
    }
}

fn matches(fault: &Fault, call: &CallFacts<'_>) -> bool {
    let is_named = |wanted: &Option<String>, name: &str| {
        wanted.as_ref().is_none_or(|its| name == its || name.rsplit('/').next() == Some(its))
    };
    let any_key = |wanted: &String| call.messages.iter().any(|(key, _)| key == wanted);
    let any_attribute = |name: &str, value: &str| {
        call.messages.iter().any(|(_, body)| limits::attribute(body, name) == Some(value))
    };
    fault.call == call.call
        && is_named(&fault.topic, call.topic)
        && is_named(&fault.subscription, call.subscription)
        && fault.ordering_key.as_ref().is_none_or(any_key)
        && fault.attributes.iter().all(|(name, value)| any_attribute(name, value))
}

/// Sebastiano Vigna's SplitMix64: small, seeded, and good enough to draw percentages.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // attributes { event_type: "Paid" }, data "x".
    const PAID: &[u8] = b"\x12\x12\x0A\x0Aevent_type\x12\x04Paid\x0A\x01x";

    fn request<'a>(topic: &'a str, key: &'a str) -> CallFacts<'a> {
        let messages = vec![(key, &b"\x0A\x01x"[..]), (key, PAID)];
        CallFacts { call: Call::Publish, topic, subscription: "", messages }
    }

    fn is_hit(faults: &mut Faults, topic: &str, key: &str) -> bool {
        !faults.plan(&request(topic, key)).is_undisturbed()
    }

    #[test]
    fn every_condition_has_to_hold() {
        let mut faults = Faults::new(0);
        let fault = "topic=orders,key=k,event_type=Paid,black-hole".parse().unwrap();
        faults.set(fault);
        assert!(is_hit(&mut faults, "projects/p/topics/orders", "k"));
        assert!(!is_hit(&mut faults, "projects/p/topics/other", "k"));
        assert!(!is_hit(&mut faults, "projects/p/topics/orders", "other"));

        faults.clear_all();
        faults.set("event_type=Shipped,black-hole".parse().unwrap());
        assert!(!is_hit(&mut faults, "projects/p/topics/orders", "k"));
        faults.set("topic=projects/p/topics/orders,black-hole".parse().unwrap());
        assert!(is_hit(&mut faults, "projects/p/topics/orders", "k"));
    }

    #[test]
    fn a_fault_strikes_one_kind_of_call_of_one_subscription() {
        let mut faults = Faults::new(0);
        faults.set("on=acknowledge,subscription=billing,key=k,lose".parse().unwrap());
        assert!(faults.strike(Call::Acknowledge) && !faults.strike(Call::Publish));
        let mut is_hit = |call, subscription, keys: &[&'static str]| {
            let messages = keys.iter().map(|key| (*key, PAID)).collect();
            let plan = faults.plan(&CallFacts { call, topic: "t", subscription, messages });
            !plan.is_undisturbed()
        };
        let billing = "projects/p/subscriptions/billing";
        assert!(is_hit(Call::Acknowledge, billing, &["a", "k"]));
        assert!(!is_hit(Call::Acknowledge, billing, &["a"]));
        assert!(!is_hit(Call::Acknowledge, "projects/p/subscriptions/other", &["k"]));
        assert!(!is_hit(Call::ModifyAckDeadline, billing, &["k"]));
    }

    #[test]
    fn skip_and_first_count_matching_requests() {
        let mut faults = Faults::new(0);
        let id = faults.set("key=k,skip=1,first=2,black-hole".parse().unwrap());
        let hit: Vec<bool> = (0..5).map(|_| is_hit(&mut faults, "t", "k")).collect();
        assert_eq!(hit, [false, true, true, false, false]);
        assert_eq!(faults.report()[0].hits, 2);
        assert!(faults.clear(id));
        assert!(!faults.clear(id));
    }

    #[test]
    fn a_percentage_is_drawn_from_the_seed() {
        let draw = |seed| {
            let mut faults = Faults::new(seed);
            faults.set("percent=30,black-hole".parse().unwrap());
            (0..1000).map(|_| is_hit(&mut faults, "t", "k")).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let hits = draw(1).into_iter().filter(|hit| *hit).count();
        assert!((240..360).contains(&hits), "{hits}");
    }

    #[test]
    fn delays_add_up_and_the_first_other_effect_decides() {
        let mut faults = Faults::new(0);
        for text in ["delay=100ms", "reject=UNAVAILABLE", "delay=1s", "black-hole"] {
            faults.set(text.parse().unwrap());
        }
        let plan = faults.plan(&request("t", "k"));
        assert_eq!(plan.delay, Duration::from_millis(100));
        assert!(matches!(plan.outcome, Outcome::Reject(Code::Unavailable)));
    }
}
