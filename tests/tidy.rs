//! The repository's own rules: what the compiler and clippy do not check.
//!
//! Each finding names file, line and remedy. A rule takes the text of all files and returns
//! findings, so that the tests at the end can plant a fault for each rule.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// Longer files hold more than one concept.
const FILE_LINES_MAX: usize = 600;

/// Words that mean what another word of the glossary means already.
const SYNONYMS: &[(&str, &str)] = &[
    ("ack_lsn", "watermark"),
    ("acked_lsn", "watermark"),
    ("checkpoint_lsn", "watermark"),
    ("flush_lsn", "watermark (ours) or confirmed_flush (the server's)"),
    ("server_lsn", "wal_end"),
    ("partition_key", "ordering_key"),
    ("order_key", "ordering_key"),
    ("PartitionKey", "OrderingKey"),
    ("msg", "message"),
    ("evt", "change, row or message"),
];

/// Folders that are not ours to judge.
const SKIPPED_DIRS: &[&str] = &["target", ".git", ".servers", "node_modules", "corpus"];

/// Path from the root of the checkout, with `/`, to text.
type Files = BTreeMap<String, String>;

type Rule = fn(&Files) -> Vec<Finding>;

/// Every rule; a new one is added here and gets a planted fault below.
const RULES: &[Rule] = &[
    files_are_short,
    files_are_in_a_module_tree,
    test_files_are_targets,
    members_inherit_the_lints,
    modules_are_documented,
    nothing_is_left_behind,
    glossary_words_have_no_synonyms,
    pages_are_linked,
];

#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    remedy: String,
}

impl Finding {
    fn new(path: &str, line: usize, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.remedy)
    }
}

#[test]
fn the_repository_keeps_its_own_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Files::new();
    read_dir(&root, "", &mut files);
    assert!(files.contains_key("Cargo.toml"), "the root of the checkout is not where it was");

    let findings: Vec<String> =
        RULES.iter().flat_map(|rule| rule(&files)).map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

fn read_dir(dir: &Path, prefix: &str, files: &mut Files) {
    for entry in fs::read_dir(dir).expect("a readable folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let is_ours = !SKIPPED_DIRS.contains(&name.as_str());
        if path.is_dir() && is_ours {
            read_dir(&path, &format!("{prefix}{name}/"), files);
        } else if [".rs", ".toml", ".md"].iter().any(|end| name.ends_with(end)) {
            // A file may vanish while an editor replaces it.
            let text = fs::read_to_string(&path).unwrap_or_default();
            files.insert(format!("{prefix}{name}"), text);
        }
    }
}

fn rust_files(files: &Files) -> impl Iterator<Item = (&str, &str)> {
    let all = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    all.filter(|(path, _)| path.ends_with(".rs"))
}

/// Files of a crate itself, as opposed to its tests, benchmarks and fuzz targets.
fn source_files(files: &Files) -> impl Iterator<Item = (&str, &str)> {
    rust_files(files).filter(|(path, _)| path.contains("/src/") && !path.contains("/fuzz/"))
}

fn files_are_short(files: &Files) -> Vec<Finding> {
    let code_lines = |text: &str| {
        // Unit tests stand at the end of their file and do not count.
        text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()
    };
    source_files(files)
        .map(|(path, text)| (path, code_lines(text)))
        .filter(|(_, lines)| *lines > FILE_LINES_MAX)
        .map(|(path, lines)| {
            let remedy =
                format!("{lines} lines without tests, {FILE_LINES_MAX} allowed: split by concept");
            Finding::new(path, FILE_LINES_MAX + 1, remedy)
        })
        .collect()
}

/// A file that no `mod` names is not compiled: its tests never run.
fn files_are_in_a_module_tree(files: &Files) -> Vec<Finding> {
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
    // Integration tests share modules: each file beside the folder may be the one that names it.
    let is_shared = dir.ends_with("/tests") || dir.ends_with("/benches");
    let beside = rust_files(files)
        .filter(|(beside, _)| is_shared && beside.rsplit_once('/').is_some_and(|it| it.0 == dir))
        .map(|(beside, _)| beside.to_owned());
    parents.into_iter().chain(beside).filter_map(|parent| files.get(&parent)).any(declares)
}

/// Cargo looks for tests in `tests/` of a package; the package `tests` has its own folder instead,
/// so each of its files must be named in the manifest.
fn test_files_are_targets(files: &Files) -> Vec<Finding> {
    let Some(manifest) = files.get("tests/Cargo.toml") else { return Vec::new() };
    let is_target = |path: &str| manifest.contains(&format!("path = \"{path}\""));
    rust_files(files)
        .filter_map(|(path, _)| Some((path, path.strip_prefix("tests/")?)))
        .filter(|(_, inner)| !inner.contains('/') || inner.ends_with("/main.rs"))
        .filter(|(_, inner)| !inner.starts_with("src/") && !is_target(inner))
        .map(|(path, inner)| {
            let remedy =
                format!("never run: add a [[test]] with path = \"{inner}\" to tests/Cargo.toml");
            Finding::new(path, 1, remedy)
        })
        .collect()
}

