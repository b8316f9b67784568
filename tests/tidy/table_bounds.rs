//! Checks that the pages describe every table of the migrations, and name what bounds it.

use crate::repository::{Files, Finding};

/// The page that describes the tables.
const TABLES: &str = "docs/reference/tables.md";

/// The page that names the bound of each table.
const BOUNDS: &str = "docs/how-to/operate/retention.md";

/// The heading of the section with the bounds.
const BOUNDS_HEADING: &str = "## What grows";

const CREATE: &str = "CREATE TABLE public.";

/// Finds tables of the migrations that lack a row on one of the pages. Such a table may grow unseen.
pub(crate) fn tables_are_described_and_bounded(files: &Files) -> Vec<Finding> {
    let described = files.get(TABLES).map_or("", String::as_str);
    let bounds = files.get(BOUNDS).and_then(|text| text.split_once(BOUNDS_HEADING));
    let bounded = bounds.map_or("", |(_, rest)| rest.split("\n## ").next().unwrap_or_default());
    let pages = [(TABLES, described), (BOUNDS, bounded)];
    let migrations = files.iter().filter(|(path, _)| path.starts_with("migrations/"));
    let tables = migrations.flat_map(|(path, text)| {
        text.lines().enumerate().filter_map(move |(index, line)| {
            let (_, rest) = line.split_once(CREATE)?;
            Some((path, index + 1, rest.split([' ', '(']).next()?))
        })
    });
    let mut findings = Vec::new();
    for (path, line, table) in tables {
        let row = format!("\n| `{table}` |");
        for (page, _) in pages.iter().filter(|(_, rows)| !rows.contains(&row)) {
            let remedy = format!("{table} has no row in {page}: add one");
            findings.push(Finding::new(path, line, remedy));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn a_table_without_a_bound_is_found() {
        let sql =
            "DO $$ BEGIN\n  CREATE TABLE public.app_new ( -- rows\n  CREATE TABLE public.app_old (";
        let planted = files(&[
            ("migrations/0009_new.sql", sql),
            (TABLES, "\n| `app_new` | new |\n| `app_old` | old |\n"),
            (
                BOUNDS,
                "\n| `app_new` | elsewhere |\n## What grows\n| `app_old` | nothing |\n## Next\n| `app_new` |",
            ),
        ]);
        let found = tables_are_described_and_bounded(&planted);
        assert_eq!(places(&found), [("migrations/0009_new.sql", 2)]);
        assert!(found[0].remedy.contains(BOUNDS), "{}", found[0].remedy);
    }
}
