//! Randomness that differs between processes; everything else derives from it.

/// A seed for what must differ between processes: jitter and the key hash.
#[must_use]
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
