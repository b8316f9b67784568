//! SQL of more than one line is in `.sql` files, and each named statement there is used.

use crate::repository::{Files, Finding, rust_files};
use crate::source::strings;

/// Words that begin a line of SQL.
const KEYWORDS: &[&str] = &[
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "WITH",
    "CREATE",
    "ALTER",
    "DROP",
    "GRANT",
    "DO",
    "SET",
    "FROM",
    "WHERE",
    "JOIN",
    "VALUES",
    "UNION",
    "ORDER",
    "GROUP",
    "RETURNING",
    "EXISTS",
];

/// The comment that exempts a statement, with the reason behind it. It is above the statement, by
/// at most this many lines.
const MARK: &str = "// spliced: ";
const MARK_LINES_MAX: usize = 3;

/// The beginnings of the lines above a named text.
const HEADINGS: [&str; 3] = ["-- name: ", "-- part: ", "-- script: "];

/// Test support writes its own SQL, as tests do.
const FOR_TESTS: &[&str] = &["crates/testkit/"];

pub(crate) fn long_statements_are_in_sql_files(files: &Files) -> Vec<Finding> {
    let is_checked = |path: &str| {
        let is_source = path.starts_with("crates/") && path.contains("/src/");
        is_source && !FOR_TESTS.iter().any(|it| path.starts_with(it))
    };
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_checked(path)) {
        let lines: Vec<&str> = text.lines().collect();
        for literal in strings(text) {
            let above = &lines[..literal.line - 1];
            let near = &above[above.len().saturating_sub(MARK_LINES_MAX)..];
            let is_marked = near.iter().any(|line| line.trim_start().starts_with(MARK));
            if is_long_sql(literal.text) && !is_marked {
                let remedy = "SQL over one line: move it to an `.sql` file and use `sql!`, or mark \
                              it with `// spliced: ` and the reason";
                findings.push(Finding::new(path, literal.line, remedy));
            }
        }
    }
    findings
}

/// Returns whether a literal has more than one line, and the first or two of them begin as SQL does.
fn is_long_sql(literal: &str) -> bool {
    let text = literal.trim_start_matches(['r', '#']).trim_matches('"').trim();
    let begins = |line: &str| {
        let word = line.trim_start_matches([' ', '(']).split(' ').next().unwrap_or_default();
        KEYWORDS.contains(&word)
    };
    let beginnings = text.lines().filter(|line| begins(line)).count();
    text.contains('\n') && (begins(text) || beginnings >= 2)
}

/// The module that adapts the qualifier, and the one that renders the files of an outbox.
const QUALIFIERS: [&str; 2] =
    ["crates/pg-client/src/schema.rs", "crates/outbox-store/src/migrations.rs"];

/// The beginnings of our objects' names in `public`.
const NAMES: [&str; 2] = ["public.app_", "public.{"];

/// Finds statements in Rust that name our objects in `public`, also with another `--schema`.
pub(crate) fn own_objects_are_in_the_chosen_schema(files: &Files) -> Vec<Finding> {
    let is_checked = |path: &str| {
        let mut exempt = FOR_TESTS.iter().chain(&QUALIFIERS);
        let is_source = path.starts_with("crates/") && path.contains("/src/");
        is_source && !path.ends_with("/tests.rs") && !exempt.any(|it| path.starts_with(it))
    };
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_checked(path)) {
        for literal in
            strings(text).iter().filter(|it| NAMES.iter().any(|name| it.text.contains(name)))
        {
            if !is_argument(text, literal.text) {
                let remedy = "always in `public`: write `in_schema!(\"… public.app_…\")`, or \
                              `{SCHEMA}.app_…` in a format string";
                findings.push(Finding::new(path, literal.line, remedy));
            }
        }
    }
    findings
}

/// Returns whether the literal is the argument of `in_schema!`.
fn is_argument(text: &str, literal: &str) -> bool {
    text.match_indices(literal).any(|(at, _)| text[..at].trim_end().ends_with("in_schema!("))
}

