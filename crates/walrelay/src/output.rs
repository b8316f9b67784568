//! Standard output: the results of a command, and nothing else.

pub(crate) mod colour;
pub(crate) mod exact_json;
pub(crate) mod json;
pub(crate) mod live;
pub(crate) mod table;
pub(crate) mod text;

use std::borrow::Cow;
use std::future::pending;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;

use crate::config::OutputFormat;
use crate::error::Error;
use crate::error::printed_commands::as_given;
use crate::output::colour::{COLOURS, ColourMode};
use crate::output::json::json_text;
use crate::output::text::shortened;
use serde::Serialize;
use terminal_size::{Height, Width, terminal_size_of};
use tokio::io::Interest;
use tokio::net::unix::pipe;

/// Prints the result of a command. A closed reader, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_part(text).map(drop)
}

/// Prints the result of a command as text or as JSON.
pub(crate) fn print_result(
    format: OutputFormat,
    result: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Error> {
    print(&match format {
        OutputFormat::Text => as_given(&text()),
        OutputFormat::Json => json_text(result)?,
    })
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

/// Returns colours if standard output is a terminal that supports them, unless the user
/// disabled colours (<https://no-color.org>).
pub(crate) fn colours() -> ColourMode {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    match io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb {
        true => ColourMode::Coloured,
        false => ColourMode::Plain,
    }
}

/// Moves the cursor to the top left and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use crate::output::colour::Tone;

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
}
