//! Finds the ordering keys with the highest throughput, in a fixed amount of memory.
//!
//! Pub/Sub takes about 1 MB/s for one ordering key. A faster key falls behind for ever, and only
//! its own backlog shows the problem. The number of keys has no bound, so a fixed number of counters
//! counts them (Misra and Gries, 1982). An estimate is never too low, and too high by at most about
//! a five-hundredth of the window's bytes.

use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use hashbrown::HashTable;

use crate::message::Topic;

/// The throughput that Pub/Sub accepts for one ordering key, in bytes per second
/// (<https://cloud.google.com/pubsub/quotas>, "ordering key").
pub const KEY_BYTES_PER_SECOND_MAX: u64 = 1_000_000;

/// The throughput from which a key should be split, in bytes per second: 70 % of the limit.
const HOT_KEY_BYTES_PER_SECOND: u64 = KEY_BYTES_PER_SECOND_MAX / 10 * 7;

/// One of the heaviest keys of the last window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeavyKey {
    /// The topic of the key.
    pub topic: Topic,
    /// The ordering key.
    pub ordering_key: Box<str>,
    /// Bytes that Pub/Sub stored, per second.
    pub bytes_per_second: u64,
    /// Rows that Pub/Sub stored, per second, counted since the key was among the heaviest.
    pub rows_per_second: u64,
}

impl HeavyKey {
    /// Whether the key is close to the limit of Pub/Sub.
    #[must_use]
    pub const fn is_hot(&self) -> bool {
        self.bytes_per_second >= HOT_KEY_BYTES_PER_SECOND
    }
}

/// Counts the stored rows and bytes of each key.
pub struct HeavyKeys {
    hasher: foldhash::fast::SeedableRandomState,
    counters: HashTable<Counter>,
    /// The most bytes that a key without a counter can have.
    uncounted_bytes: u64,
    window_began: Option<Instant>,
    heaviest: Vec<HeavyKey>,
}

struct Counter {
    hash: u64,
    topic: Topic,
    ordering_key: Box<str>,
    bytes: u64,
    rows: u64,
}

const COUNTERS: usize = 1_024;
const REPORTED_MAX: usize = 10;
/// The time for which bytes are counted before the keys are ranked. A key that becomes hot within a
/// window is reported after at most two windows, within ten seconds.
const WINDOW: Duration = Duration::from_secs(4);

impl HeavyKeys {
    /// Creates an empty count. `seed` keeps producers from choosing keys that collide.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = foldhash::SharedSeed::global_fixed();
        Self {
            hasher: foldhash::fast::SeedableRandomState::with_seed(seed, shared),
            counters: HashTable::with_capacity(COUNTERS),
            uncounted_bytes: 0,
            window_began: None,
            heaviest: Vec::new(),
        }
    }

    /// Counts stored rows of one key. Rows without a key have no throughput limit and are not
    /// counted.
    pub fn stored(&mut self, topic: &Topic, ordering_key: &str, rows: usize, bytes: usize) {
        if ordering_key.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one((&**topic, ordering_key));
        let (rows, bytes) = (rows as u64, bytes as u64);
        let is_it = |it: &Counter| *it.ordering_key == *ordering_key && it.topic == *topic;
        if let Some(counter) = self.counters.find_mut(hash, is_it) {
            counter.bytes += bytes;
            counter.rows += rows;
            return;
        }
        if self.counters.len() == COUNTERS {
            self.drop_light_half();
        }
        let (topic, ordering_key) = (Topic::clone(topic), ordering_key.into());
        let bytes = self.uncounted_bytes + bytes;
        let counter = Counter { hash, topic, ordering_key, bytes, rows };
        self.counters.insert_unique(hash, counter, |it| it.hash);
    }

    /// Frees the counters of the lighter keys. If such a key is counted again, it may have had as many
    /// bytes as the heaviest of them.
    fn drop_light_half(&mut self) {
        let mut bytes: Vec<u64> = self.counters.iter().map(|it| it.bytes).collect();
        let (_, median, _) = bytes.select_nth_unstable(COUNTERS / 2);
        self.uncounted_bytes = *median;
        self.counters.retain(|it| it.bytes > *median);
    }

    /// Ranks the keys at the end of a window. Returns true if there is a new ranking.
    pub fn tick(&mut self, now: Instant) -> bool {
        let began = *self.window_began.get_or_insert(now);
        let elapsed = now.saturating_duration_since(began);
        if elapsed < WINDOW {
            return false;
        }
        let per_second = |count: u64| u128::from(count) * 1_000 / elapsed.as_millis();
        let per_second = |count| u64::try_from(per_second(count)).unwrap_or(u64::MAX);
        let mut counters: Vec<Counter> = self.counters.drain().collect();
        counters
            .sort_unstable_by(|a, b| (b.bytes, &*a.ordering_key).cmp(&(a.bytes, &*b.ordering_key)));
        counters.truncate(REPORTED_MAX);
        let ranked = counters.into_iter().map(|counter| HeavyKey {
            bytes_per_second: per_second(counter.bytes),
            rows_per_second: per_second(counter.rows),
            topic: counter.topic,
            ordering_key: counter.ordering_key,
        });
        self.heaviest = ranked.collect();
        self.uncounted_bytes = 0;
        self.window_began = Some(now);
        true
    }

    /// The heaviest keys of the last complete window, heaviest first, at most ten.
    #[must_use]
    pub fn heaviest(&self) -> &[HeavyKey] {
        &self.heaviest
    }
}

