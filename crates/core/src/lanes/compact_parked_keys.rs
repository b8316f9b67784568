//! Parked keys that are stored as fingerprints only.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

use crate::message::Topic;

/// A set of key fingerprints.
///
/// A fingerprint has 128 bits from two keyed hashes. Among a million keys, a collision is less
/// likely than a memory error. A key that collides would only be parked for a moment.
#[derive(Debug)]
pub(crate) struct CompactParkedKeys {
    fingerprints: HashTable<u128>,
    hashers: [foldhash::quality::SeedableRandomState; 2],
}

impl CompactParkedKeys {
    pub(crate) fn new(seed: u64) -> Self {
        let shared = foldhash::SharedSeed::global_fixed();
        let hasher = |key| foldhash::quality::SeedableRandomState::with_seed(key, shared);
        let hashers = [hasher(seed.rotate_left(17) ^ 0xA5A5), hasher(!seed)];
        Self { fingerprints: HashTable::new(), hashers }
    }

    pub(crate) fn len(&self) -> usize {
        self.fingerprints.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fingerprints.is_empty()
    }

    pub(crate) fn memory(&self) -> usize {
        self.fingerprints.allocation_size()
    }

    pub(crate) fn insert(&mut self, topic: &Topic, ordering_key: &str) {
        let fingerprint = self.fingerprint(topic, ordering_key);
        let entry = self.fingerprints.entry(
            low(fingerprint),
            |other| *other == fingerprint,
            |other| low(*other),
        );
        entry.insert(fingerprint);
    }

    pub(crate) fn contains(&self, topic: &Topic, ordering_key: &str) -> bool {
        let fingerprint = self.fingerprint(topic, ordering_key);
        self.fingerprints.find(low(fingerprint), |other| *other == fingerprint).is_some()
    }

    pub(crate) fn remove(&mut self, topic: &Topic, ordering_key: &str) -> bool {
        let fingerprint = self.fingerprint(topic, ordering_key);
        let found = self.fingerprints.find_entry(low(fingerprint), |other| *other == fingerprint);
        found.map(hashbrown::hash_table::OccupiedEntry::remove).is_ok()
    }

    fn fingerprint(&self, topic: &Topic, ordering_key: &str) -> u128 {
        let [high, low] = &self.hashers;
        let half = |hasher: &foldhash::quality::SeedableRandomState| {
            let mut state = hasher.build_hasher();
            (&**topic, ordering_key).hash(&mut state);
            u128::from(std::hash::Hasher::finish(&state))
        };
        half(high) << 64 | half(low)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
const fn low(fingerprint: u128) -> u64 {
    fingerprint as u64
}
