//! Standard output: the results of a command, and nothing else.

use std::borrow::Cow;
use std::future::pending;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;

use terminal_size::{Height, Width, terminal_size_of};
use tokio::io::Interest;
use tokio::net::unix::pipe;

use crate::error::Error;

/// Prints the result of a command. A closed reader, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_part(text).map(drop)
}

/// Whether the reader of standard output is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    /// Nobody reads further output.
    Gone,
}

/// Waits until nobody reads the output any more. A command that waits for events would otherwise
/// not notice before its next write. Never ends for a file, which cannot be watched.
pub(crate) async fn reader_gone(output: impl AsFd) {
    // Unchecked, because the check would switch standard output to non-blocking writes.
    let copy = output.as_fd().try_clone_to_owned();
    let watched = copy.and_then(pipe::Sender::from_owned_fd_unchecked);
    let Ok(watched) = watched else { return pending().await };
    if watched.ready(Interest::ERROR).await.is_err() {
        pending::<()>().await;
    }
}

/// Prints a part of the result.
pub(crate) fn print_part(text: &str) -> Result<Reader, Error> {
    write_out(&harmless(text))
}

/// Replaces the screen by a text, cut to the height of the terminal: further lines would push the
/// headline out.
pub(crate) fn show(text: &str) -> Result<Reader, Error> {
    write_out(&format!("{CLEAR}{}", frame(&harmless(text), terminal())))
}

fn write_out(text: &str) -> Result<Reader, Error> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(source) => Err(Error::Io { action: "write to standard output".into(), source }),
    }
}

/// The size of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) lines: usize,
}

/// Returns the size of the terminal. None if standard output is no terminal.
pub(crate) fn terminal() -> Option<Size> {
    let (Width(columns), Height(lines)) = terminal_size_of(io::stdout())?;
    Some(Size { columns: columns.into(), lines: lines.into() })
}

/// Cuts the text to the lines that fit, and adds the number of cut lines. The headline and the
/// advice always stay.
fn frame(text: &str, size: Option<Size>) -> String {
    let Some(size) = size.filter(|size| size.columns > 0) else { return text.to_owned() };
    let rows_of = |line: &str| shown_characters(line).div_ceil(size.columns).max(1);
    // The cursor needs the line below the last one.
    let most = size.lines.saturating_sub(1);
    let lines: Vec<&str> = text.lines().collect();
    if lines.iter().map(|line| rows_of(line)).sum::<usize>() <= most {
        return text.to_owned();
    }
    let (mut kept, mut rows) = (0, 1);
    for line in &lines {
        rows += rows_of(line);
        if rows > most && kept >= HEAD_LINES {
            break;
        }
        kept += 1;
    }
    let left = lines.len() - kept;
    let more = if left == 1 { "1 more line".to_owned() } else { format!("{left} more lines") };
    let more = shortened(&format!("… {more}"), size.columns);
    let shown = lines.iter().take(kept).copied().chain((left > 0).then_some(more.as_str()));
    shown.flat_map(|line| [line, "\n"]).collect()
}

/// The headline and the advice.
const HEAD_LINES: usize = 2;

/// Counts characters without colour codes, which take no space.
fn shown_characters(line: &str) -> usize {
    let plain = COLOURS.iter().fold(line.to_owned(), |text, code| text.replace(code, ""));
    plain.chars().count()
}

/// Every sequence that [`ColourMode`] writes.
const COLOURS: [&str; 5] = ["\x1b[32m", "\x1b[33m", "\x1b[31;1m", "\x1b[1m", "\x1b[0m"];

/// Escapes control characters, because text from producers must not control the terminal. Our own
/// colours stay. The escapes are those of JSON, so that JSON stays valid.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.find(is_harmful).map(|at| rest.split_at(at)) {
        safe.push_str(before);
        if let Some(colour) = COLOURS.iter().find(|colour| behind.starts_with(**colour)) {
            safe.push_str(colour);
            rest = &behind[colour.len()..];
            continue;
        }
        let mut characters = behind.chars();
        let harmful = characters.next().map_or(0, u32::from);
        safe.push_str(&format!("\\u{harmful:04x}"));
        rest = characters.as_str();
    }
    safe.push_str(rest);
    Cow::Owned(safe)
}

/// How a table shrinks on a narrow terminal.
pub(crate) struct ColumnFit<const N: usize> {
    /// Smallest width of each column. None for a column that is never cut.
    pub(crate) least: [Option<usize>; N],
    /// The columns to leave out afterwards, in this order.
    pub(crate) left_out: &'static [usize],
}

