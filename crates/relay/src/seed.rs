//! The source of randomness that differs between processes. All other randomness derives from it.

/// Returns a random seed for jitter and for the key hash, which must differ between processes.
#[must_use]
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
