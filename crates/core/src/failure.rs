//! The meaning of a refused publish for its rows, without gRPC types.

use std::fmt;

use crate::failure_code::FailureCode;

/// The longest error text that is kept, in bytes. Every parked row stores the text.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Who has to act before the batch can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// No one: the same batch succeeds later.
    Transient,
    /// An operator: the same batch succeeds once the topic, permission or account is fixed.
    Operator,
    /// No action helps: Pub/Sub will always refuse one of the rows.
    Row,
}

/// A batch that was refused, or whose reply was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishFailure {
    /// Who has to act.
    pub class: FailureClass,
    /// Whether the service asks for fewer requests at once.
    pub congestion: bool,
    /// Why the row was not published.
    pub code: FailureCode,
    /// The text of the service or the connection, at most 1 KiB.
    pub message: String,
}

impl PublishFailure {
    /// Creates a failure without congestion and cuts its message to 1 KiB.
    #[must_use]
    pub fn new(
        class: FailureClass,
        code: impl Into<FailureCode>,
        message: impl Into<String>,
    ) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        Self { class, congestion: false, code: code.into(), message }
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
    use crate::failure_code::CallCode;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let failure =
            PublishFailure::new(FailureClass::Row, CallCode::InvalidArgument, "é".repeat(600));
        assert_eq!(failure.message.len(), 1024);
        let odd = format!("x{}", "é".repeat(600));
        let cut = PublishFailure::new(FailureClass::Row, CallCode::InvalidArgument, odd);
        assert_eq!(cut.message.len(), 1023);
    }
}
