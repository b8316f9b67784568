//! Only the shell names commands and options. Every other crate returns codes and data.

use crate::repository::{Files, Finding, rust_files};
use crate::source::strings;

/// The crates that may name commands, and the reason.
const MAY_NAME: &[&str] = &[
    // The shell.
    "crates/walrelay/",
    // Test support runs the program.
    "crates/testkit/",
    // Starts Postgres's own programs.
    "crates/private-postgres/",
];

/// The comment that exempts a literal, with the reason behind it. It is above the literal, by at
/// most this many lines.
const MARK: &str = "// not a command: ";
const MARK_LINES_MAX: usize = 3;

/// Other programs. Options that follow their name are theirs.
const OTHER_PROGRAMS: &[&str] = &["gcloud ", "supabase "];

pub(crate) fn only_the_shell_names_commands(files: &Files) -> Vec<Finding> {
    let is_checked = |path: &str| {
        let is_source = path.starts_with("crates/") && path.contains("/src/");
        let is_test = path.ends_with("/tests.rs") || path.contains("/src/tests/");
        is_source && !is_test && !MAY_NAME.iter().any(|it| path.starts_with(it))
    };
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_checked(path)) {
        let lines: Vec<&str> = text.lines().collect();
        for literal in strings(text) {
            let above = &lines[..literal.line - 1];
            let near = &above[above.len().saturating_sub(MARK_LINES_MAX)..];
            if near.iter().any(|line| line.trim_start().starts_with(MARK)) {
                continue;
            }
            if let Some(name) = named_command(literal.text) {
                let remedy = format!(
                    "{name:?} names a command or an option: return a code, and put the text into the shell"
                );
                findings.push(Finding::new(path, literal.line, remedy));
            }
        }
    }
    findings
}

/// Returns the command or the option that a literal names.
fn named_command(literal: &str) -> Option<&str> {
    let words = |text: &'static str| literal.match_indices(text).map(|(at, _)| at);
    let begins_word = |at: usize| {
        literal[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '-')
    };
    let has_letter = |at: usize| literal[at..].starts_with(|c: char| c.is_ascii_lowercase());
    let is_ours = |at: usize| !OTHER_PROGRAMS.iter().any(|name| literal[..at].contains(name));
    let option = words("--").find(|at| begins_word(*at) && has_letter(at + 2) && is_ours(*at));
    let is_command = |at: &usize| begins_word(*at) && has_letter(at + "walrelay ".len());
    let at = option.or_else(|| words("walrelay ").find(is_command))?;
    let end = literal[at..].match_indices([' ', '"', '`']).nth(1);
    Some(end.map_or(&literal[at..], |(length, _)| &literal[at..at + length]))
}

#[cfg(test)]
mod planted_faults {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn a_command_or_an_option_outside_the_shell_is_found() {
        let planted = "fn a() {\n    \"run walrelay slot recover\";\n    \"set --slot\";\n    \"a slot -- lost\";\n\
                       \"gcloud pubsub topics create t --project=p\";\n\
                       // not a command: the name of a lock.\n    \"walrelay replay 1\";\n}\n\
                       #[cfg(test)]\nmod tests {\n    const A: &str = \"--slot\";\n}\n";
        let found = only_the_shell_names_commands(&files(&[
            ("crates/relay/src/error.rs", planted),
            ("crates/walrelay/src/commands/slot.rs", planted),
            ("crates/walrelay/src/config/problem.rs", planted),
            ("crates/relay/src/tests.rs", planted),
        ]));
        let error = "crates/relay/src/error.rs";
        assert_eq!(places(&found), [(error, 2), (error, 3)]);
    }
}
