//! Counts versions that are missing between two events of an ordering key.
//!
//! The count is for a metric. Memory is bounded, so a key that was not seen for long may hide a gap.

use std::collections::BTreeMap;

/// The number of keys to remember. A key takes less than 100 bytes, so all take a few megabytes.
const KEYS_MAX: usize = 32_768;

/// The highest version seen of each key.
#[derive(Debug, Default)]
pub struct VersionGaps {
    highest: BTreeMap<u64, i64>,
}

impl VersionGaps {
    /// Takes an event that was handled, by a hash of its key. Returns the number of versions that
    /// are missing between the highest version of its key and this one.
    pub fn seen(&mut self, key: u64, version: i64) -> u64 {
        if let Some(highest) = self.highest.get_mut(&key) {
            let missing = version.saturating_sub(*highest).saturating_sub(1);
            *highest = version.max(*highest);
            return u64::try_from(missing).unwrap_or_default();
        }
        if self.highest.len() == KEYS_MAX {
            self.highest.clear();
        }
        self.highest.insert(key, version);
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_between_two_events_of_a_key_are_missing() {
        let mut gaps = VersionGaps::default();
        assert_eq!(gaps.seen(1, 7), 0, "the first event of a key proves nothing");
        assert_eq!(gaps.seen(1, 8), 0);
        assert_eq!(gaps.seen(1, 11), 2);
        assert_eq!(gaps.seen(2, 3), 0, "another key");
        assert_eq!(gaps.seen(1, 9), 0, "a late event");
        assert_eq!(gaps.seen(1, 12), 0);
        assert_eq!(gaps.seen(1, i64::MIN), 0);
    }

    #[test]
    fn endless_keys_do_not_fill_the_memory() {
        let mut gaps = VersionGaps::default();
        for key in 0..100_000 {
            gaps.seen(key, 1);
        }
        assert!(gaps.highest.len() <= KEYS_MAX);
    }
}
