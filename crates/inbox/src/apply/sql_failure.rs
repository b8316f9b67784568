//! The meaning of a server error for a batch.

use tokio_postgres::Error as SqlError;
use tokio_postgres::error::{Severity, SqlState};
use walrelay_inbox_core::{Failure, is_of_surroundings};

/// Returns the meaning of a server error for the batch. If the session survives the error, the
/// handler caused it, and the consumer's own connection works. Examples are an unreachable foreign
/// server and a lack of memory.
pub(crate) fn failure_of(error: &SqlError) -> Failure {
    let failure = Failure::of_sqlstate(error.code().map(SqlState::code));
    let goes_on = error.as_db_error().is_some_and(|answer| {
        answer.parsed_severity() == Some(Severity::Error)
            && is_of_surroundings(answer.code().code())
    });
    if failure == Failure::Outage && goes_on { Failure::Operator } else { failure }
}
