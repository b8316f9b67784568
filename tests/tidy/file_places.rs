//! Checks that each file is in the right place: compiled, run, linked, and under the workspace's
//! lints.

use std::collections::BTreeMap;

use crate::repository::{Files, Finding, rust_files};

/// Finds files that no `mod` names. Such a file is not compiled, and its tests never run.
pub(crate) fn files_are_in_a_module_tree(files: &Files) -> Vec<Finding> {
    let is_root = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let has_folder_of_roots = ["bin", "benches", "tests", "examples", "fuzz_targets", "checks"]
            .iter()
            .any(|folder| path.rsplit('/').nth(1) == Some(folder));
        ["lib.rs", "main.rs", "build.rs"].contains(&name) || has_folder_of_roots
    };
    rust_files(files)
        .filter(|(path, _)| !is_root(path) && !is_declared(files, path))
        .map(|(path, _)| {
            Finding::new(path, 1, "no module names this file: add `mod`, or delete it")
        })
        .collect()
}

fn is_declared(files: &Files, path: &str) -> bool {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((dir, module)) = path.rsplit_once('/') else { return false };
    let parents = [
        format!("{dir}/lib.rs"),
        format!("{dir}/main.rs"),
        format!("{dir}/mod.rs"),
        format!("{dir}.rs"),
    ];
    let declaration = format!("mod {module};");
    let declares = |text: &String| {
        text.lines().any(|line| {
            line.trim_end().ends_with(&declaration) && !line.trim_start().starts_with("//")
        })
    };
    // Integration tests share modules, so any file in the folder may declare this one.
    let is_shared = dir.ends_with("/tests") || dir.ends_with("/benches");
    let beside = rust_files(files)
        .filter(|(beside, _)| is_shared && beside.rsplit_once('/').is_some_and(|it| it.0 == dir))
        .map(|(beside, _)| beside.to_owned());
    parents.into_iter().chain(beside).filter_map(|parent| files.get(&parent)).any(declares)
}

/// Most Rust files in one folder of source. A reader finds a file by its name only among few.
const FOLDER_FILES_MAX: usize = 25;

/// Finds folders of source with too many files. Tests are exempt, because each is read alone.
pub(crate) fn folders_are_small(files: &Files) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, _) in rust_files(files) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            *folders.entry(folder).or_default() += 1;
        }
    }
    let is_source = |folder: &str| folder.contains("/src");
    folders
        .into_iter()
        .filter(|(folder, count)| is_source(folder) && *count > FOLDER_FILES_MAX)
        .map(|(folder, count)| {
            let remedy = format!("{count} files: group those that change together");
            Finding::new(folder, 1, remedy)
        })
        .collect()
}

/// Checks that each test file of the package `tests` is named in its manifest. Cargo finds tests
/// only in a package's `tests/` folder, and this package keeps its tests in its root. A folder with a
/// manifest is a package of its own.
pub(crate) fn test_files_are_targets(files: &Files) -> Vec<Finding> {
    let Some(manifest) = files.get("tests/Cargo.toml") else { return Vec::new() };
    let is_target = |path: &str| manifest.contains(&format!("path = \"{path}\""));
    rust_files(files)
        .filter_map(|(path, _)| Some((path, path.strip_prefix("tests/")?)))
        .filter(|(_, inner)| !inner.contains('/') || inner.ends_with("/main.rs"))
        .filter(|(_, inner)| !inner.starts_with("src/") && !is_target(inner))
        .filter(|(path, _)| {
            let folder = path.strip_suffix("main.rs");
            folder.is_none_or(|folder| !files.contains_key(&format!("{folder}Cargo.toml")))
        })
        .map(|(path, inner)| {
            let remedy =
                format!("never run: add a [[test]] with path = \"{inner}\" to tests/Cargo.toml");
            Finding::new(path, 1, remedy)
        })
        .collect()
}

pub(crate) fn members_inherit_the_lints(files: &Files) -> Vec<Finding> {
    let is_member = |path: &str| {
        ["tests/Cargo.toml", "tests/simulation/Cargo.toml", "bench/Cargo.toml"].contains(&path)
            || (path.starts_with("crates/")
                && path.ends_with("/Cargo.toml")
                && path.matches('/').count() == 2)
    };
    let inherits = |text: &str| {
        text.contains("[lints]\nworkspace = true") || text.contains("lints.workspace = true")
    };
    files
        .iter()
        .filter(|(path, text)| is_member(path) && !inherits(text))
        .map(|(path, _)| {
            Finding::new(
                path,
                1,
                "the workspace's lints do not apply: add `lints.workspace = true`",
            )
        })
        .collect()
}

/// The contents of the documentation. A page that it does not name is not part of the book.
const CONTENTS: &str = "SUMMARY.md";

/// The folder of decision records. Only its index is part of the book.
const DECISIONS: &str = "decisions/";

