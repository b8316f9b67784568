//! The published messages: versions of keys, some too late, some out of order, some never.

use walrelay_core::Random;

use super::pubsub::{KEYS, PubSub};

/// The maximum number of turns until a withheld version is published.
const LATE_TURNS_MAX: u32 = 400;

/// The fate of versions that the producer withholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GapMode {
    /// The producer withholds no version.
    Absent,
    /// All withheld versions are published in the end. No handler fails, and nobody has to act.
    Filled,
    /// Some versions are never published. Handlers fail, and a person retries or discards stuck
    /// events.
    Left,
}

#[derive(Debug)]
struct Withheld {
    key: usize,
    version: i64,
    turn: u32,
}

/// Assigns numbers in the order in which events commit, and versions within each key.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    events: u64,
    versions: [i64; KEYS],
    withheld: Vec<Withheld>,
}

impl Producer {
    /// Publishes the next version of a key, perhaps twice, as after a crash of the relay.
    pub(crate) fn publish(&mut self, pubsub: &mut PubSub, key: usize, times: u32) {
        self.versions[key] += 1;
        self.publish_version(pubsub, key, self.versions[key], times);
    }

    fn publish_version(&mut self, pubsub: &mut PubSub, key: usize, version: i64, times: u32) {
        let event = self.events;
        self.events += 1;
        for _ in 0..times {
            pubsub.publish(key, version, event);
        }
    }

    /// Withholds a version for a while, or for ever under [`GapMode::Left`]. Alternatively the next
    /// version commits first.
    pub(crate) fn stumble(
        &mut self,
        pubsub: &mut PubSub,
        gaps: GapMode,
        key: usize,
        random: &mut Random,
    ) {
        self.versions[key] += 1;
        let version = self.versions[key];
        match random.next_u32() % 4 {
            0 if gaps == GapMode::Left => {}
            1 => {
                self.publish(pubsub, key, 1);
                self.publish_version(pubsub, key, version, 1);
            }
            _ => {
                let turn = random.next_u32() % LATE_TURNS_MAX;
                self.withheld.push(Withheld { key, version, turn });
            }
        }
    }

    /// Publishes the versions withheld until this turn.
    pub(crate) fn publish_withheld(&mut self, pubsub: &mut PubSub, turn: u32) {
        let due: Vec<Withheld> = self.withheld.extract_if(.., |it| it.turn <= turn).collect();
        for Withheld { key, version, .. } in due {
            self.publish_version(pubsub, key, version, 1);
        }
    }

    /// Returns whether no withheld version is still to be published.
    pub(crate) fn is_done(&self) -> bool {
        self.withheld.is_empty()
    }
}
