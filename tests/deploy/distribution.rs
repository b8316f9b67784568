//! Checks that the files of a release agree with each other and with the workspace.

use std::collections::BTreeSet;

use crate::{documents, text_of};

/// Returns the version in the root manifest.
fn version() -> String {
    let manifest = text_of("Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    line.unwrap().trim_matches('"').to_owned()
}

#[test]
fn the_chart_has_the_version_of_the_workspace() {
    let chart = &documents("deploy/helm/walrelay/Chart.yaml")[0];
    assert_eq!((&chart["version"], &chart["appVersion"]), (&version().into(), &version().into()));
}

#[test]
fn path_dependencies_have_the_version_of_the_workspace() {
    let manifest = text_of("Cargo.toml");
    let of_paths = manifest.lines().filter(|line| line.contains("{ path = "));
    let versions: BTreeSet<&str> =
        of_paths.filter_map(|line| line.split_once("version = ")?.1.split('"').nth(1)).collect();
    assert_eq!(versions, [version().as_str()].into());
}

#[test]
fn the_released_image_starts_as_the_image_of_the_dockerfile() {
    let begins = ["USER ", "EXPOSE ", "ENTRYPOINT ", "CMD "];
    let settings = |path: &str| -> Vec<String> {
        let text = text_of(path);
        let lines = text.lines().filter(|line| begins.iter().any(|word| line.starts_with(word)));
        lines.map(str::to_owned).collect()
    };
    let released = settings(".github/release.Dockerfile");
    assert_eq!(released.len(), begins.len());
    assert_eq!(released, settings("Dockerfile"));
}

#[test]
fn the_formula_has_an_archive_for_each_target_of_the_release() {
    let workflow = &documents(".github/workflows/release.yml")[0];
    let matrix = &workflow["jobs"]["binary"]["strategy"]["matrix"]["include"];
    let targets: BTreeSet<&str> =
        matrix.as_sequence().unwrap().iter().map(|job| job["target"].as_str().unwrap()).collect();
    let formula = text_of("deploy/homebrew/walrelay.rb.template");
    let archives: BTreeSet<&str> = formula
        .lines()
        .filter_map(|line| line.trim().strip_prefix("sha256 \"@SHA256 ")?.strip_suffix("@\""))
        .collect();
    assert_eq!(archives, targets);
}