/// Checks that each named text has its own name in its file, and is used beside the file.
pub(crate) fn named_statements_are_used_once(files: &Files) -> Vec<Finding> {
    let sources = files.iter().filter(|(path, _)| path.ends_with(".sql") && path.contains("/src/"));
    let mut findings = Vec::new();
    for (path, text) in sources {
        let (folder, file) = path.rsplit_once('/').unwrap_or_default();
        let is_beside = |other: &str| other.rsplit_once('/').is_some_and(|(it, _)| it == folder);
        let mut names = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let Some(name) = HEADINGS.iter().find_map(|it| line.strip_prefix(it)) else { continue };
            let call = format!("sql!(\"{file}\", \"{name}\")");
            let is_used =
                rust_files(files).any(|(other, code)| is_beside(other) && code.contains(&call));
            if names.contains(&name) {
                findings.push(Finding::new(path, number + 1, "the name is taken: choose another"));
            } else if !is_used {
                findings.push(Finding::new(path, number + 1, format!("remove it: no {call}")));
            }
            names.push(name);
        }
    }
    findings
}

#[cfg(test)]
mod planted_faults {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn sql_over_one_line_is_found_unless_it_is_marked() {
        let long = "const A: &str =\n    \"SELECT a\n       FROM b\";\n";
        let marked = "// spliced: the name of the table.\nlet sql = format!(\n    \"SELECT a\n       FROM {b}\"\n);\n";
        let fine = "let a = \"SELECT a FROM b WHERE c\";\nlet b = \"told\n over two lines\";\n";
        let tested = format!("{fine}#[cfg(test)]\nmod tests {{\n    {long}}}\n");
        let all = files(&[
            ("crates/a/src/long.rs", long),
            ("crates/a/src/marked.rs", marked),
            ("crates/a/src/tested.rs", &tested),
            ("crates/a/tests/long.rs", long),
            ("crates/testkit/src/long.rs", long),
        ]);
        assert_eq!(places(&long_statements_are_in_sql_files(&all)), [("crates/a/src/long.rs", 2)]);
    }

    #[test]
    fn an_own_object_that_is_always_in_public_is_found() {
        let fixed = "let a = \"SELECT FROM public.app_outbox\";\n";
        let adapted = "let a = in_schema!(\"SELECT FROM public.app_inbox\");\nlet b = in_schema!(\n    \"SELECT FROM public.app_outbox\"\n);\n";
        let formatted = "let a = format!(\"SELECT FROM {SCHEMA}.app_outbox\");\n";
        let other = "let a = \"SELECT FROM public.orders\";\n";
        let all = files(&[
            ("crates/a/src/fixed.rs", fixed),
            ("crates/a/src/adapted.rs", adapted),
            ("crates/a/src/formatted.rs", formatted),
            ("crates/a/src/other.rs", other),
            ("crates/a/src/tests.rs", fixed),
            ("crates/a/tests/fixed.rs", fixed),
        ]);
        let found = own_objects_are_in_the_chosen_schema(&all);
        assert_eq!(places(&found), [("crates/a/src/fixed.rs", 1)]);
    }

    #[test]
    fn a_name_that_is_taken_or_unused_is_found() {
        let sql = "-- name: one\nSELECT 1\n-- part: two\n2\n-- name: one\nSELECT 3\n";
        let all = files(&[
            ("crates/a/src/b/c.sql", sql),
            ("crates/a/src/b/c.rs", "sql!(\"c.sql\", \"one\")"),
            ("crates/a/src/c.rs", "sql!(\"c.sql\", \"two\")"),
        ]);
        let found = named_statements_are_used_once(&all);
        let c = "crates/a/src/b/c.sql";
        assert_eq!(places(&found), [(c, 3), (c, 5)]);
    }
}
