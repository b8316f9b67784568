//! The texts about error codes, from the errors page, which is part of the binary.

use walrelay_errors::{Code, Coded};
use walrelay_outbox_store::Shard;

use super::printed_commands::with_shard;

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
