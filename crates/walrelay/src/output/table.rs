//! Tables that fit the terminal.

use crate::output::text::shortened;

/// How a table shrinks on a narrow terminal.
pub(crate) struct ColumnFit<const N: usize> {
    /// Smallest width of each column. None for a column that is never cut.
    pub(crate) least: [Option<usize>; N],
    /// The columns to leave out afterwards, in this order.
    pub(crate) left_out: &'static [usize],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'a, const N: usize> {
    pub heading: [&'static str; N],
    pub rows: &'a [[String; N]],
}

/// Formats a table that fits into `width`. Returns the names of the columns that were left out.
pub(crate) fn fitted<const N: usize>(
    table: Table<'_, N>,
    fitting: &ColumnFit<N>,
    width: usize,
) -> (String, Vec<&'static str>) {
    let whole = widths_of(table);
    let (mut widths, mut is_shown) = (whole, [true; N]);
    // Cuts the last columns first.
    for index in (0..N).rev() {
        let excess = total(widths, is_shown).saturating_sub(width);
        if let Some(least) = fitting.least[index] {
            widths[index] = widths[index].saturating_sub(excess).max(least.min(widths[index]));
        }
    }
    let mut gone = Vec::new();
    for index in fitting.left_out {
        if total(widths, is_shown) <= width {
            break;
        }
        is_shown[*index] = false;
        gone.push(table.heading[*index]);
    }
    // The last column, which was cut first, gets the freed width.
    if let Some(last) = (0..N).rev().find(|index| is_shown[*index])
        && fitting.least[last].is_some()
    {
        let free = width.saturating_sub(total(widths, is_shown));
        widths[last] = (widths[last] + free).min(whole[last]);
    }
    (lines_of(table, widths, is_shown), gone)
}

/// Returns the width of the lines.
fn total<const N: usize>(widths: [usize; N], is_shown: [bool; N]) -> usize {
    let shown = widths.iter().zip(is_shown).filter(|(_, shown)| *shown);
    shown.map(|(width, _)| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Spaces between two columns.
const GAP: usize = 2;

fn widths_of<const N: usize>(table: Table<'_, N>) -> [usize; N] {
    let mut widths = table.heading.map(str::len);
    for row in table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

fn lines_of<const N: usize>(
    table: Table<'_, N>,
    widths: [usize; N],
    is_shown: [bool; N],
) -> String {
    let heading = table.heading.map(str::to_owned);
    let mut text = String::new();
    for line in std::iter::once(&heading).chain(table.rows) {
        let start = text.len();
        for ((cell, width), _) in line.iter().zip(widths).zip(is_shown).filter(|(_, shown)| *shown)
        {
            text.push_str(&format!("{:<width$}  ", shortened(cell, width)));
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    text
}

/// Formats a table: each column as wide as its widest cell, with two spaces between columns.
pub(crate) fn columns<const N: usize>(heading: [&'static str; N], rows: &[[String; N]]) -> String {
    let table = Table { heading, rows };
    lines_of(table, widths_of(table), [true; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_way_to_a_narrow_terminal_and_keeps_its_ids_whole() {
        let heading = ["WHEN", "ID", "ERROR"];
        let rows = [["2026".to_owned(), "i".repeat(20), "e".repeat(40)]];
        let fitting = ColumnFit { least: [None, None, Some(5)], left_out: &[0] };
        let shown = |width| fitted(Table { heading, rows: &rows }, &fitting, width);
        assert_eq!(shown(100), (columns(heading, &rows), vec![]));
        let (cut, gone) = shown(40);
        assert!(cut.lines().all(|line| line.chars().count() <= 40), "{cut}");
        assert!(cut.contains(&"i".repeat(20)) && cut.contains('…') && gone.is_empty(), "{cut}");
        let (narrow, left_out) = shown(30);
        assert!(narrow.lines().all(|line| line.chars().count() <= 30), "{narrow}");
        assert!(narrow.contains(&"i".repeat(20)) && narrow.contains("eeeee"), "{narrow}");
        assert_eq!(left_out, ["WHEN"]);
    }
}
