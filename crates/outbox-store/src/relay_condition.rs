//! The relay's condition, which the relay writes to its own row of `app_outbox_relay`.
//!
//! `walrelay status` reads the condition there, because only the relay knows it. A session writes
//! the condition when it changes, never on a timer, so an idle relay writes nothing. The condition
//! never contains keys, payloads or secrets, and its size is bounded.

use std::time::Duration;

use tokio_postgres::Row;

/// Number of reasons that are stored. An operator fixes the first few first.
const REASONS_MAX: usize = 5;

/// Maximum length of one reason, in characters.
const REASON_CHARACTERS_MAX: usize = 500;

/// The phase of a relay, and the reasons why rows are not flowing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    phase: &'static str,
    reasons: Vec<String>,
}

impl Condition {
    /// Creates a condition with the first reasons, each shortened to its maximum length.
    #[must_use]
    pub fn new(phase: &'static str, reasons: impl Iterator<Item = String>) -> Self {
        let shortened = |reason: String| match reason.char_indices().nth(REASON_CHARACTERS_MAX) {
            Some((end, _)) => format!("{}…", &reason[..end]),
            None => reason,
        };
        Self { phase, reasons: reasons.take(REASONS_MAX).map(shortened).collect() }
    }

    pub(crate) const fn phase(&self) -> &'static str {
        self.phase
    }

    pub(crate) const fn reasons(&self) -> &Vec<String> {
        &self.reasons
    }
}

/// A condition that a relay has stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCondition {
    /// Phase of the relay.
    pub phase: String,
    /// Reasons why rows were not flowing. Empty if rows were flowing.
    pub reasons: Vec<String>,
    /// Process id that streamed for the relay. The condition applies to that session only.
    pub streaming_pid: Option<i32>,
    /// Time since the condition was stored, by the server's clock.
    pub age: Duration,
}

/// Returns the condition from a row of `app_outbox_relay`. None if none is stored.
pub(crate) fn condition_of_row(row: &Row) -> Option<StoredCondition> {
    let age: Option<f64> = row.get("condition_age");
    Some(StoredCondition {
        phase: row.get::<_, Option<String>>("condition_phase")?,
        reasons: row.get("condition_reasons"),
        streaming_pid: row.get("condition_pid"),
        age: Duration::try_from_secs_f64(age?).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_small_however_much_is_wrong() {
        let endless = (0..1_000).map(|number| format!("{number}{}", "ü".repeat(10_000)));
        let Condition { phase, reasons } = Condition::new("streaming", endless);
        assert_eq!((phase, reasons.len()), ("streaming", REASONS_MAX));
        assert!(reasons.iter().all(|it| it.chars().count() <= REASON_CHARACTERS_MAX + 1));
        assert!(reasons[0].starts_with("0ü"));
    }
}
