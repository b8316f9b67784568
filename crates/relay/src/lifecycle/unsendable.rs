//! Stops the relay if the server cannot send a row: several sessions ended at the same place with
//! the same error.
//!
//! This module does no I/O. Other ends of a session, such as a restart of the server, prove nothing
//! about the row. They neither count nor reset the count.

use crate::error::{RelayError, RepeatedSendFailure};
use crate::stream::pipeline_error::{PipelineError, SendFailurePosition};

/// The number of sessions that end at one place before the relay stops. One may be an accident of
/// the server, and two may have the same cause.
const ATTEMPTS_MAX: u32 = 3;

/// The place at which the server could not continue the last such session.
#[derive(Debug, Default)]
pub(super) struct UnsendableRow(Option<Place>);

#[derive(Debug)]
struct Place {
    at: SendFailurePosition,
    error: String,
    attempts: u32,
}

impl UnsendableRow {
    /// Counts the error of a session. The last attempt turns it into an error that stops the relay.
    pub(super) fn count(&mut self, error: RelayError) -> RelayError {
        let RelayError::Session(PipelineError::Unsendable { at, source }) = error else {
            return error;
        };
        let text = source.to_string();
        let before = self.0.take().filter(|place| place.at == at && place.error == text);
        let attempts = before.map_or(1, |place| place.attempts + 1);
        self.0 = Some(Place { at, error: text, attempts });
        match attempts < ATTEMPTS_MAX {
            true => RelayError::Session(PipelineError::Unsendable { at, source }),
            false => {
                let failure = RepeatedSendFailure { at, attempts, rows: String::new(), source };
                RelayError::Unsendable(Box::new(failure))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Lsn, Position};
    use walrelay_pg_client::{PgError, ServerError};

    use super::*;
    use walrelay_errors::{Action, Exit};

    fn ended_at(index: u32, code: &str) -> RelayError {
        let position = Position { commit_lsn: Lsn::new(16), tx_index: index };
        let answer = ServerError { code: code.to_owned(), ..ServerError::default() };
        RelayError::Session(PipelineError::of_stream(
            PgError::Server(Box::new(answer)),
            Some((position, 7)),
            position,
        ))
    }

    fn stops(row: &mut UnsendableRow, error: RelayError) -> bool {
        match row.count(error).action() {
            Action::Stop(exit) => {
                assert_eq!(exit, Exit::PostgresSetup);
                true
            }
            Action::Reconnect => false,
            Action::StandBy | Action::Wait => panic!("nothing to wait for"),
        }
    }

    #[test]
    fn the_third_session_that_ends_at_the_same_row_with_the_same_error_stops_the_relay() {
        let mut row = UnsendableRow::default();
        assert!(!stops(&mut row, ended_at(1, "XX000")));
        assert!(!stops(&mut row, ended_at(1, "XX000")));
        assert!(!stops(&mut row, RelayError::Session(PipelineError::ServerStops)), "no such error");
        assert!(stops(&mut row, ended_at(1, "XX000")));
    }

    #[test]
    fn another_row_or_another_error_begins_the_count_again() {
        let mut row = UnsendableRow::default();
        for (index, code) in [(1, "XX000"), (1, "XX000"), (2, "XX000"), (2, "22021"), (2, "22021")]
        {
            assert!(!stops(&mut row, ended_at(index, code)), "{index} {code}");
        }
        assert!(stops(&mut row, ended_at(2, "22021")));
    }

    #[test]
    fn errors_that_pass_stop_nothing() {
        let mut row = UnsendableRow::default();
        for _ in 0..10 {
            assert!(!stops(&mut row, ended_at(1, "53200")));
        }
    }
}
