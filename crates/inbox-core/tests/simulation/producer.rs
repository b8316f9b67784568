//! What is published: versions of keys, some too late, some out of order, some never.

use walrelay_core::Random;

use crate::pubsub::{KEYS, PubSub};

/// Turns until a version that was left out is published after all, at most.
const LATE_TURNS_MAX: u32 = 400;

/// What becomes of versions that are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// None are.
    Absent,
    /// All come in the end, nobody has to act, and no handler fails.
    Filled,
    /// Some never come: handlers fail, and a person sees to what is stuck.
    Left,
}

#[derive(Debug)]
struct Withheld {
    key: usize,
    version: i64,
    turn: u32,
}

/// Gives out numbers in the order in which events commit, and versions within each key.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    events: u64,
    versions: [i64; KEYS],
    withheld: Vec<Withheld>,
}

impl Producer {
    /// The next version of a key, perhaps twice, as after a crash of the relay.
    pub(crate) fn publish(&mut self, pubsub: &mut PubSub, key: usize, times: u32) {
        self.versions[key] += 1;
        self.publish_version(pubsub, (key, self.versions[key]), times);
    }

    fn publish_version(&mut self, pubsub: &mut PubSub, version: (usize, i64), times: u32) {
        let event = self.events;
        self.events += 1;
        for _ in 0..times {
            pubsub.publish(version, event);
        }
    }

    /// Leaves a version out, for a while or, where that may be, for ever; or has the one behind it commit
    /// first.
    pub(crate) fn stumble(
        &mut self,
        (pubsub, gaps): (&mut PubSub, Gaps),
        key: usize,
        random: &mut Random,
    ) {
        self.versions[key] += 1;
        let version = self.versions[key];
        match random.next_u32() % 4 {
            0 if gaps == Gaps::Left => {}
            1 => {
                self.publish(pubsub, key, 1);
                self.publish_version(pubsub, (key, version), 1);
            }
            _ => {
                let turn = random.next_u32() % LATE_TURNS_MAX;
                self.withheld.push(Withheld { key, version, turn });
            }
        }
    }

    /// Publishes what was left out until this turn.
    pub(crate) fn make_up(&mut self, pubsub: &mut PubSub, turn: u32) {
        let due: Vec<Withheld> = self.withheld.extract_if(.., |it| it.turn <= turn).collect();
        for Withheld { key, version, .. } in due {
            self.publish_version(pubsub, (key, version), 1);
        }
    }

    /// Whether everything that will come has.
    pub(crate) fn is_done(&self) -> bool {
        self.withheld.is_empty()
    }
}
