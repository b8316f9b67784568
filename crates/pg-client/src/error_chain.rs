//! Prints an error with its causes. Errors do not repeat their causes, so a log line needs them.

use std::error::Error;
use std::fmt;

/// Prints an error and all its causes, `a: b: c`.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn an_error_is_printed_with_all_its_causes() {
        let cause = |text, source| Failure { text, source };
        let root = cause("no route", None);
        let error = cause("read", Some(Box::new(cause("connect", Some(Box::new(root))))));
        assert_eq!(Chain(&error).to_string(), "read: connect: no route");
    }
}
