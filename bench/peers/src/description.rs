//! Reads the description of a peer or a consumer: a folder with a TOML file and the files that it
//! names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fault_kind::FaultKind;
use walrelay_bench::failure::Failure;

/// The file in the folder of a peer.
pub(crate) const PEER_FILE: &str = "peer.toml";

/// The file in the folder of a consumer.
pub(crate) const CONSUMER_FILE: &str = "consumer.toml";

/// The SQL for peers that read the outbox of `walrelay init`.
const OUTBOX_SQL: &str = "outbox.sql";

/// The shape of the file.
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
    #[serde(default)]
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

impl Variant {
    /// Returns the name in tables.
    pub(crate) fn label(name: &str, variant: &str) -> String {
        if variant.is_empty() { name.to_owned() } else { format!("{name}, {variant}") }
    }
}

/// A peer or a consumer that can be started.
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
    /// The file with the SQL for a table of the peer's own.
    own_sql: Option<String>,
    remedies: BTreeMap<FaultKind, String>,
    directory: PathBuf,
    needs: Vec<PathBuf>,
    installation: Vec<PathBuf>,
    install: String,
    /// The placeholders whose values do not change from run to run.
    pub(crate) places: Places,
}

/// Placeholders and their values.
pub(crate) type Places = Vec<(&'static str, String)>;

/// Reads all folders of `directory` that have the file `name`, walrelay first.
pub(crate) fn read_all(
    directory: &Path,
    name: &str,
    places: &Places,
) -> Result<Vec<Peer>, Failure> {
    let mut folders: Vec<PathBuf> = fs::read_dir(directory)
        .map_err(|error| format!("read {}: {error}", directory.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(name).is_file())
        .collect();
    folders.sort_by_key(|folder| (!folder.ends_with("walrelay"), folder.clone()));
    folders.iter().map(|folder| read(folder, name, places)).collect()
}

fn read(folder: &Path, name: &str, places: &Places) -> Result<Peer, Failure> {
    let path = folder.join(name);
    let file: PeerFile =
        toml::from_str(&text_of(&path)?).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut places = places.clone();
    places.push(("folder", absolute(folder)?));
    let installed = |text: &String| PathBuf::from(render(text, &places));
    Ok(Peer {
        folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        needs: file.needs.iter().map(installed).collect(),
        installation: file.installation.iter().map(installed).collect(),
        name: file.name,
        licence: file.licence,
        documentation: file.documentation,
        note: file.note,
        liveness: file.liveness,
        variants: file.variants,
        own_sql: file.sql,
        remedies: file.remedies,
        directory: folder.to_owned(),
        install: file.install,
        places,
    })
}

/// Returns an absolute path as text.
pub(crate) fn absolute(path: &Path) -> Result<String, Failure> {
    Ok(std::path::absolute(path)?.display().to_string())
}

fn text_of(path: &Path) -> Result<String, Failure> {
    Ok(fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))?)
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
        text_of(&self.directory.join(name))
    }

    pub(crate) fn has_own_table(&self) -> bool {
        self.own_sql.is_some()
    }

    /// Returns the SQL that creates `peer_load`, `peer_emit` and `peer_has`.
    pub(crate) fn sql(&self) -> Result<String, Failure> {
        match &self.own_sql {
            Some(name) => self.template(name),
            None => self.template(&format!("../{OUTBOX_SQL}")),
        }
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
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("relays");
        let all = read_all(&peers, PEER_FILE, &Places::new()).unwrap();
        assert_eq!(all[0].folder, "walrelay");
        for peer in &all {
            assert!(!peer.variants.is_empty() && !peer.documentation.is_empty(), "{peer:?}");
            peer.sql().unwrap();
            for template in peer.variants.iter().flat_map(|it| it.files.values()) {
                peer.template(template).unwrap();
            }
        }
    }

    #[test]
    fn a_peer_that_is_not_installed_names_the_reason() {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("relays");
        let places = vec![("installed", "/nowhere".to_owned())];
        let all = read_all(&peers, PEER_FILE, &places).unwrap();
        let debezium = all.iter().find(|it| it.folder == "debezium").unwrap();
        let reason = debezium.missing().unwrap();
        assert!(reason.contains("nowhere") && reason.contains("install-peers"), "{reason}");
    }

    #[test]
    fn every_shipped_consumer_is_readable_and_names_what_it_lacks() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("consumers");
        let places = vec![("clients", "/nowhere".to_owned())];
        let all = read_all(&folder, CONSUMER_FILE, &places).unwrap();
        let names: Vec<&str> = all.iter().map(|consumer| consumer.folder.as_str()).collect();
        assert_eq!(names, ["walrelay", "go", "java", "python", "rust"]);
        for consumer in &all {
            assert!(!consumer.variants.is_empty() && !consumer.documentation.is_empty());
        }
        let reason = all[1].missing().unwrap();
        assert!(reason.contains("nowhere") && reason.contains("install-clients"), "{reason}");
    }
}
