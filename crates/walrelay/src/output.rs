//! Standard output: what a command was asked for, and nothing else.

use std::io::{self, IsTerminal as _, Write as _};

use crate::error::Error;

/// Prints what a command was asked for. A reader that has gone away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_on(text).map(drop)
}

/// Whether whoever reads is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    /// What more there would be is for nobody.
    Gone,
}

/// Prints a part of what there is.
pub(crate) fn print_on(text: &str) -> Result<Reader, Error> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(source) => Err(Error::Io { action: "write to standard output".into(), source }),
    }
}

/// Lines in columns: each as wide as its widest cell, two spaces between.
pub(crate) fn columns<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heading = heading.map(str::to_owned);
    let mut text = String::new();
    for line in std::iter::once(&heading).chain(rows) {
        let start = text.len();
        for (cell, width) in line.iter().zip(widths) {
            text.push_str(&format!("{cell:<width$}  "));
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    text
}

/// How much somebody has to care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// Somebody should look.
    Attention,
    /// Somebody has to act.
    Bad,
    /// A heading.
    Heading,
}

/// Colours on a terminal, and nothing anywhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Coloured,
}

impl Paint {
    /// Colours where standard output is a terminal that has them, and nobody has asked for none
    /// (<https://no-color.org>).
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

/// The cursor to the first place, and what stands behind it away: the next text is shown in place.
pub(crate) const CLEAR: &str = "\x1b[H\x1b[J";

/// Control characters of a key must not move the cursor of whoever looks at it.
pub(crate) fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect()
}

/// At most so many characters; what is cut is marked.
pub(crate) fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Bytes as people compare them: `0 B`, `1.5 KiB`, `312 MiB`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_cut_is_marked_and_colours_are_for_terminals() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
        assert_eq!(Paint::Plain.text(Tone::Bad, "dead"), "dead");
        assert_eq!(Paint::Coloured.text(Tone::Good, "ok"), "\x1b[32mok\x1b[0m");
    }
}
