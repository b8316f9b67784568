//! Checks the shipped deployment files against the code. Every command, variable, path, port and
//! metric in a manifest must exist. The tests run every part that needs no platform.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod alertmanager;
mod distribution;
mod empty_root;
mod google_cloud;
mod hardening;
mod manifests;
mod manual;
mod promql;
mod queries;
mod runbooks;
mod services;
mod units;

use std::fs;
use std::path::{Path, PathBuf};

use serde_yaml_ng::Value;

fn skipped(reason: &str) {
    let _: Option<()> = walrelay_testkit::skip(reason);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads a file by its path from the repository root.
fn text_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Helm chart with every option, as `scripts/lint-deploy.sh --render` writes it. `make
/// lint-deploy` compares it with the chart.
const RENDERED_CHART: &str = "tests/deploy/testdata/helm.yaml";

/// The chart's templates, which are no YAML before they are rendered.
const TEMPLATES: &str = "/templates";

/// Returns the files below `deploy/` with these extensions, the compose file and the rendered
/// chart, as paths from the repository root.
fn files(endings: &[&str]) -> Vec<String> {
    let mut found = vec!["docker-compose.yml".to_owned(), RENDERED_CHART.to_owned()];
    let mut folders = vec!["deploy".to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root().join(&folder)).expect("a folder that can be read");
        for entry in entries.flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                folders.extend((!path.ends_with(TEMPLATES)).then_some(path));
            } else {
                found.push(path);
            }
        }
    }
    found.retain(|path| endings.iter().any(|ending| path.ends_with(ending)));
    found.sort_unstable();
    found
}

/// Parses the documents of a YAML file.
fn documents(path: &str) -> Vec<Value> {
    let text = text_of(path);
    let read = |document| {
        let mut value = <Value as serde::Deserialize>::deserialize(document)
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        value.apply_merge().unwrap_or_else(|error| panic!("{path}: {error}"));
        value
    };
    serde_yaml_ng::Deserializer::from_str(&text).map(read).collect()
}

/// Returns all mappings inside a value, the value itself first.
fn mappings(value: &Value) -> Vec<&Value> {
    let below: Vec<&Value> = match value {
        Value::Mapping(map) => map.values().collect(),
        Value::Sequence(list) => list.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Tagged(_) => {
            Vec::new()
        }
    };
    let own = value.is_mapping().then_some(value);
    own.into_iter().chain(below.into_iter().flat_map(mappings)).collect()
}

/// Returns the strings of a list.
fn words(value: &Value) -> Vec<String> {
    let list = value.as_sequence().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
