//! How a relay is doing, as it notes it in its own row of `app_outbox_relay`.
//!
//! `walrelay status` reads it there, so it knows at once what only the relay can know. A session writes it
//! when it changes, and never on a timer: an idle relay writes nothing. Keys, payloads and secrets never
//! get here, and its size is bounded.

use std::time::Duration;

use tokio_postgres::Row;

/// Reasons that are noted: whoever reads the first ones fixes fastest.
const REASONS_MAX: usize = 5;

/// Characters of one reason.
const REASON_CHARACTERS_MAX: usize = 500;

/// What a relay does, and why rows do not flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    phase: &'static str,
    reasons: Vec<String>,
}

impl Condition {
    /// Of this phase, with as many of the reasons as are noted.
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

/// A condition that is on record.
#[derive(Debug, Clone, PartialEq)]
pub struct NotedCondition {
    /// What the relay did.
    pub phase: String,
    /// Why rows did not flow; empty when they did.
    pub reasons: Vec<String>,
    /// The server process that streamed for it: of another one this says nothing.
    pub streaming_pid: Option<i32>,
    /// How long ago it was noted, by the server's clock.
    pub age: Duration,
}

/// What a row of `app_outbox_relay r` is read with. Through jsonb, because a table of an earlier version
/// lacks the column.
pub(crate) const COLUMNS: &str = "
    to_jsonb(r) -> 'condition' ->> 'phase' AS condition_phase,
    ARRAY(SELECT jsonb_array_elements_text(
            CASE jsonb_typeof(to_jsonb(r) -> 'condition' -> 'reasons')
            WHEN 'array' THEN to_jsonb(r) -> 'condition' -> 'reasons' ELSE '[]' END)) AS condition_reasons,
    (to_jsonb(r) -> 'condition' ->> 'pid')::int AS condition_pid,
    extract(epoch FROM clock_timestamp() - (to_jsonb(r) -> 'condition' ->> 'at')::timestamptz)::float8
      AS condition_age";

/// The condition of a row that was read with [`COLUMNS`]; none where nothing was noted.
pub(crate) fn noted_in(row: &Row) -> Option<NotedCondition> {
    let age: Option<f64> = row.get("condition_age");
    Some(NotedCondition {
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
