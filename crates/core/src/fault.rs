//! What can be wrong with a row, before anybody is asked.
//!
//! Two kinds, and they must not be confused. A [`RouteError`] means that we cannot read what the
//! server sent: the relay stops at that position (I7). A [`Fault`] means that we read the row and
//! Pub/Sub would refuse it: that row alone is dead.

use pgoutput_parser::Position;

use crate::columns::MissingColumn;
use crate::failure::{FailureClass, PublishFailure};

/// Why Pub/Sub would refuse a row whatever happens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// One of the service's limits.
    #[error("{what} is {size}; pub/sub takes at most {max}")]
    Limit {
        /// What is too large.
        what: String,
        /// How large it is.
        size: usize,
        /// How large it may be.
        max: usize,
    },
    /// A value, or all of them together, that no message may have. The row is recorded without it.
    #[error(
        "{what} has {size} bytes, and pub/sub takes {max}: recorded without the value, which only the row in the outbox has"
    )]
    TooLarge {
        /// What is too large.
        what: String,
        /// How large it is.
        size: usize,
        /// How large it may be.
        max: usize,
    },
    /// The topic template gave a name that no topic can have.
    #[error("\"{name}\" is no topic name; see --topic")]
    Topic {
        /// What the template gave.
        name: String,
    },
    /// The headers column is not an object, or a name in it is reserved or empty.
    #[error("{0}")]
    Headers(String),
    /// A message must hold something.
    #[error("the message has neither data nor attributes")]
    Nothing,
    /// The id is null, so a consumer could not recognise a duplicate.
    #[error("the event id is null")]
    NoId,
    /// The id is an empty text, by which all such rows would be taken for one.
    #[error("the event id is empty")]
    EmptyId,
}

impl Fault {
    /// The code of a row whose headers could not be read. The message that is recorded of it lacks them.
    pub const HEADERS_CODE: &str = "BAD_HEADERS";

    /// The code of a row that was recorded without a value that is too large.
    pub const TOO_LARGE_CODE: &str = "TOO_LARGE";

    /// As a refusal of Pub/Sub would look.
    #[must_use]
    pub fn into_failure(self) -> PublishFailure {
        let code = match self {
            Self::Limit { .. } | Self::Nothing => "LOCAL_LIMIT",
            Self::TooLarge { .. } => Self::TOO_LARGE_CODE,
            Self::Topic { .. } | Self::NoId | Self::EmptyId => "UNROUTABLE",
            Self::Headers(_) => Self::HEADERS_CODE,
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
    /// A value is not in the form the connection asked for.
    #[error("row {position} of {table}: column \"{column}\" {problem}")]
    Value {
        /// The row.
        position: Position,
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// What is wrong with the value.
        problem: &'static str,
    },
}
