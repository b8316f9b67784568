//! Errors in a row that are found before the row is sent.
//!
//! There are two kinds, which must not be confused. A [`RouteError`] means that we cannot read the
//! server's data: the relay stops at that position (I7). A [`Fault`] means that we read the row and
//! Pub/Sub would refuse it: only that row is dead.

use pgoutput_parser::Position;

use crate::failure::{FailureClass, PublishFailure};
use crate::failure_code::FailureCode;
use crate::routing::columns::MissingColumn;

/// The reason why Pub/Sub would always refuse a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The message exceeds a limit of the service.
    #[error("{what} is {size}; pub/sub takes at most {max}")]
    Limit {
        /// The part that is too large.
        what: String,
        /// The actual size.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// A value, or all values together, are larger than any message may be. The row is recorded
    /// without the value.
    #[error(
        "{what} has {size} bytes, and pub/sub takes {max}: recorded without the value, which only the row in the outbox has"
    )]
    TooLarge {
        /// The value that is too large.
        what: String,
        /// The actual size, in bytes.
        size: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The topic template produced an invalid topic name.
    #[error("the topic template leads to \"{name}\", which is no topic name")]
    Topic {
        /// The text that the template produced.
        name: String,
    },
    /// The headers column is not an object, or a name in it is reserved or empty.
    #[error("{0}")]
    Headers(String),
    /// The message has neither data nor attributes, and Pub/Sub requires one of them.
    #[error("the message has neither data nor attributes")]
    Nothing,
    /// The id is null, so a consumer could not recognise a duplicate.
    #[error("the event id is null")]
    NoId,
    /// The id is an empty text, so a consumer would take all such rows for one.
    #[error("the event id is empty")]
    EmptyId,
}

impl Fault {
    /// The error code of a row whose headers could not be read. Its recorded message has no
    /// headers.
    pub const HEADERS_CODE: &str = FailureCode::BadHeaders.as_str();

    /// The error code of a row that was recorded without a value that is too large.
    pub const TOO_LARGE_CODE: &str = FailureCode::TooLarge.as_str();

    /// Converts the fault into the form of a Pub/Sub refusal.
    #[must_use]
    pub fn into_failure(self) -> PublishFailure {
        let code = match self {
            Self::Limit { .. } | Self::Nothing => FailureCode::LocalLimit,
            Self::TooLarge { .. } => FailureCode::TooLarge,
            Self::Topic { .. } | Self::NoId | Self::EmptyId => FailureCode::Unroutable,
            Self::Headers(_) => FailureCode::BadHeaders,
        };
        PublishFailure::new(FailureClass::Row, code, self.to_string())
    }
}

/// The row cannot be read (I7).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The table lacks a column.
    #[error(transparent)]
    MissingColumn(#[from] MissingColumn),
    /// A value does not have the format that the connection requested.
    #[error("row {position} of {table}{}: column \"{column}\" {problem}", event_id.as_ref().map_or_else(String::new, |id| format!(", which is event {id}")))]
    Value {
        /// The position of the row.
        position: Position,
        /// `schema.table`.
        table: String,
        /// The event id, if it can be read.
        event_id: Option<String>,
        /// The column.
        column: String,
        /// The problem with the value.
        problem: &'static str,
    },
}
