//! What rows wait for, as far as a report tells: the relay's own reasons, Pub/Sub, or their time.

use serde_json::{Map, Value};

use crate::output::{Tone, visible};

/// What it waits for when rows do not flow, and what helps.
#[derive(Debug)]
pub(super) struct Cause {
    pub(super) tone: Tone,
    pub(super) told: String,
    pub(super) advice: String,
}

/// Why rows do not flow, as far as is known: the relay's own reasons first, then what is spilled, then that
/// nothing is settled any more.
pub(super) fn cause(report: &Map<String, Value>) -> Option<Cause> {
    if let Some(reason) = reason_not_ready(report) {
        return Some(Cause {
            tone: Tone::Bad,
            told: format!("not ready: {reason}"),
            advice: "docs/operations.md, HTTP and Symptoms, has what to do about each reason"
                .to_owned(),
        });
    }
    if report.get("active") != Some(&Value::Bool(true)) {
        return None;
    }
    if let Some(cause) = refused(report) {
        return Some(cause);
    }
    if let Some((tone, told)) = spilled(report) {
        return Some(Cause {
            tone,
            told,
            advice: "they follow by themselves, in order; find out why Pub/Sub refuses or does not answer: \
                     walrelay_publish_requests_total by code"
                .to_owned(),
        });
    }
    let since = unsettled_since(report)?;
    Some(Cause {
        tone: Tone::Attention,
        told: format!("nothing is stored or recorded since {since}"),
        advice: "why is in the relay's log and in its reasons: walrelay status --relay ADDRESS; its log waits, up to --wal-budget".to_owned(),
    })
}

/// A relay that stores rows, or has none, notes how far it is every few seconds.
const SETTLED_SECONDS_MAX: f64 = 30.0;

/// Less log than this may be what noting it has written itself.
const LAG_BYTES_MIN: u64 = 1 << 10;

/// When the relay last noted that it had come further, if that was long ago although log waits for it.
fn unsettled_since(report: &Map<String, Value>) -> Option<String> {
    let seconds = report.get("settled_seconds")?.as_f64()?;
    let lag = report.get("lag_bytes")?.as_u64()?;
    let is_stuck = seconds >= SETTLED_SECONDS_MAX && lag >= LAG_BYTES_MIN;
    let at = report.get("settled_at")?.as_str().filter(|_| is_stuck)?;
    Some(format!("{}, {seconds:.0} s ago", visible(at)))
}

/// Why the relay itself says that it is not ready, where it was asked. How much room the slot has, the
/// report tells by itself.
fn reason_not_ready(report: &Map<String, Value>) -> Option<String> {
    let relay = report.get("relay").filter(|relay| relay["phase"] != "standby")?;
    let all = relay.get("reasons")?.as_array()?.iter().filter_map(Value::as_str);
    let reasons: Vec<_> = all.filter(|reason| !reason.starts_with("slot at risk")).collect();
    let first = visible(reasons.first()?);
    Some(match reasons.len() {
        1 => first,
        others => format!("{first}; and {} more", others - 1),
    })
}

/// What waits for an operator: the topic, what it answers, and the fix.
fn refused(report: &Map<String, Value>) -> Option<Cause> {
    let refused = report.get("refused")?;
    let text = |name: &str| refused.get(name).and_then(Value::as_str);
    let (topic, code, at) = (text("topic")?, text("code")?, text("at")?);
    let rows = report.get("dispatch").and_then(|counts| counts["retrying"].as_u64()).unwrap_or(0);
    let spilled = report.get("spilled").and_then(|spilled| spilled["rows"].as_u64()).unwrap_or(0);
    let of_them = match spilled {
        0 => String::new(),
        spilled => format!(", {spilled} of them spilled"),
    };
    Some(Cause {
        tone: Tone::Bad,
        told: format!(
            "publishing fails: {} answers {}, last at {}; {rows} rows wait{of_them}",
            visible(topic),
            visible(code),
            visible(at)
        ),
        advice: visible(&walrelay_pubsub::operator_fix(code, topic)),
    })
}

/// Rows that wait in dispatch state because nothing could be published, and since when.
fn spilled(report: &Map<String, Value>) -> Option<(Tone, String)> {
    let spilled = report.get("spilled")?;
    let rows = spilled.get("rows")?.as_u64().filter(|rows| *rows > 0)?;
    let since = spilled.get("since").and_then(Value::as_str).map(visible);
    let since = since.map_or_else(String::new, |since| format!(", the first since {since}"));
    let waiting = match rows {
        1 => "1 row is spilled and waits".to_owned(),
        _ => format!("{rows} rows are spilled and wait"),
    };
    let moment = |name: &str| spilled.get(name).and_then(Value::as_str).map(visible);
    Some(match moment("refused_at") {
        Some(at) => {
            let last = match moment("unanswered_at").is_some_and(|unanswered| unanswered == at) {
                true => "the last try had no answer",
                false => "last refused",
            };
            let told = format!("publishing fails: {waiting}{since}; {last} at {at}");
            (Tone::Bad, told)
        }
        None => (Tone::Attention, format!("{waiting} to be published{since}")),
    })
}

/// Replays and backfills to a topic that are not over: which, and whether anybody does them.
pub(super) fn replays(report: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let line = |open: Open<'_>| {
        let Open { command, id, topic, is_being_done } = open;
        let how = match is_being_done {
            true => "under way".to_owned(),
            false => format!("nobody does it: walrelay {command} --resume {id}, or --abandon {id}"),
        };
        ("not finished", format!("{command} {id} to {}, {how}", visible(topic)))
    };
    open(report).map(line).collect()
}

/// The first of them that nobody does, and what helps.
pub(super) fn left_undone(report: &Map<String, Value>) -> Option<(String, String)> {
    let Open { command, id, topic, .. } = open(report).find(|open| !open.is_being_done)?;
    Some((
        format!("{command} {id} to {} is not finished, and nobody does it", visible(topic)),
        format!(
            "walrelay {command} --resume {id} goes on, walrelay {command} --abandon {id} gives it up"
        ),
    ))
}

struct Open<'a> {
    command: &'a str,
    id: &'a str,
    topic: &'a str,
    is_being_done: bool,
}

fn open(report: &Map<String, Value>) -> impl Iterator<Item = Open<'_>> {
    let all = report.get("replays").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|one| {
        Some(Open {
            command: one["command"].as_str()?,
            id: one["id"].as_str()?,
            topic: one["to_topic"].as_str()?,
            is_being_done: one["is_being_done"].as_bool()?,
        })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_topic_that_waits_for_an_operator_is_told_with_its_fix_whether_rows_are_spilled_or_not() {
        let refused =
            json!({ "topic": "projects/p/topics/t", "code": "PERMISSION_DENIED", "at": "T2" });
        let told = |spilled: u64| {
            let report = json!({
                "active": true,
                "refused": refused,
                "dispatch": { "retrying": 9 },
                "spilled": { "rows": spilled, "since": "T1", "refused_at": "T2" },
            });
            cause(report.as_object().unwrap()).unwrap()
        };
        let Cause { told: spilled, advice, .. } = told(7);
        let fails = "publishing fails: projects/p/topics/t answers PERMISSION_DENIED, last at T2; 9 rows wait";
        assert_eq!(spilled, format!("{fails}, 7 of them spilled"));
        assert!(advice.contains("roles/pubsub.publisher"), "{advice}");
        assert_eq!(told(0).told, fails);
    }
}
