//! What is wrong with a connection string.

/// One thing that is wrong with a connection string. Never quotes a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConninfoProblem(String);

impl ConninfoProblem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
