//! The texts about error codes, from the errors page, which is part of the binary.

use std::sync::OnceLock;

use walrelay_errors::{Code, Coded};
use walrelay_outbox_store::Shard;

/// The address of the documentation.
pub(crate) const DOCUMENTATION: &str = "https://github.com/walrelay/walrelay/tree/main/docs";

/// The page with one section for each code.
const PAGE: &str = include_str!("../../../../docs/reference/errors.md");

/// Returns the section of the page about a code, without the mark of its heading.
#[must_use]
pub(crate) fn section(code: &str) -> Option<&'static str> {
    let sections = PAGE.split("\n## ").skip(1);
    sections.map(str::trim).find(|section| section.lines().next() == Some(code))
}

/// Returns the fix of a code, which is one line of its section.
#[must_use]
pub(crate) fn fix(code: Code) -> &'static str {
    let lines = section(code.name()).into_iter().flat_map(str::lines);
    lines.filter_map(|line| line.strip_prefix("Fix: ")).next().unwrap_or_default()
}

/// Returns the fix of an error: its own, or that of its code.
#[must_use]
pub(crate) fn fix_of(error: &impl Coded) -> String {
    error.fix().unwrap_or_else(|| fix(error.code()).to_owned())
}

#[must_use]
pub(crate) fn fix_of_shard(code: Code, shard: Shard) -> String {
    with_shard(fix(code), shard)
}

/// The shard that the command is about.
static SHARD: OnceLock<Shard> = OnceLock::new();

/// Sets the shard that the printed commands name.
pub(crate) fn set_shard(shard: Shard) {
    SHARD.get_or_init(|| shard);
}

/// Adds the shard that this command is about to the commands in a text.
#[must_use]
pub(crate) fn for_this_shard(text: &str) -> String {
    with_shard(text, SHARD.get().copied().unwrap_or(Shard::WHOLE))
}

/// Adds `--shard` to each command in a text that is about one shard.
#[must_use]
pub(crate) fn with_shard(text: &str, shard: Shard) -> String {
    const PROGRAM: &str = "walrelay ";
    if shard.is_whole() || text.contains("--shard") {
        return text.to_owned();
    }
    let mut text_with_shard = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(PROGRAM) {
        let (command, after) = after.split_at(command_of_one_shard(after));
        text_with_shard.extend([before, PROGRAM, command]);
        if !command.is_empty() {
            text_with_shard.push_str(&format!(" --shard {shard}"));
        }
        rest = after;
    }
    text_with_shard + rest
}

/// Returns the length of the command at the start of the text, or 0 if it is not about one shard.
fn command_of_one_shard(text: &str) -> usize {
    let mut words = text.split(|c: char| !c.is_ascii_lowercase());
    match (words.next(), words.next()) {
        (Some("run"), _) => "run".len(),
        (Some("replay"), Some(command @ ("start" | "resume"))) => "replay ".len() + command.len(),
        (Some(group @ ("slot" | "anchor" | "dispatch")), Some(command)) if !command.is_empty() => {
            group.len() + 1 + command.len()
        }
        _ => 0,
    }
}

/// Returns the cause of a code: the sentence after the exit code.
#[must_use]
pub(crate) fn cause(code: Code) -> &'static str {
    let cause = section(code.name()).and_then(|text| text.lines().nth(2)).unwrap_or_default();
    cause.split_once(". ").map_or(cause, |(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_printed_command_about_one_slot_names_its_shard() {
        let shard: Shard = "1/4".parse().unwrap();
        for (text, expected) in [
            ("run `walrelay slot recover`", "run `walrelay slot recover --shard 1/4`"),
            ("walrelay slot reset --to-anchor a", "walrelay slot reset --shard 1/4 --to-anchor a"),
            ("walrelay slot recover --shard 0/2", "walrelay slot recover --shard 0/2"),
            ("walrelay anchor drop a", "walrelay anchor drop --shard 1/4 a"),
            ("start it: walrelay run", "start it: walrelay run --shard 1/4"),
            ("walrelay replay resume 5f", "walrelay replay resume --shard 1/4 5f"),
            ("walrelay replay cancel 5f", "walrelay replay cancel 5f"),
            ("walrelay init, `walrelay slot` commands", "walrelay init, `walrelay slot` commands"),
        ] {
            assert_eq!(with_shard(text, shard), expected);
            assert_eq!(with_shard(text, Shard::WHOLE), text);
        }
        assert!(fix_of_shard(Code::SlotLost, shard).contains("slot recover --shard 1/4"));
    }

    #[test]
    fn every_code_has_a_section_with_exit_code_and_fix_and_no_section_lacks_a_code() {
        for code in Code::ALL {
            let text = section(code.name()).unwrap_or_else(|| panic!("no {}", code.name()));
            let exit = format!("Exit code {}. ", code.exit().code());
            assert!(text.contains(&exit), "{text}");
            assert!(fix(*code).len() > 10 && fix(*code).ends_with('.'), "{text}");
            assert!(cause(*code).len() > 10, "{text}");
        }
        let codes: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(codes.len(), Code::ALL.len(), "a code is used twice");
        let headings = PAGE.split("\n## ").skip(1).filter_map(|section| section.lines().next());
        assert_eq!(headings.collect::<BTreeSet<_>>(), codes);
    }

    #[test]
    fn no_fix_advises_to_drop_a_slot_or_names_a_file_of_the_repository() {
        for code in Code::ALL {
            for bad in ["slot drop", "drop the slot", "docs/", "README", "migrations/"] {
                assert!(!fix(*code).contains(bad), "{}: {}", code.name(), fix(*code));
            }
        }
    }
}
