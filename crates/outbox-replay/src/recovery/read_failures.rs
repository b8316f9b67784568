//! Counts failed reads of the table. A failure that repeats at one row needs a person.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use walrelay_errors::Code;
use walrelay_pg_client::ServerError;
use walrelay_relay::error::RelayError;

use crate::rows::source_row::{SourceRow, SourceValue};
use crate::rows::unsettled_rows::SourceTable;

/// The number of equal server errors at one row before the recovery stops.
const FAILURES_MAX: u32 = 3;

/// The failures so far, shared between streams. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadFailures(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The event id of the last row that was read.
    last_read: Option<String>,
    failure: Option<Failure>,
}

/// A failure that repeats.
#[derive(Debug)]
struct Failure {
    code: String,
    message: String,
    /// The event id of the last row before the failure.
    behind: Option<String>,
    count: u32,
}

impl ReadFailures {
    /// Starts a stream.
    ///
    /// # Errors
    ///
    /// Reading has failed so often at one row that it would fail again.
    pub(crate) fn begin(&self) -> Result<(), RelayError> {
        let mut state = self.state();
        state.last_read = None;
        let Some(failure) = state.failure.as_ref().filter(|it| it.count >= FAILURES_MAX) else {
            return Ok(());
        };
        let Failure { code, message, behind, count } = failure;
        let place = match behind {
            Some(id) => format!("the row behind event {id:?}"),
            None => "the first row".to_owned(),
        };
        let summary = format!(
            "the server cannot send {place} of the outbox, in the order of aggregate and version: {message} \
             ({code}, {count} times)"
        );
        Err(RelayError::Setup { code: Code::RowUnreadable, summary })
    }

    /// Records a row that was read.
    pub(crate) fn read(&self, row: &SourceRow, table: &SourceTable) {
        let id = event_id(row, table);
        if row.values.iter().any(|value| !is_utf8(value)) {
            tracing::warn!(event_id = id, table = %table.name, "the row has a value that is not valid UTF-8");
        }
        self.state().last_read = Some(id.to_owned());
    }

    /// Records that reading failed with this answer of the server.
    pub(crate) fn failed(&self, answer: &ServerError) {
        let mut state = self.state();
        let behind = state.last_read.clone();
        // The position of a resumed stream moves, but the row before the failure is the same.
        let is_same = |known: &Failure| {
            known.code == answer.code && (behind.is_none() || known.behind == behind)
        };
        let known = state.failure.take().filter(|known| is_same(known));
        state.failure = is_permanent(&answer.code).then(|| match known {
            Some(known) => Failure { count: known.count + 1, ..known },
            None => Failure {
                code: answer.code.clone(),
                message: answer.message.clone(),
                behind,
                count: 1,
            },
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the event id of a row, or an empty string without one.
pub(super) fn event_id<'a>(row: &'a SourceRow, table: &SourceTable) -> &'a str {
    let value = table.column(Some(&table.id)).and_then(|index| row.values.get(index));
    match value {
        Some(SourceValue::Text(id)) => str::from_utf8(id).unwrap_or_default(),
        Some(SourceValue::Null | SourceValue::TooLarge { .. }) | None => "",
    }
}

fn is_utf8(value: &SourceValue) -> bool {
    match value {
        SourceValue::Text(text) => str::from_utf8(text).is_ok(),
        SourceValue::Null | SourceValue::TooLarge { .. } => true,
    }
}

/// Returns whether the data itself is the cause: data exceptions, exceeded limits, and internal
/// errors such as a damaged value.
fn is_permanent(code: &str) -> bool {
    ["22", "54", "XX"].iter().any(|class| code.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: &str) -> ServerError {
        ServerError {
            code: code.into(),
            message: "invalid memory alloc request size".into(),
            ..ServerError::default()
        }
    }

    #[test]
    fn the_same_failure_three_times_is_given_up_with_the_row_before_it() {
        let failures = ReadFailures::default();
        for _ in 0..3 {
            failures.begin().expect("another try");
            failures.state().last_read = Some("e-7".into());
            failures.failed(&answer("XX000"));
        }
        let error = failures.begin().expect_err("three are enough").to_string();
        assert!(error.contains("behind event \"e-7\"") && error.contains("XX000"), "{error}");
    }

    #[test]
    fn failures_that_pass_or_move_are_no_reason_to_give_up() {
        let failures = ReadFailures::default();
        for code in ["57014", "57014", "57014", "XX000", "22021", "XX000"] {
            failures.begin().expect("another try");
            failures.failed(&answer(code));
        }
        for id in ["e-1", "e-2", "e-3"] {
            failures.begin().expect("another try");
            failures.state().last_read = Some(id.into());
            failures.failed(&answer("XX000"));
        }
        failures.begin().expect("each time at another row");
    }
}
