//! Checks that crates form layers and that dependencies point downwards.
//!
//! Cargo rejects cyclic dependencies, but accepts a dependency on a higher layer.

use crate::repository::{Files, Finding};

/// The layers, from the lowest. A crate may depend on crates of lower layers. The testkit is in the
/// layer of core, because its checker shares no code with core.
const LAYERS: &[&[&str]] = &[
    &["walrelay-errors", "walrelay-protobuf", "walrelay-outbox", "walrelay-envelope"],
    &["walrelay-emulator", "walrelay-private-postgres"],
    &["pgoutput-parser"],
    &["walrelay-core", "walrelay-testkit"],
    &["walrelay-pg-client", "walrelay-pubsub", "walrelay-inbox-core", "walrelay-otlp"],
    &["walrelay-pg-replication", "walrelay-inbox"],
    &["walrelay-outbox-store", "walrelay-webhook"],
    &["walrelay-relay"],
    &["walrelay-outbox-replay"],
    &["walrelay-outbox-admin"],
    &["walrelay-inbox-admin"],
    &["walrelay"],
    &["walrelay-bench", "walrelay-tests", "walrelay-simulation"],
    &["walrelay-bench-peers"],
];

/// Crates that the tests of any crate may use.
const FOR_TESTS: &[&str] = &["walrelay-testkit", "walrelay-emulator", "walrelay-private-postgres"];

pub(crate) fn crates_depend_downwards(files: &Files) -> Vec<Finding> {
    let manifests = files.iter().filter(|(path, text)| {
        path.ends_with("Cargo.toml") && !path.contains("/fuzz/") && text.contains("[package]")
    });
    manifests.flat_map(|(path, text)| upward_dependencies(path, text)).collect()
}

fn upward_dependencies(path: &str, text: &str) -> Vec<Finding> {
    let Some(name) = text.lines().find_map(|line| line.strip_prefix("name = ")) else {
        return Vec::new();
    };
    let name = name.trim().trim_matches('"');
    let Some(own) = layer(name) else {
        let remedy = format!("`{name}` is in no layer: add it to LAYERS in tests/tidy/layers.rs");
        return vec![Finding::new(path, 1, remedy)];
    };
    let mut findings = Vec::new();
    let mut section = "";
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim();
        }
        let is_dependency = section.ends_with("dependencies]");
        let dependency = line.split(['.', ' ', '=']).next().unwrap_or("");
        // A crate that names itself turns its optional features on for its tests.
        let is_for_tests = section == "[dev-dependencies]"
            && (dependency == name || FOR_TESTS.contains(&dependency));
        let is_upward = layer(dependency).is_some_and(|layer| layer >= own);
        if is_dependency && is_upward && !is_for_tests {
            let remedy = format!(
                "`{name}` depends on `{dependency}`, which is not below it: move what it needs down"
            );
            findings.push(Finding::new(path, number + 1, remedy));
        }
    }
    findings
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|crates| crates.contains(&name))
}

#[cfg(test)]
mod planted_faults {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn a_dependency_on_a_higher_or_equal_layer_is_found() {
        let core = "[package]\nname = \"walrelay-core\"\n[dependencies]\npgoutput-parser.workspace = true\nwalrelay-relay = { path = \"../relay\" }\n";
        let pubsub = "[package]\nname = \"walrelay-pubsub\"\n[dev-dependencies]\nwalrelay-pg-client.workspace = true\n";
        let all = files(&[("crates/core/Cargo.toml", core), ("crates/pubsub/Cargo.toml", pubsub)]);
        let expected = [("crates/core/Cargo.toml", 5), ("crates/pubsub/Cargo.toml", 4)];
        assert_eq!(places(&crates_depend_downwards(&all)), expected);
    }

    #[test]
    fn tests_of_every_crate_may_use_the_testkit() {
        let manifest = "[package]\nname = \"pgoutput-parser\"\n[dev-dependencies]\nwalrelay-testkit.workspace = true\n";
        let parser = "crates/pgoutput-parser/Cargo.toml";
        assert_eq!(crates_depend_downwards(&files(&[(parser, manifest)])), []);
        let built_in = manifest.replace("dev-dependencies", "dependencies");
        let all = files(&[(parser, &built_in)]);
        assert_eq!(places(&crates_depend_downwards(&all)), [(parser, 4)]);
    }

    #[test]
    fn tests_of_a_crate_may_turn_on_its_features() {
        let manifest = "[package]\nname = \"walrelay-outbox\"\n[dev-dependencies]\nwalrelay-outbox = { path = \".\" }\n";
        assert_eq!(crates_depend_downwards(&files(&[("crates/outbox/Cargo.toml", manifest)])), []);
    }

    #[test]
    fn a_crate_in_no_layer_is_found() {
        let all = files(&[("crates/new/Cargo.toml", "[package]\nname = \"walrelay-new\"\n")]);
        assert_eq!(places(&crates_depend_downwards(&all)), [("crates/new/Cargo.toml", 1)]);
    }
}
