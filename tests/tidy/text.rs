//! Checks the text of a file: its length, its first line, its words.

use crate::repository::{Files, Finding, rust_files};

/// A longer file holds more than one concept.
const FILE_LINES_MAX: usize = 600;

/// Synonyms of glossary words, each with the glossary word to use.
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
    ("ack", "settled (Pub/Sub to us), confirmed (us to Postgres) or acknowledged (a consumer)"),
    ("acks", "settled, confirmed or acknowledged"),
    ("acked", "settled, confirmed or acknowledged"),
    ("AckTracker", "Tracker"),
    ("Parcel", "row to record"),
    ("parcel", "row to record"),
    ("Trouble", "the state of the lane, by its name"),
    ("trouble", "the state of the lane, by its name"),
    ("Habits", "what it sets: intervals, limits, settings"),
    ("habits", "what it sets: intervals, limits, settings"),
    ("hurry", "what is due, and why"),
    ("call_for", "claim or read, whichever it is"),
    ("Rest::Delivering", "what the lane waits for"),
    ("Origin::Stored", "recorded: stored is what Pub/Sub has answered for"),
];

/// Names that others chose: a method of the official client, an operation of Pub/Sub.
const FOREIGN: &[&str] = &[".ack()", "modify-ack-deadline"];

/// Finds long files. The limit applies to the lines before the unit tests at the end of a file.
pub(crate) fn files_are_short(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(files) {
        let all = text.lines().count();
        let tests_begin = text.lines().position(|line| line.starts_with("#[cfg(test)]"));
        let code = tests_begin.unwrap_or(all);
        for (lines, begin) in [(code, 0), (all - code, code)] {
            if lines > FILE_LINES_MAX {
                let remedy = format!("{lines} lines, {FILE_LINES_MAX} allowed: split by concept");
                findings.push(Finding::new(path, begin + FILE_LINES_MAX + 1, remedy));
            }
        }
    }
    findings
}

pub(crate) fn modules_are_documented(files: &Files) -> Vec<Finding> {
    rust_files(files)
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .map(|(path, _)| {
            Finding::new(path, 1, "begin with `//!`: what it owns, promises, and leaves to others")
        })
        .collect()
}

pub(crate) fn no_leftovers(files: &Files) -> Vec<Finding> {
    // Concatenated, so that the rule does not find this file.
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

pub(crate) fn glossary_words_have_no_synonyms(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(files) {
        for (number, line) in text.lines().enumerate() {
            let line = FOREIGN.iter().fold(line.to_owned(), |line, name| line.replace(name, ""));
            let code = outside_strings(&line);
            let words = identifiers(&code);
            let is_used = |synonym: &str| match synonym.contains("::") {
                true => code.contains(synonym),
                false => words.contains(&synonym),
            };
            let used = SYNONYMS.iter().filter(|(synonym, _)| is_used(synonym));
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

/// Returns a line without its comment and its strings.
fn outside_strings(line: &str) -> String {
    let code = line.split("//").next().unwrap_or(line);
    code.split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

fn identifiers(code: &str) -> Vec<&str> {
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod planted_faults {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn a_long_file_is_found_and_its_unit_tests_are_measured_apart() {
        let code = "fn f() {}\n".repeat(FILE_LINES_MAX);
        let long = format!("{code}fn one_more() {{}}\n");
        let tests = code.trim_end().replace("fn f() {}", "#[cfg(test)]");
        let tested = format!("{code}{tests}\n");
        let tested_too_much = format!("{tested}fn one_more() {{}}\n");
        let all = files(&[
            ("bench/src/long.rs", &long),
            ("crates/a/src/tested.rs", &tested),
            ("crates/a/src/tested_too_much.rs", &tested_too_much),
            ("crates/a/tests/long.rs", &long),
            ("tests/e2e/long.rs", &long),
        ]);
        let expected = [
            ("bench/src/long.rs", 601),
            ("crates/a/src/tested_too_much.rs", 1201),
            ("crates/a/tests/long.rs", 601),
            ("tests/e2e/long.rs", 601),
        ];
        assert_eq!(places(&files_are_short(&all)), expected);
    }

    #[test]
    fn an_undocumented_module_is_found() {
        let all = files(&[
            ("bench/src/b.rs", "use c;"),
            ("crates/a/src/b.rs", "use c;"),
            ("crates/a/src/lib.rs", "//! Doc.\n"),
            ("crates/a/src/tests.rs", "use super::*;"),
            ("crates/a/tests/b.rs", "mod support;"),
            ("tests/e2e/main.rs", "mod b;"),
        ]);
        let undocumented: Vec<_> =
            all.keys().filter(|path| *path != "crates/a/src/lib.rs").map(String::as_str).collect();
        let found = modules_are_documented(&all);
        assert_eq!(found.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), undocumented);
    }

    #[test]
    fn leftovers_are_found_with_their_line() {
        let text =
            format!("fine\n// {}: later\n{}1);\n", concat!("FIX", "ME"), concat!("dbg", "!("));
        let all = files(&[("tests/a.rs", &text)]);
        assert_eq!(places(&no_leftovers(&all)), [("tests/a.rs", 2), ("tests/a.rs", 3)]);
    }

    #[test]
    fn a_synonym_is_found_as_an_identifier_only() {
        let text =
            "let ack_lsn = 1; // flush_lsn\nlet text = \"order_key\";\nlet my_msg_count = 0;\n";
        let paths =
            ["bench/src/main.rs", "crates/a/src/lib.rs", "crates/a/tests/b.rs", "tests/c.rs"];
        let all = files(&paths.map(|path| (path, text)));
        let findings = glossary_words_have_no_synonyms(&all);
        assert_eq!(places(&findings), paths.map(|path| (path, 1)));
    }

    #[test]
    fn a_synonym_behind_its_type_and_a_bare_one_are_found_and_foreign_methods_are_not() {
        let text =
            "let rest = Rest::Delivering;\nlet rest = Rest::Delivered;\nack();\nhandler.ack();\n";
        let all = files(&[("crates/a/src/lib.rs", text)]);
        let lib = "crates/a/src/lib.rs";
        assert_eq!(places(&glossary_words_have_no_synonyms(&all)), [(lib, 1), (lib, 3)]);
    }
}
