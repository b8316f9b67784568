//! The manual has an entry for everything that an operator can be told to look up there.

use walrelay_relay::policy::{Exit, Kind};

use crate::text_of;

/// A table's rows below a heading, cell by cell.
pub(crate) fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| {
        row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    rows.map(cells).collect()
}

#[test]
fn every_hint_has_an_entry_with_its_exit_code_and_what_to_do_first() {
    let entries = table(&text_of("docs/operations.md"), "Hints");
    for kind in Kind::ALL {
        let entry = entries.iter().find(|cells| cells[0] == kind.hint());
        let entry =
            entry.unwrap_or_else(|| panic!("no entry for the hint of {kind:?}: {}", kind.hint()));
        assert_eq!(entry[1], kind.exit().code().to_string(), "{kind:?}");
        assert!(entry[2].len() > 30, "{kind:?} does not say what to do first");
    }
    assert_eq!(entries.len(), Kind::ALL.len(), "an entry for a hint that nobody is given");
}

#[test]
fn every_exit_code_has_an_entry() {
    let entries = table(&text_of("docs/operations.md"), "Exit codes");
    let codes: Vec<&str> = entries.iter().map(|cells| cells[0].as_str()).collect();
    let all = [
        Exit::Done,
        Exit::Unexpected,
        Exit::Usage,
        Exit::PostgresSetup,
        Exit::PubSubSetup,
        Exit::SlotLost,
        Exit::SlotHeld,
        Exit::BrokenInvariant,
    ];
    assert_eq!(codes, all.map(|exit| exit.code().to_string()));
}
