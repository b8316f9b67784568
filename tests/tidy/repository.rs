//! The files of the checkout, and a rule's finding about one of them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// Folders with files from elsewhere.
const SKIPPED_DIRS: &[&str] = &["target", ".git", ".servers", ".tools", "node_modules", "corpus"];

/// The text of each file, by its path from the repository root with `/`.
pub(crate) type Files = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) remedy: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.remedy)
    }
}

pub(crate) fn read_dir(dir: &Path, prefix: &str, files: &mut Files) {
    for entry in fs::read_dir(dir).expect("a readable folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let is_ours = !SKIPPED_DIRS.contains(&name.as_str());
        if path.is_dir() && is_ours {
            read_dir(&path, &format!("{prefix}{name}/"), files);
        } else if [".rs", ".toml", ".md", ".sql"].iter().any(|end| name.ends_with(end)) {
            // A file may vanish while an editor replaces it.
            let text = fs::read_to_string(&path).unwrap_or_default();
            files.insert(format!("{prefix}{name}"), text);
        }
    }
}

pub(crate) fn rust_files(files: &Files) -> impl Iterator<Item = (&str, &str)> {
    let all = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    all.filter(|(path, _)| path.ends_with(".rs"))
}

/// Builds the files for a planted violation.
pub(crate) fn files(texts: &[(&str, &str)]) -> Files {
    texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

/// Returns the places of the findings.
pub(crate) fn places(findings: &[Finding]) -> Vec<(&str, usize)> {
    findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect()
}
