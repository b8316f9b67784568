//! `walrelay explain`: prints the entry of an error code from the errors page, which is part of the
//! binary.

use walrelay_relay::policy::Kind;

use crate::error::Error;
use crate::output::print;

/// The page with one section for each code.
const PAGE: &str = include_str!("../../../../../docs/errors.md");

/// Prints the section of the code, or the list of codes.
///
/// # Errors
///
/// No error has the code, or standard output cannot be written.
pub fn execute(code: Option<&str>) -> Result<(), Error> {
    let Some(code) = code else { return print(&list()) };
    let wanted = code.trim().trim_start_matches("error[").trim_end_matches(']');
    match section(wanted) {
        Some(text) => print(&format!("{text}\n")),
        None => Err(Error::Unfit {
            what: format!("no error has the code {code:?}{}", similar(wanted)),
            hint: "`walrelay explain` lists the codes",
        }),
    }
}

/// Returns the section below the heading of the code, without the heading's mark.
fn section(code: &str) -> Option<&'static str> {
    let sections = PAGE.split("\n## ").skip(1);
    sections.map(str::trim).find(|section| section.lines().next() == Some(code))
}

/// Returns one line for each code, with the first sentence about it.
fn list() -> String {
    let mut codes: Vec<&str> = Kind::ALL.iter().map(|kind| kind.code()).collect();
    codes.sort_unstable();
    let line = |code: &str| {
        let cause = section(code).and_then(|text| text.lines().nth(2)).unwrap_or_default();
        let cause = cause.split_once(". ").map_or(cause, |(_, cause)| cause);
        format!("{code:<34} {cause}\n")
    };
    codes.into_iter().map(line).collect()
}

/// Returns the codes that contain words of the wanted code, the one with the most words first.
fn similar(wanted: &str) -> String {
    let words: Vec<&str> = wanted.split(['-', '_', ' ']).filter(|word| word.len() > 3).collect();
    let common = |code: &str| words.iter().filter(|word| code.contains(**word)).count();
    let all = Kind::ALL.iter().map(|kind| kind.code());
    let mut codes: Vec<&str> = all.filter(|code| common(code) > 0).collect();
    codes.sort_by_key(|code| std::cmp::Reverse(common(code)));
    codes.truncate(5);
    match codes.is_empty() {
        true => String::new(),
        false => format!("; similar: {}", codes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_has_a_section_with_exit_code_and_fix_and_no_section_lacks_a_code() {
        for kind in Kind::ALL {
            let text = section(kind.code()).unwrap_or_else(|| panic!("no {}", kind.code()));
            let exit = format!("Exit code {}. ", kind.exit().code());
            assert!(text.contains(&exit), "{text}");
            assert!(text.contains(&format!("Fix: {}.", kind.hint())), "{text}");
        }
        let codes: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes.len(), Kind::ALL.len(), "a code is used twice");
        let headings = PAGE.split("\n## ").skip(1).filter_map(|section| section.lines().next());
        assert_eq!(headings.collect::<BTreeSet<_>>(), codes);
    }

    #[test]
    fn an_unknown_code_is_refused_with_similar_ones() {
        let refused = execute(Some("slot-is-lost")).expect_err("no such code").report();
        assert!(refused.contains("slot-lost") && refused.contains("walrelay explain"), "{refused}");
        assert!(section("Errors").is_none());
    }
}
