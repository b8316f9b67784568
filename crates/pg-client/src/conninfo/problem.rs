//! Problems of a connection string.

/// One problem of a connection string. Never quotes a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ConninfoProblem {
    text: String,
    part: ConninfoPart,
}

/// The part of the string that has the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConninfoPart {
    Text,
    Roots,
}

impl ConninfoProblem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), part: ConninfoPart::Text }
    }

    /// Creates a problem of the root certificates that the string names.
    pub(super) fn of_roots(text: impl Into<String>) -> Self {
        Self { text: text.into(), part: ConninfoPart::Roots }
    }

    /// Returns whether the root certificates cannot be read.
    #[must_use]
    pub fn is_about_roots(&self) -> bool {
        self.part == ConninfoPart::Roots
    }
}
