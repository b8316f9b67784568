//! The text of an error with its causes.

use std::fmt;
use std::fmt::Write as _;

/// Prints an error and all its causes, `a: b: c`.
///
/// A cause may quote a server. It gets no line of its own and no control character, so that it looks like
/// nothing else.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Visible { to: f, keeps_lines: true }, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(Visible { to: f, keeps_lines: false }, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Returns the text of somebody else without lines and control characters of its own.
#[must_use]
pub fn in_a_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Replaces control characters.
struct Visible<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    keeps_lines: bool,
}

impl fmt::Write for Visible<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            let is_kept = piece.ends_with('\n') && self.keeps_lines;
            match piece.strip_suffix(char::is_control) {
                Some(before) if !is_kept => write!(self.to, "{before} ")?,
                Some(_) | None => self.to.write_str(piece)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[derive(Debug)]
    struct Failure(&'static str, Option<Box<Failure>>);

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failure {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            let Self(_, source) = self;
            source.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn an_error_is_printed_with_all_its_causes() {
        let root = Failure("no route", None);
        let error = Failure("read", Some(Box::new(Failure("connect", Some(Box::new(root))))));
        assert_eq!(Chain(&error).to_string(), "read: connect: no route");
    }

    #[test]
    fn a_cause_gets_no_line_of_its_own_and_no_control_character() {
        let forged = Failure("\u{1b}[2Jgone\nfix: run this\u{7}", None);
        let error = Failure("two\nlines", Some(Box::new(forged)));
        assert_eq!(Chain(&error).to_string(), "two\nlines:  [2Jgone fix: run this ");
    }
}
