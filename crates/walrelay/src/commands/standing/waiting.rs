//! What rows wait for, as far as a report tells: the relay's own reasons, Pub/Sub, or their time.

use serde_json::{Map, Value};

use crate::output::{Tone, visible};

/// Why the relay itself says that it is not ready, where it was asked.
pub(super) fn reason_not_ready(report: &Map<String, Value>) -> Option<String> {
    let relay = report.get("relay").filter(|relay| relay["phase"] != "standby")?;
    let reasons = relay.get("reasons")?.as_array()?;
    let first = reasons.first().and_then(Value::as_str).map(visible)?;
    Some(match reasons.len() {
        1 => first,
        others => format!("{first}; and {} more", others - 1),
    })
}

/// Rows that wait in dispatch state because nothing could be published, and since when.
pub(super) fn spilled(report: &Map<String, Value>) -> Option<(Tone, String)> {
    let spilled = report.get("spilled")?;
    let rows = spilled.get("rows")?.as_u64().filter(|rows| *rows > 0)?;
    let since = spilled.get("since").and_then(Value::as_str).map(visible);
    let since = since.map_or_else(String::new, |since| format!(", the first since {since}"));
    Some(match spilled.get("refused_at").and_then(Value::as_str).map(visible) {
        Some(at) => (
            Tone::Bad,
            format!(
                "publishing fails: {rows} rows are spilled and wait{since}; last refused at {at}"
            ),
        ),
        None => {
            (Tone::Attention, format!("{rows} rows are spilled and wait to be published{since}"))
        }
    })
}

/// Of the rows that will be published again, how many were spilled and how many are not due, with the moment
/// of the first and of the last.
pub(super) fn what_they_wait_for(
    report: &Map<String, Value>,
) -> impl Iterator<Item = (&'static str, String)> {
    let line = |shown, name: &str, (moment, word): (&str, &str)| {
        let told = report.get(name)?;
        let rows = told.get("rows")?.as_u64().filter(|rows| *rows > 0)?;
        let moment = told.get(moment).and_then(Value::as_str).map(visible);
        let moment = moment.map_or_else(String::new, |at| format!(", {word} {at}"));
        Some((shown, format!("{rows}{moment}")))
    };
    let spilled = line("of those spilled", "spilled", ("since", "the first since"));
    let not_due = line("not due yet", "not_due", ("until", "the last at"));
    spilled.into_iter().chain(not_due)
}
