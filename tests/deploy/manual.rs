//! Checks that the manual has an entry for every exit code that an operator can receive.

use walrelay_errors::Exit;

use crate::text_of;

/// Returns the cells of the table below a heading, row by row.
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
fn every_exit_code_has_an_entry() {
    let entries = table(&text_of("docs/reference/exit-codes.md"), "Exit codes");
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

#[test]
fn the_documented_grants_cover_every_table_of_init() {
    let folder = std::fs::read_dir(crate::root().join("migrations")).unwrap();
    let files = folder.flatten().map(|entry| entry.path());
    let scripts = files.filter(|path| path.extension().is_some_and(|it| it == "sql"));
    let sql: String = scripts.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let page = text_of("docs/how-to/deploy/roles.md");
    let (_, rights) = page.split_once("\n## A role for the relay\n").unwrap();
    let (rights, _) = rights.split_once("\n## ").unwrap();
    let tables: Vec<&str> = sql
        .split("CREATE TABLE public.")
        .skip(1)
        .filter_map(|rest| rest.split([' ', '(']).next())
        .collect();
    assert!(tables.len() >= 7, "{tables:?}");
    for table in tables {
        assert!(rights.contains(&format!("`{table}`")), "the page does not name {table}");
    }
}
