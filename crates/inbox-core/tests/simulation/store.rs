//! The database: what has taken effect, and in which order.

use std::collections::{BTreeMap, BTreeSet};

use crate::pubsub::Message;

#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Events that have taken effect.
    pub(crate) applied: BTreeSet<u64>,
    /// The same by key, in the order of effect.
    pub(crate) order: BTreeMap<usize, Vec<u64>>,
    /// How many were overtaken.
    pub(crate) late: u32,
}

impl Store {
    /// Commits these messages: the inbox finds copies.
    pub(crate) fn commit<'a>(&mut self, messages: impl Iterator<Item = &'a Message>) {
        for message in messages {
            if !self.applied.insert(message.event) {
                continue;
            }
            let order = self.order.entry(message.key).or_default();
            self.late += u32::from(order.last().is_some_and(|last| *last > message.event));
            order.push(message.event);
        }
    }
}