pub(crate) fn pages_are_linked(files: &Files) -> Vec<Finding> {
    let text = |path: &str| files.get(path).map_or("", String::as_str);
    let contents = text("docs/SUMMARY.md");
    let decisions = text("docs/decisions/README.md");
    let pages = files
        .keys()
        .filter_map(|path| Some((path, path.strip_prefix("docs/")?)))
        .filter(|(_, inner)| inner.ends_with(".md") && *inner != CONTENTS);
    let mut findings = Vec::new();
    for (path, inner) in pages {
        let mut finding = |index: &str| {
            let remedy = format!("nobody finds this page: link ({inner}) in {index}");
            findings.push(Finding::new(path, 1, remedy));
        };
        let record = inner.strip_prefix(DECISIONS).filter(|name| *name != "README.md");
        match record {
            Some(name) if !decisions.contains(&format!("({name})")) => {
                finding("docs/decisions/README.md");
            }
            None if !contents.contains(&format!("({inner})")) => finding("docs/SUMMARY.md"),
            Some(_) | None => {}
        }
    }
    for (index, folder, list) in [
        ("docs/SUMMARY.md", "docs/", contents),
        ("docs/decisions/README.md", "docs/decisions/", decisions),
    ] {
        let linked = list.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let to_pages = linked.filter(|page| page.ends_with(".md"));
        let missing = to_pages.filter(|page| !files.contains_key(&format!("{folder}{page}")));
        let remedy = |page: &str| format!("{page} does not exist: remove its line");
        findings.extend(missing.map(|page| Finding::new(index, 1, remedy(page))));
    }
    findings
}

#[cfg(test)]
mod planted_faults {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn a_file_in_no_module_tree_is_found() {
        let all = files(&[
            ("crates/a/src/lib.rs", "mod used;\npub mod folder;\n// mod orphan;"),
            ("crates/a/src/used.rs", "mod inner;"),
            ("crates/a/src/used/inner.rs", ""),
            ("crates/a/src/folder/mod.rs", ""),
            ("crates/a/src/orphan.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/tests/whole.rs", "mod support;"),
            ("crates/a/tests/support/mod.rs", ""),
            ("crates/a/tests/unused/mod.rs", ""),
        ]);
        let expected = [("crates/a/src/orphan.rs", 1), ("crates/a/tests/unused/mod.rs", 1)];
        assert_eq!(places(&files_are_in_a_module_tree(&all)), expected);
    }

    #[test]
    fn a_folder_with_too_many_files_is_found() {
        let names = |folder: &str, count: usize| -> Vec<String> {
            (0..count).map(|number| format!("{folder}/f{number}.rs")).collect()
        };
        let mut all = names("crates/a/src", FOLDER_FILES_MAX + 1);
        all.extend(names("crates/b/src", FOLDER_FILES_MAX));
        all.extend(names("tests/e2e", FOLDER_FILES_MAX + 1));
        let all: Vec<(&str, &str)> = all.iter().map(|path| (path.as_str(), "")).collect();
        assert_eq!(places(&folders_are_small(&files(&all))), [("crates/a/src", 1)]);
    }

    #[test]
    fn a_test_file_that_is_no_target_is_found() {
        let all = files(&[
            ("tests/Cargo.toml", "[[test]]\nname = \"tidy\"\npath = \"tidy.rs\"\n"),
            ("tests/tidy.rs", ""),
            ("tests/forgotten.rs", ""),
            ("tests/e2e/main.rs", ""),
            ("tests/src/lib.rs", ""),
            ("tests/simulation/Cargo.toml", ""),
            ("tests/simulation/main.rs", ""),
        ]);
        let expected = [("tests/e2e/main.rs", 1), ("tests/forgotten.rs", 1)];
        assert_eq!(places(&test_files_are_targets(&all)), expected);
    }

    #[test]
    fn a_member_without_the_lints_is_found() {
        let all = files(&[
            ("bench/Cargo.toml", "[package]\n"),
            ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\n"),
            ("crates/a/fuzz/Cargo.toml", "[package]\n"),
        ]);
        let expected = [("bench/Cargo.toml", 1), ("crates/b/Cargo.toml", 1)];
        assert_eq!(places(&members_inherit_the_lints(&all)), expected);
    }

    #[test]
    fn a_page_that_nobody_links_and_a_link_without_a_page_are_found() {
        let all = files(&[
            ("docs/SUMMARY.md", "[Guarantees](guarantees.md) [Two](decisions/two.md) [Part]()"),
            ("docs/decisions/README.md", "[Three](three.md) [Four](four.md)"),
            ("docs/guarantees.md", ""),
            ("docs/reference/errors.md", ""),
            ("docs/decisions/one.md", ""),
            ("docs/decisions/two.md", ""),
            ("docs/decisions/three.md", ""),
            ("README.md", ""),
        ]);
        let expected = [
            "docs/decisions/README.md",
            "docs/decisions/one.md",
            "docs/decisions/two.md",
            "docs/reference/errors.md",
            "docs/decisions/README.md",
        ];
        assert_eq!(places(&pages_are_linked(&all)), expected.map(|path| (path, 1)));
    }
}
