//! What a refused publish means for the rows in it; no gRPC types.

use std::fmt;

/// Longest text kept of a service's answer. It is stored with every parked row.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Who has to act before the batch can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// No one has to act: the same batch succeeds later.
    Transient,
    /// An operator: the same batch succeeds once topic, rights or account are put right.
    Operator,
    /// No action helps: one of the rows will always be refused.
    Row,
}

/// A batch that was not stored, or of which it is unknown whether it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishFailure {
    /// Who has to act.
    pub class: FailureClass,
    /// The service asks for less at once.
    pub congestion: bool,
    /// The gRPC code by its name, such as `UNAVAILABLE`.
    pub code: &'static str,
    /// What the service or the connection said, at most 1 KiB.
    pub message: String,
}

impl PublishFailure {
    /// A failure that is no congestion, with its message cut to 1 KiB.
    #[must_use]
    pub fn new(class: FailureClass, code: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        Self { class, congestion: false, code, message }
    }
}

impl fmt::Display for PublishFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for PublishFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let failure = PublishFailure::new(FailureClass::Row, "INVALID_ARGUMENT", "é".repeat(600));
        assert_eq!(failure.message.len(), 1024);
        let odd = format!("x{}", "é".repeat(600));
        let cut = PublishFailure::new(FailureClass::Row, "INVALID_ARGUMENT", odd);
        assert_eq!(cut.message.len(), 1023);
    }
}
