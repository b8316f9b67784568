//! Statements from `.sql` files, each found by its name when the crate is compiled.
//!
//! A heading begins a statement, which ends before the next heading:
//!
//! - `-- name: claim` begins one statement. A test prepares it on each version of Postgres.
//! - `-- part: origin` begins text that Rust splices into statements.
//! - `-- script: settings` begins several statements that run together and take no parameters.

/// Returns the statement of this name in an `.sql` file beside the calling module, for the schema of
/// this process. A missing file or name does not compile.
#[macro_export]
macro_rules! sql {
    ($file:literal, $name:literal) => {{
        static TEXT: $crate::SchemaText =
            $crate::SchemaText::new($crate::named_sql(include_str!($file), $name));
        TEXT.get()
    }};
}

/// Returns the text below the heading with this name.
///
/// # Panics
///
/// No heading has this name.
#[must_use]
pub const fn named_sql(file: &'static str, name: &str) -> &'static str {
    let mut rest = file;
    loop {
        assert!(!rest.is_empty(), "the .sql file has no statement of this name");
        let (line, below) = rest.split_at(line_length(rest));
        if is_heading(line) && ends_with(line, name) {
            return below.split_at(statement_length(below)).0.trim_ascii();
        }
        rest = below;
    }
}

/// Returns the length of the first line, with its line break.
const fn line_length(text: &str) -> usize {
    let mut at = 0;
    while at < text.len() {
        if text.as_bytes()[at] == b'\n' {
            return at + 1;
        }
        at += 1;
    }
    at
}

/// Returns the length of the text before the next heading.
const fn statement_length(text: &str) -> usize {
    let mut at = 0;
    while at < text.len() {
        let rest = text.split_at(at).1;
        let length = line_length(rest);
        if is_heading(rest.split_at(length).0) {
            return at;
        }
        at += length;
    }
    at
}

const fn is_heading(line: &str) -> bool {
    starts_with(line, "-- name: ")
        || starts_with(line, "-- part: ")
        || starts_with(line, "-- script: ")
}

const fn starts_with(line: &str, start: &str) -> bool {
    line.len() >= start.len() && is_at(line, 0, start)
}

/// Returns whether the name is the last word of the line.
const fn ends_with(line: &str, name: &str) -> bool {
    let line = line.trim_ascii();
    line.len() > name.len()
        && is_at(line, line.len() - name.len(), name)
        && line.as_bytes()[line.len() - name.len() - 1] == b' '
}

const fn is_at(text: &str, at: usize, part: &str) -> bool {
    let mut index = 0;
    while index < part.len() {
        if text.as_bytes()[at + index] != part.as_bytes()[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "-- Of the module.\n\n-- name: claim\nSELECT 1\n -- inside\n  FROM t\n\n\
        -- part: reclaim\n1 AS one\n-- script: last\nSET a = 1;";

    #[test]
    fn a_statement_ends_before_the_next_heading() {
        assert_eq!(named_sql(FILE, "claim"), "SELECT 1\n -- inside\n  FROM t");
        assert_eq!(named_sql(FILE, "reclaim"), "1 AS one");
        assert_eq!(named_sql(FILE, "last"), "SET a = 1;");
    }

    #[test]
    #[should_panic(expected = "no statement of this name")]
    fn a_name_that_is_missing_is_an_error_even_if_another_ends_with_it() {
        assert_eq!(named_sql(FILE, "aim"), "");
    }
}
