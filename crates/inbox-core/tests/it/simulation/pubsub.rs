//! A model of Pub/Sub with the behaviour that a consumer sees: order within a key, leases,
//! affinity, redelivered tails.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(crate) const KEYS: usize = 5;
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A message: its key, its place in the key, and its event with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) key: usize,
    pub(crate) place: usize,
    pub(crate) event: u64,
    pub(crate) version: i64,
}

#[derive(Debug)]
struct Slot {
    message: Message,
    lease: Option<(usize, Instant)>,
    is_acknowledged: bool,
    deliveries: u32,
}

#[derive(Debug, Default)]
pub(crate) struct PubSub {
    /// The messages of each key, in order.
    keys: BTreeMap<usize, Vec<Slot>>,
    pub(crate) expired: u32,
    pub(crate) redelivered: u32,
}

impl PubSub {
    pub(crate) fn publish(&mut self, key: usize, version: i64, event: u64) {
        let slots = self.keys.entry(key).or_default();
        let message = Message { key, place: slots.len(), event, version };
        slots.push(Slot { message, lease: None, is_acknowledged: false, deliveries: 0 });
    }

    /// Delivers the next message of a key to this instance, with the name of the delivery. This is
    /// the first message that is neither acknowledged nor out. A key that another instance holds
    /// delivers none.
    pub(crate) fn deliver(
        &mut self,
        key: usize,
        instance: usize,
        until: Instant,
    ) -> Option<(Message, String)> {
        let slots = self.keys.get_mut(&key)?;
        let elsewhere = |slot: &Slot| slot.lease.is_some_and(|(owner, _)| owner != instance);
        if slots.iter().any(elsewhere) {
            return None;
        }
        let slot = slots.iter_mut().find(|slot| !slot.is_acknowledged && slot.lease.is_none())?;
        slot.lease = Some((instance, until));
        slot.deliveries += 1;
        self.redelivered += u32::from(slot.deliveries > 1);
        let ack_id = format!("{key}/{}/{}", slot.message.place, slot.deliveries);
        Some((slot.message.clone(), ack_id))
    }

    fn slot(&mut self, ack_id: &str) -> (&mut Slot, u32) {
        let parts: Vec<usize> = ack_id.split('/').map(|part| part.parse().unwrap()).collect();
        let slot = &mut self.keys.get_mut(&parts[0]).unwrap()[parts[1]];
        (slot, u32::try_from(parts[2]).unwrap())
    }

    pub(crate) fn message(&mut self, ack_id: &str) -> Message {
        self.slot(ack_id).0.message.clone()
    }

    pub(crate) fn acknowledge(&mut self, ack_id: &str) {
        let slot = self.slot(ack_id).0;
        slot.is_acknowledged = true;
        slot.lease = None;
    }

    /// Renews a lease. An older delivery has no lease any more.
    pub(crate) fn renew(&mut self, ack_id: &str, until: Instant) {
        let (slot, delivery) = self.slot(ack_id);
        if let Some((owner, _)) = slot.lease.filter(|_| slot.deliveries == delivery) {
            slot.lease = Some((owner, until));
        }
    }

    /// Expires leases. An expired lease ends the leases behind it in its key, so that the tail is
    /// redelivered in order.
    pub(crate) fn expire(&mut self, now: Instant) {
        for slots in self.keys.values_mut() {
            let is_over = |slot: &Slot| slot.lease.is_some_and(|(_, until)| until <= now);
            let Some(first) = slots.iter().position(is_over) else { continue };
            self.expired += 1;
            slots[first..].iter_mut().for_each(|slot| slot.lease = None);
        }
    }

    /// Redelivers a key's tail without a visible reason.
    pub(crate) fn hiccup(&mut self, key: usize, place: usize) {
        let slots = self.keys.get_mut(&key).into_iter().flatten();
        slots.skip(place).for_each(|slot| slot.lease = None);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.keys.values().flatten().all(|slot| slot.is_acknowledged)
    }

    /// Returns the key and version of each event.
    pub(crate) fn versions(&self) -> BTreeMap<u64, (usize, i64)> {
        let messages = self.keys.values().flatten().map(|slot| &slot.message);
        messages.map(|it| (it.event, (it.key, it.version))).collect()
    }

    /// Returns the events of each key, in the order in which they were published.
    pub(crate) fn events(&self) -> BTreeMap<usize, Vec<u64>> {
        let events = |slots: &Vec<Slot>| slots.iter().map(|slot| slot.message.event).collect();
        self.keys.iter().map(|(key, slots)| (*key, events(slots))).collect()
    }
}
