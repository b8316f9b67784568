//! The relay's condition, which the relay writes to its own row of `app_outbox_relay`.
//!
//! `walrelay status` reads the condition there, because only the relay knows it. A session writes
//! the condition when it changes, never on a timer, so an idle relay writes nothing. A relay that
//! waits for an operator repeats it once a minute. The condition never contains keys, payloads or
//! secrets, and its size is bounded.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

/// Number of reasons that are stored. An operator fixes the first few first.
const REASONS_MAX: usize = 5;

/// Maximum length of one text, in characters.
const TEXT_CHARACTERS_MAX: usize = 500;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// The phase of the relay, such as starting or standby.
    #[default]
    Phase,
    /// The relay waits for a condition that an operator ends.
    Waiting,
    /// An unfinished operation on the slot.
    Operation,
    /// A statement on the dispatch tables fails.
    DispatchFailure,
    /// The slot may be lost soon.
    SlotAtRisk,
    AnchorAtRisk,
    /// Pub/Sub stores nothing.
    Outage,
    UnsendableRow,
    /// The relay cannot read a row, or must not publish it, and has stopped.
    UnreadableRow,
    /// The server does not send its WAL, or its commits wait for a standby.
    ServerStalled,
    /// More WAL is retained than `--wal-budget`.
    WalBudget,
    /// A topic refuses messages until an operator acts.
    TopicRefused,
    /// An outbox table has rows that no slot streams.
    UnpublishedRows,
}

/// A reason why rows do not flow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    pub kind: ReasonKind,
    /// The reason, without its fix.
    pub text: String,
    /// The fix, if the relay knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The subject: the topic that refuses, or the position of the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

impl Reason {
    #[must_use]
    pub fn new(kind: ReasonKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), ..Self::default() }
    }

    #[must_use]
    pub fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    #[must_use]
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }

    #[must_use]
    pub fn with_code(self, code: &str) -> Self {
        Self { code: Some(code.to_owned()), ..self }
    }

    fn shortened(self) -> Self {
        Self { text: shortened(self.text), fix: self.fix.map(shortened), ..self }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.fix, self.kind) {
            (None, _) => f.write_str(&self.text),
            (Some(fix), ReasonKind::TopicRefused) => write!(f, "{}: {fix}", self.text),
            (Some(fix), ReasonKind::DispatchFailure) => {
                write!(f, "{}; as its owner: {fix}", self.text)
            }
            (Some(fix), _) => write!(f, "{}; {fix}", self.text),
        }
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(TEXT_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The phase of a relay, and the reasons why rows are not flowing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    phase: &'static str,
    reasons: Vec<Reason>,
}

impl Condition {
    /// Creates a condition with the first reasons, each shortened to its maximum length.
    #[must_use]
    pub fn new(phase: &'static str, reasons: impl Iterator<Item = Reason>) -> Self {
        Self { phase, reasons: reasons.take(REASONS_MAX).map(Reason::shortened).collect() }
    }

    pub(crate) const fn phase(&self) -> &'static str {
        self.phase
    }

    pub(crate) fn reasons_json(&self) -> String {
        serde_json::json!(self.reasons).to_string()
    }
}

/// A condition that a relay has stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCondition {
    pub phase: String,
    /// Reasons why rows were not flowing. Empty if rows were flowing.
    pub reasons: Vec<Reason>,
    /// Process id that streamed for the relay. The condition applies to that session only. None if
    /// the relay waited without a session.
    pub streaming_pid: Option<i32>,
    /// Time since the condition was stored, by the server's clock.
    pub age: Duration,
}

/// Returns the condition from a row of `app_outbox_relay`. None if none is stored. Reasons that
/// this version cannot read are left out.
pub(crate) fn condition_of_row(row: &Row) -> Option<StoredCondition> {
    let age: Option<f64> = row.get("condition_age");
    let reasons: Option<String> = row.get("condition_reasons");
    Some(StoredCondition {
        phase: row.get::<_, Option<String>>("condition_phase")?,
        reasons: reasons.and_then(|it| serde_json::from_str(&it).ok()).unwrap_or_default(),
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
        let endless =
            endless.map(|text| Reason::new(ReasonKind::Outage, text.clone()).with_fix(text));
        let Condition { phase, reasons } = Condition::new("streaming", endless);
        assert_eq!((phase, reasons.len()), ("streaming", REASONS_MAX));
        for Reason { text, fix, .. } in &reasons {
            assert!(text.chars().count() <= TEXT_CHARACTERS_MAX + 1);
            assert!(fix.as_ref().is_some_and(|fix| fix.chars().count() <= TEXT_CHARACTERS_MAX + 1));
        }
        assert!(reasons[0].text.starts_with("0ü"));
    }

    #[test]
    fn a_reason_is_one_line_with_its_fix() {
        let topic = Reason::new(ReasonKind::TopicRefused, "t").with_fix("create it");
        assert_eq!(topic.to_string(), "t: create it");
        let table = Reason::new(ReasonKind::DispatchFailure, "no privilege").with_fix("GRANT x");
        assert_eq!(table.to_string(), "no privilege; as its owner: GRANT x");
        let waiting = Reason::new(ReasonKind::Waiting, "waiting: lost").with_fix("recover it");
        assert_eq!(waiting.to_string(), "waiting: lost; recover it");
    }
}