fn members_inherit_the_lints(files: &Files) -> Vec<Finding> {
    let is_member = |path: &str| {
        path == "tests/Cargo.toml"
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

fn modules_are_documented(files: &Files) -> Vec<Finding> {
    source_files(files)
        // Unit tests in a file of their own are documented by what they test.
        .filter(|(path, _)| !path.ends_with("/tests.rs"))
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .map(|(path, _)| {
            Finding::new(path, 1, "begin with `//!`: what it owns, promises, and leaves to others")
        })
        .collect()
}

fn nothing_is_left_behind(files: &Files) -> Vec<Finding> {
    // Put together, so that this file does not find itself.
    let leftovers = [
        (concat!("FIX", "ME"), "fix it, or write a TODO that says what happens until then"),
        (concat!("dbg", "!("), "remove the debug print"),
    ];
    let in_line = |path: &str, number: usize, line: &str| {
        let found = leftovers.iter().filter(|(word, _)| line.contains(word));
        found.map(|(_, remedy)| Finding::new(path, number + 1, *remedy)).collect::<Vec<_>>()
    };
    rust_files(files)
        .flat_map(|(path, text)| {
            text.lines().enumerate().flat_map(move |(number, line)| in_line(path, number, line))
        })
        .collect()
}

fn glossary_words_have_no_synonyms(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in source_files(files) {
        for (number, line) in text.lines().enumerate() {
            let words = identifiers(line);
            let used = SYNONYMS.iter().filter(|(synonym, _)| words.contains(synonym));
            findings.extend(used.map(|(synonym, word)| {
                Finding::new(
                    path,
                    number + 1,
                    format!("`{synonym}`: the glossary's word is {word}"),
                )
            }));
        }
    }
    findings
}

/// The identifiers of one line, without those in comments and strings.
fn identifiers(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or(line);
    let outside_strings = code.split('"').step_by(2);
    outside_strings
        .flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
        .collect()
}

fn pages_are_linked(files: &Files) -> Vec<Finding> {
    let index = files.get("docs/README.md").map_or("", String::as_str);
    files
        .keys()
        .filter_map(|path| Some((path, path.strip_prefix("docs/")?)))
        .filter(|(_, inner)| inner.ends_with(".md") && *inner != "README.md")
        .filter(|(_, inner)| !index.contains(&format!("({inner}")))
        .map(|(path, inner)| {
            Finding::new(
                path,
                1,
                format!("nobody finds this page: link ({inner}) in docs/README.md"),
            )
        })
        .collect()
}

mod planted_faults {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Files {
        texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn places(findings: &[Finding]) -> Vec<(&str, usize)> {
        findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect()
    }

    #[test]
    fn a_long_file_is_found_and_its_unit_tests_are_not_counted() {
        let code = "fn f() {}\n".repeat(FILE_LINES_MAX);
        let long = format!("{code}fn one_more() {{}}\n");
        let tests = format!("{code}#[cfg(test)]\n{code}");
        let all = files(&[("crates/a/src/long.rs", &long), ("crates/a/src/tested.rs", &tests)]);
        assert_eq!(places(&files_are_short(&all)), [("crates/a/src/long.rs", 601)]);
    }

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
    fn a_test_file_that_is_no_target_is_found() {
        let all = files(&[
            ("tests/Cargo.toml", "[[test]]\nname = \"tidy\"\npath = \"tidy.rs\"\n"),
            ("tests/tidy.rs", ""),
            ("tests/forgotten.rs", ""),
            ("tests/e2e/main.rs", ""),
            ("tests/src/lib.rs", ""),
        ]);
        let expected = [("tests/e2e/main.rs", 1), ("tests/forgotten.rs", 1)];
        assert_eq!(places(&test_files_are_targets(&all)), expected);
    }

    #[test]
    fn a_member_without_the_lints_is_found() {
        let all = files(&[
            ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\n"),
            ("crates/a/fuzz/Cargo.toml", "[package]\n"),
        ]);
        assert_eq!(places(&members_inherit_the_lints(&all)), [("crates/b/Cargo.toml", 1)]);
    }

    #[test]
    fn an_undocumented_module_is_found() {
        let all = files(&[("crates/a/src/lib.rs", "//! Doc.\n"), ("crates/a/src/b.rs", "use c;")]);
        assert_eq!(places(&modules_are_documented(&all)), [("crates/a/src/b.rs", 1)]);
    }

    #[test]
    fn leftovers_are_found_with_their_line() {
        let text =
            format!("fine\n// {}: later\n{}1);\n", concat!("FIX", "ME"), concat!("dbg", "!("));
        let all = files(&[("tests/a.rs", &text)]);
        assert_eq!(places(&nothing_is_left_behind(&all)), [("tests/a.rs", 2), ("tests/a.rs", 3)]);
    }

    #[test]
    fn a_synonym_is_found_as_an_identifier_only() {
        let text =
            "let ack_lsn = 1; // flush_lsn\nlet text = \"order_key\";\nlet my_msg_count = 0;\n";
        let all = files(&[("crates/a/src/lib.rs", text)]);
        let findings = glossary_words_have_no_synonyms(&all);
        assert_eq!(places(&findings), [("crates/a/src/lib.rs", 1)]);
    }

    #[test]
    fn a_page_that_nobody_links_is_found() {
        let all = files(&[
            ("docs/README.md", "[Guarantees](guarantees.md)"),
            ("docs/guarantees.md", ""),
            ("docs/decisions/one.md", ""),
        ]);
        assert_eq!(places(&pages_are_linked(&all)), [("docs/decisions/one.md", 1)]);
    }
}