impl std::fmt::Debug for HeavyKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the names, because keys are never logged.
        f.debug_struct("HeavyKeys").field("heaviest", &self.heaviest.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic::from("projects/p/topics/t")
    }

    #[test]
    fn one_key_at_nine_tenths_of_the_bound_is_named_among_a_thousand_small_ones() {
        let (start, mut keys) = (Instant::now(), HeavyKeys::new(7));
        keys.tick(start);
        for round in 0..40_u32 {
            keys.stored(&topic(), "hot", 9, 90_000);
            for small in 0..1_000 {
                keys.stored(&topic(), &format!("small-{small}"), 1, 200);
            }
            keys.tick(start + Duration::from_millis(u64::from(round) * 100));
        }
        assert!(keys.tick(start + Duration::from_secs(4)));
        let heaviest = keys.heaviest();
        assert_eq!(heaviest.len(), REPORTED_MAX);
        assert_eq!(&*heaviest[0].ordering_key, "hot");
        assert!(heaviest[0].is_hot() && heaviest[0].bytes_per_second <= 950_000, "{heaviest:?}");
        assert_eq!(heaviest[0].rows_per_second, 90);
        assert!(heaviest[1..].iter().all(|key| !key.is_hot()), "{heaviest:?}");
    }

    #[test]
    fn light_keys_without_end_neither_hide_the_heavy_one_nor_look_heavy() {
        let (start, mut keys) = (Instant::now(), HeavyKeys::new(11));
        keys.tick(start);
        for light in 0..200_000_u32 {
            keys.stored(&topic(), &light.to_string(), 1, 300);
            if light % 20 == 0 {
                keys.stored(&topic(), "heavy", 1, 400);
            }
        }
        keys.tick(start + Duration::from_secs(4));
        let heaviest = keys.heaviest();
        assert_eq!(&*heaviest[0].ordering_key, "heavy", "{heaviest:?}");
        let bytes = heaviest[0].bytes_per_second * 4;
        assert!((4_000_000..4_200_000).contains(&bytes), "{bytes}");
        let all = 200_000 * 300 + 10_000 * 400;
        assert!(heaviest[1].bytes_per_second * 4 <= all / 400, "{heaviest:?}");
    }

    #[test]
    fn equal_keys_of_two_topics_are_two_keys_and_rows_without_a_key_are_none() {
        let (start, mut keys) = (Instant::now(), HeavyKeys::new(3));
        keys.tick(start);
        keys.stored(&topic(), "k", 1, 4_000);
        keys.stored(&Topic::from("projects/p/topics/u"), "k", 1, 8_000);
        keys.stored(&topic(), "", 1, 1_000_000);
        keys.tick(start + Duration::from_secs(4));
        let rates: Vec<_> = keys.heaviest().iter().map(|key| key.bytes_per_second).collect();
        assert_eq!(rates, [2_000, 1_000]);
    }

    #[test]
    fn a_key_that_has_gone_quiet_is_not_named_any_more() {
        let (start, mut keys) = (Instant::now(), HeavyKeys::new(5));
        keys.tick(start);
        keys.stored(&topic(), "k", 1, 4_000_000);
        assert!(!keys.tick(start + Duration::from_secs(3)));
        assert!(keys.tick(start + Duration::from_secs(4)) && keys.heaviest()[0].is_hot());
        assert!(keys.tick(start + Duration::from_secs(8)) && keys.heaviest().is_empty());
    }
}
