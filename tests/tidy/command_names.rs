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

/// Files whose texts are still to be moved to the shell.
const NOT_YET: &[&str] = &[
    "crates/core/src/fault.rs",
    "crates/core/src/routing/columns.rs",
    "crates/inbox/src/apply/apply_error.rs",
    "crates/inbox/src/apply/loop_reporter.rs",
    "crates/inbox/src/apply/pull_stream.rs",
    "crates/inbox/src/consumer.rs",
    "crates/inbox/src/operator/consumer_status.rs",
    "crates/inbox/src/error.rs",
    "crates/inbox/src/health.rs",
    "crates/inbox/src/operator/admin.rs",
    "crates/inbox/src/operator/outbox_applier.rs",
    "crates/inbox/src/operator/pending_counts.rs",
    "crates/inbox/src/operator/scaffold.rs",
    "crates/inbox/src/operator/side_rebuild.rs",
    "crates/inbox/src/operator/unfinished_rebuild.rs",
    "crates/outbox-replay/src/admin_error.rs",
    "crates/outbox-admin/src/init.rs",
    "crates/outbox-admin/src/lifecycle/anchor_keeper.rs",
    "crates/outbox-replay/src/operation_resumer/outcome.rs",
    "crates/outbox-admin/src/lifecycle/preflight_check.rs",
    "crates/outbox-replay/src/operation.rs",
    "crates/outbox-admin/src/preflight/assess.rs",
    "crates/outbox-admin/src/preflight/shards.rs",
    "crates/outbox-admin/src/preflight/tables.rs",
    "crates/outbox-replay/src/slot_holder.rs",
    "crates/outbox-replay/src/unfinished_replay.rs",
    "crates/outbox-store/src/session_store.rs",
    "crates/outbox-store/src/store_error.rs",
    "crates/pubsub/src/classify.rs",
    "crates/pubsub/src/dialer.rs",
    "crates/relay/src/observe/anchors.rs",
    "crates/relay/src/observe/dead_rows.rs",
    "crates/relay/src/observe/health.rs",
    "crates/relay/src/observe/observer.rs",
    "crates/relay/src/stream/publish_calls.rs",
];

pub(crate) fn only_the_shell_names_commands(files: &Files) -> Vec<Finding> {
    let is_checked = |path: &str| {
        let is_source = path.starts_with("crates/") && path.contains("/src/");
        let is_test = path.ends_with("/tests.rs") || path.contains("/src/tests/");
        is_source && !is_test && !MAY_NAME.iter().chain(NOT_YET).any(|it| path.starts_with(it))
    };
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_checked(path)) {
        for literal in strings(text) {
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
    let option = words("--").find(|at| begins_word(*at) && has_letter(at + 2));
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
        let planted = "fn a() {\n    \"run walrelay slot recover\";\n    \"set --slot\";\n    \"a slot -- lost\";\n}\n\
                       #[cfg(test)]\nmod tests {\n    const A: &str = \"--slot\";\n}\n";
        let found = only_the_shell_names_commands(&files(&[
            ("crates/relay/src/error.rs", planted),
            ("crates/walrelay/src/error.rs", planted),
            ("crates/relay/src/tests.rs", planted),
        ]));
        let error = "crates/relay/src/error.rs";
        assert_eq!(places(&found), [(error, 2), (error, 3)]);
    }
}
