//! What is wrong with a connection string.

/// One thing that is wrong with a connection string. Never quotes a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ConninfoProblem {
    text: String,
    subject: Subject,
}

/// What it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Text,
    Roots,
}

impl ConninfoProblem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), subject: Subject::Text }
    }

    /// Of the root certificates that it names.
    pub(super) fn of_roots(text: impl Into<String>) -> Self {
        Self { text: text.into(), subject: Subject::Roots }
    }

    /// Whether the root certificates that it names cannot be read.
    #[must_use]
    pub fn is_about_roots(&self) -> bool {
        self.subject == Subject::Roots
    }
}
