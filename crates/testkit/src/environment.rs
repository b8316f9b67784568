//! What the test wrapper (`with-servers`) tells the tests, and where the checkout is.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::{Path, PathBuf};

/// A word of the environment; empty counts as absent.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var_os(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
}

/// The checkout that this crate was built from.
pub(crate) fn workspace_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Where `scripts/install-servers.sh` puts the servers that the system does not offer.
pub(crate) fn servers_dir() -> PathBuf {
    workspace_root().join(".servers")
}

/// `prefix` with a random end: fit for databases, slots, publications and topics.
#[must_use]
pub fn random_name(prefix: &str) -> String {
    // The standard library has no random numbers, but its hash seeds are.
    let number = RandomState::new().build_hasher().finish();
    format!("{prefix}_{:012x}", number & 0xffff_ffff_ffff)
}
