//! What an error of the server means.

use tokio_postgres::Error as SqlError;
use tokio_postgres::error::{Severity, SqlState};
use walrelay_inbox_core::{Failure, is_of_surroundings};

/// What the server's error means for the batch. Where it goes on with the session, a handler has met that it could
/// not reach another server or had no memory, and not we.
pub(crate) fn failure_of(error: &SqlError) -> Failure {
    let failure = Failure::of_sqlstate(error.code().map(SqlState::code));
    let goes_on = error.as_db_error().is_some_and(|answer| {
        answer.parsed_severity() == Some(Severity::Error)
            && is_of_surroundings(answer.code().code())
    });
    if failure == Failure::Outage && goes_on { Failure::Operator } else { failure }
}
