//! The environment variables from the test wrapper (`with-servers`), and the path of the checkout.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::{Path, PathBuf};

/// Returns an environment variable. An empty variable counts as absent.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    env::var_os(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
}

/// Returns the checkout that this crate was built from.
pub(crate) fn workspace_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the folder where `scripts/install-servers.sh` installs servers that the system lacks.
pub(crate) fn servers_dir() -> PathBuf {
    workspace_root().join(".servers")
}

/// Returns `prefix` with a random suffix. The name is valid for databases, slots, publications and
/// topics.
#[must_use]
pub fn random_name(prefix: &str) -> String {
    // The random number comes from the hash seeds, because the standard library has no generator.
    let number = RandomState::new().build_hasher().finish();
    format!("{prefix}_{:012x}", number & 0xffff_ffff_ffff)
}
