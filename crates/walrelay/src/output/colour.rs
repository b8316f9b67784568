//! Colours for a terminal.

/// Every sequence that [`ColourMode`] writes.
pub(crate) const COLOURS: [&str; 5] = ["\x1b[32m", "\x1b[33m", "\x1b[31;1m", "\x1b[1m", "\x1b[0m"];

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Everything is as it should be.
    Good,
    /// Somebody should check.
    Attention,
    /// Somebody has to act.
    Bad,
    Heading,
}

/// Colours on a terminal, and plain text elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColourMode {
    Plain,
    Coloured,
}

impl ColourMode {
    /// Returns the text in the colour of its severity.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(ColourMode::Plain.text(Tone::Bad, "dead"), "dead");
        assert_eq!(ColourMode::Coloured.text(Tone::Good, "ok"), "\x1b[32mok\x1b[0m");
    }
}