/// A table with its heading.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a, const N: usize> {
    pub(crate) heading: [&'static str; N],
    pub(crate) rows: &'a [[String; N]],
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

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Everything is as it should be.
    Good,
    /// Somebody should check.
    Attention,
    /// Somebody has to act.
    Bad,
    /// A heading.
    Heading,
}

/// Colours on a terminal, and plain text elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColourMode {
    Plain,
    Coloured,
}

impl ColourMode {
    /// Returns colours if standard output is a terminal that supports them, unless the user
    /// disabled colours (<https://no-color.org>).
    pub(crate) fn of_output() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        match io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb {
            true => Self::Coloured,
            false => Self::Plain,
        }
    }

    pub(crate) fn text(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Attention => "33",
            Tone::Bad => "31;1",
            Tone::Heading => "1",
        };
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// Moves the cursor to the top left and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Escapes control characters, because those of a key must not move the reader's cursor.
pub(crate) fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect()
}

/// Cuts a text to this many characters, and marks the cut.
pub(crate) fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Formats bytes for people: `0 B`, `1.5 KiB`, `312 MiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut shown = None;
    for unit in units {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        shown = Some(unit);
    }
    match shown {
        None => format!("{bytes} B"),
        Some(unit) if tenths < 100 => format!("{}.{} {unit}", tenths / 10, tenths % 10),
        Some(unit) => format!("{} {unit}", tenths / 10),
    }
}

/// Formats an age in its two largest units: `30 s`, `2 h 5 min`, `1 d 2 h`.
pub(crate) fn human_age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Formats an age with a fraction of a second, which is left out.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age in seconds")]
pub(crate) fn whole_age(seconds: f64) -> String {
    human_age(seconds.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn a_pipe_whose_reader_ends_is_noticed_without_a_write_and_a_file_never() {
        let (reader, writer) = io::pipe().unwrap();
        let mut gone = Box::pin(reader_gone(writer));
        assert_eq!(futures_util::poll!(&mut gone), Poll::Pending);
        drop(reader);
        gone.await;
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(futures_util::poll!(Box::pin(reader_gone(file))), Poll::Pending);
    }

    #[test]
    fn bytes_have_the_unit_in_which_they_can_be_compared() {
        let cases: [(u64, &str); 7] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (312 << 20, "312 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "15 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn control_characters_reach_no_terminal_and_json_stays_json() {
        let hostile = "a\x1b[2Jb\x07c\u{9b}d\r\te\n";
        assert_eq!(harmless(hostile), "a\\u001b[2Jb\\u0007c\\u009bd\\u000d\te\n");
        let json = serde_json::json!({ "topic": "x\u{9b}2J\u{7f}" });
        let read: serde_json::Value =
            serde_json::from_str(&harmless(&format!("{json:#}"))).unwrap();
        assert_eq!(read, json);
        let tones = [Tone::Good, Tone::Attention, Tone::Bad, Tone::Heading];
        for painted in tones.map(|tone| ColourMode::Coloured.text(tone, "ok")) {
            assert_eq!(harmless(&painted), painted, "our own colours stay");
        }
    }

    #[test]
    fn a_frame_is_cut_to_the_terminal_and_says_how_much_is_not_shown() {
        let size = |columns, lines| Some(Size { columns, lines });
        let text: String = (0..30).map(|number| format!("line {number}\n")).collect();
        let rows = |shown: &str| -> usize {
            shown.lines().map(|line| shown_characters(line).div_ceil(80).max(1)).sum()
        };
        let cut = frame(&text, size(80, 24));
        assert_eq!(rows(&cut), 23, "{cut}");
        assert!(cut.starts_with("line 0\nline 1\n") && cut.ends_with("… 8 more lines\n"), "{cut}");
        assert_eq!(frame(&text, size(80, 31)), text);
        assert_eq!(frame(&text, None), text);

        let headline = ColourMode::Coloured.text(Tone::Bad, &"h".repeat(200));
        let wrapped = frame(&format!("{headline}\n  advice\n{text}"), size(80, 24));
        assert_eq!(rows(&wrapped), 23, "lines that wrap take several rows: {wrapped}");
        let tiny = frame(&format!("{headline}\n  advice\n{text}"), size(80, 3));
        assert_eq!(tiny, format!("{headline}\n  advice\n… 30 more lines\n"), "these stay");
    }

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

    #[test]
    fn what_is_cut_is_marked_and_colours_are_for_terminals() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
        assert_eq!(ColourMode::Plain.text(Tone::Bad, "dead"), "dead");
        assert_eq!(ColourMode::Coloured.text(Tone::Good, "ok"), "\x1b[32mok\x1b[0m");
    }
}
