//! Reads the description of a peer: a folder with a `peer.toml` and the files that it names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::failure::Failure;
use crate::peers::faults::FaultKind;

/// The file in a peer's folder.
const FILE: &str = "peer.toml";

/// The SQL for peers that read the outbox of `walrelay init`.
const OUTBOX_SQL: &str = "outbox.sql";

/// The shape of `peer.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerFile {
    name: String,
    licence: String,
    documentation: Vec<String>,
    /// What a reader of the tables must know about this peer.
    note: Option<String>,
    /// The paths without which the peer is not installed.
    needs: Vec<String>,
    /// The command that installs the peer, or the reason why there is none.
    install: String,
    /// The paths whose sizes make up the installation.
    installation: Vec<String>,
    /// A URL that answers 200 while the peer is alive.
    liveness: Option<String>,
    /// What a person must do after a fault that the peer does not survive alone.
    #[serde(default)]
    remedies: BTreeMap<FaultKind, String>,
    /// The file with `peer_load`, `peer_emit` and `peer_has` for a table of the peer's own.
    sql: Option<String>,
    #[serde(rename = "variant")]
    variants: Vec<Variant>,
}

/// One way to configure a peer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Files in the peer's working folder, with the template of each.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, String>,
}

/// A peer that can be started.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The name of its folder.
    pub(crate) folder: String,
    pub(crate) name: String,
    pub(crate) licence: String,
    pub(crate) documentation: Vec<String>,
    pub(crate) note: Option<String>,
    pub(crate) liveness: Option<String>,
    pub(crate) variants: Vec<Variant>,
    /// The SQL that creates `peer_load`, `peer_emit` and `peer_has`.
    pub(crate) sql: String,
    has_own_table: bool,
    remedies: BTreeMap<FaultKind, String>,
    directory: PathBuf,
    needs: Vec<PathBuf>,
    installation: Vec<PathBuf>,
    install: String,
    /// The placeholders whose values do not change from run to run.
    pub(crate) places: Vec<(&'static str, String)>,
}

/// Reads all peers, walrelay first.
pub(crate) fn read_all(peers: &Path, installed: &Path, relay: &Path) -> Result<Vec<Peer>, Failure> {
    let mut folders: Vec<PathBuf> = fs::read_dir(peers)
        .map_err(|error| format!("read {}: {error}", peers.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(FILE).is_file())
        .collect();
    folders.sort_by_key(|folder| (!folder.ends_with("walrelay"), folder.clone()));
    folders.iter().map(|folder| read(folder, peers, installed, relay)).collect()
}

fn read(folder: &Path, peers: &Path, installed: &Path, relay: &Path) -> Result<Peer, Failure> {
    let read = |path: PathBuf| {
        fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))
    };
    let file: PeerFile = toml::from_str(&read(folder.join(FILE))?)
        .map_err(|error| format!("{}: {error}", folder.join(FILE).display()))?;
    let sql = match &file.sql {
        Some(name) => read(folder.join(name))?,
        None => read(peers.join(OUTBOX_SQL))?,
    };
    let places = vec![
        ("relay", std::path::absolute(relay)?.display().to_string()),
        ("installed", std::path::absolute(installed)?.display().to_string()),
    ];
    let path = |text: &String| PathBuf::from(render(text, &places));
    Ok(Peer {
        folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        needs: file.needs.iter().map(path).collect(),
        installation: file.installation.iter().map(path).collect(),
        name: file.name,
        licence: file.licence,
        documentation: file.documentation,
        note: file.note,
        liveness: file.liveness,
        variants: file.variants,
        has_own_table: file.sql.is_some(),
        sql,
        remedies: file.remedies,
        directory: folder.to_owned(),
        install: file.install,
        places,
    })
}

impl Peer {
    /// Returns the reason why the peer cannot be started.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = self.needs.iter().find(|path| !path.exists())?;
        Some(format!("{} is missing; {}", missing.display(), self.install))
    }

    /// Returns the action that ends the fault's damage.
    pub(crate) fn remedy(&self, kind: FaultKind) -> String {
        self.remedies.get(&kind).cloned().unwrap_or_else(|| "find the cause".to_owned())
    }

    pub(crate) fn template(&self, name: &str) -> Result<String, Failure> {
        let path = self.directory.join(name);
        Ok(fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?)
    }

    pub(crate) fn has_own_table(&self) -> bool {
        self.has_own_table
    }

    pub(crate) fn installation_mebibytes(&self) -> f64 {
        let bytes: u64 = self.installation.iter().map(|path| bytes_of(path)).sum();
        f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
    }
}

/// Returns the size of a file, or of all files below a folder.
fn bytes_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| bytes_of(&entry.path())).sum()
}

/// Replaces `{name}` by its value. Other braces stay.
pub(crate) fn render(template: &str, places: &[(&'static str, String)]) -> String {
    places.iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{name}}}"), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_braces_stay() {
        let places = [("slot", "s1".to_owned())];
        assert_eq!(render("a={slot} b=${routedByValue}", &places), "a=s1 b=${routedByValue}");
    }

    #[test]
    fn every_shipped_description_is_readable() {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let all = read_all(&peers, Path::new("nowhere"), Path::new("walrelay")).unwrap();
        assert_eq!(all[0].folder, "walrelay");
        for peer in &all {
            assert!(!peer.variants.is_empty() && !peer.documentation.is_empty(), "{peer:?}");
            for template in peer.variants.iter().flat_map(|it| it.files.values()) {
                peer.template(template).unwrap();
            }
        }
    }

    #[test]
    fn a_peer_that_is_not_installed_names_the_reason() {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let all = read_all(&peers, Path::new("nowhere"), Path::new("walrelay")).unwrap();
        let debezium = all.iter().find(|it| it.folder == "debezium").unwrap();
        let reason = debezium.missing().unwrap();
        assert!(reason.contains("nowhere") && reason.contains("install-peers"), "{reason}");
    }
}
