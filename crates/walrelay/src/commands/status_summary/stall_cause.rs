//! Finds out from a report why rows are pending: the relay's own reasons, Pub/Sub, or their retry
//! time.

use pgoutput_parser::Lsn;
use serde_json::{Map, Value};
use walrelay_outbox_store::{NEXT_STEP_SEPARATOR, TABLE_FAILURE_PREFIX};
use walrelay_relay::observe::anchors;
use walrelay_relay::stream::pipeline_error::UNSENDABLE_ROW;

use crate::output::{Tone, visible};

/// Why rows do not flow, and the recommended next step.
#[derive(Debug)]
pub(super) struct Cause {
    pub(super) tone: Tone,
    pub(super) told: String,
    pub(super) advice: String,
}

/// Returns the known reason why rows do not flow. The relay's own reasons come first, then spilled
/// rows, then a settled position that does not advance.
pub(super) fn cause(report: &Map<String, Value>) -> Option<Cause> {
    if let Some(cause) = unsendable(report) {
        return Some(cause);
    }
    let reasons = reasons_not_ready(report);
    if !reasons.is_empty() {
        return Some(not_ready(report, &reasons));
    }
    if report.get("active") != Some(&Value::Bool(true)) {
        return None;
    }
    refused(report).or_else(|| spilled(report)).or_else(|| unsettled(report))
}

/// Reports a row that the server cannot send, until the slot has passed it. No relay can pass it by
/// itself, so the note counts also when no relay streams any more.
fn unsendable(report: &Map<String, Value>) -> Option<Cause> {
    let reasons = report.get("noted")?["reasons"].as_array()?;
    let mut reasons = reasons.iter().filter_map(Value::as_str);
    let (reason, behind) =
        reasons.find_map(|it| it.strip_prefix(UNSENDABLE_ROW).map(|behind| (it, behind)))?;
    let position = behind.split(' ').next()?;
    let commit_lsn: Lsn = position.split('#').next()?.parse().ok()?;
    let settled: Lsn = report.get("settled_lsn")?.as_str()?.parse().ok()?;
    (settled <= commit_lsn).then(|| Cause {
        tone: Tone::Bad,
        told: visible(reason),
        advice: format!(
            "walrelay slot advance --to-lsn {} --skip-events, which first names the rows that are given up",
            visible(position)
        ),
    })
}

/// Advice during an outage, which only a change at Pub/Sub can end.
const OUTAGE: &str = "they follow by themselves, in order; find out why Pub/Sub refuses or does not answer: \
     walrelay_publish_requests_total by code";

/// The beginning of the relay's reason for an outage.
const OUTAGE_REASON: &str = "nothing is being stored";

/// Builds the cause from the relay's own reasons. For a refused topic, dispatch state has the same
/// information plus the error code.
fn not_ready(report: &Map<String, Value>, reasons: &[String]) -> Cause {
    let told = |all: &[&String]| match all {
        [] => String::new(),
        [one] => format!("not ready: {}", in_short(one)),
        [first, others @ ..] => {
            format!("not ready: {}; and {} more", in_short(first), others.len())
        }
    };
    // This fix comes first, because rows must be recorded before another fix can help.
    if let Some(table) = reasons.iter().find_map(|it| it.strip_prefix(TABLE_FAILURE_PREFIX)) {
        let step = table.split_once(NEXT_STEP_SEPARATOR).map(|(_, step)| step);
        let symptom = "docs/operations.md, Symptoms, \"dispatch state failed\", has the next step";
        let advice =
            step.map_or_else(|| symptom.to_owned(), |step| format!("as its owner: {step}"));
        return Cause { tone: Tone::Bad, told: told(&reasons.iter().collect::<Vec<_>>()), advice };
    }
    if let Some(refused) = refused(report) {
        let topic = report["refused"]["topic"].as_str().map(visible).unwrap_or_default();
        let is_another = |it: &&String| !it.starts_with(&topic) && !it.starts_with(OUTAGE_REASON);
        let others: Vec<_> = reasons.iter().filter(is_another).collect();
        let others = match told(&others) {
            none if none.is_empty() => none,
            others => format!("; {others}"),
        };
        return Cause { told: format!("{}{others}", refused.told), ..refused };
    }
    // The reason for a refused topic contains its fix.
    let fix = reasons.iter().find_map(|it| it.strip_prefix("projects/")?.split_once(": "));
    let is_outage = reasons.iter().any(|it| it.starts_with(OUTAGE_REASON));
    let advice = match (fix, is_outage) {
        (Some((_, fix)), _) => fix.to_owned(),
        (None, true) => OUTAGE.to_owned(),
        (None, false) => {
            "docs/operations.md, HTTP and Symptoms, has what to do about each reason".to_owned()
        }
    };
    let spilled = spilled(report).map_or_else(String::new, |it| format!("; {}", it.told));
    let told = told(&reasons.iter().collect::<Vec<_>>());
    Cause { tone: Tone::Bad, told: format!("{told}{spilled}"), advice }
}

/// Shortens a reason by its fix. The advice repeats the fix, and the relay section shows the whole
/// reason.
fn in_short(reason: &str) -> String {
    if let Some((table, _step)) = reason.split_once(NEXT_STEP_SEPARATOR) {
        return table.to_owned();
    }
    match reason.split_once(": ").filter(|(topic, _)| topic.starts_with("projects/")) {
        Some((topic, _fix)) => format!("{topic} is refused"),
        None => reason.to_owned(),
    }
}

/// Reports that the settled position does not advance. One row blocks it, and later rows may still
/// be published.
fn unsettled(report: &Map<String, Value>) -> Option<Cause> {
    let since = unsettled_since(report)?;
    let is_ready = report.get("relay").is_some_and(|relay| relay["ready"] == true)
        || noted(report).is_some_and(|noted| noted["phase"] == "streaming");
    let advice = match is_ready {
        true => {
            "the relay is ready, so others flow: what this row's topic answers is in the relay's log, `publish refused`, and \
             in walrelay_publish_requests_total by code; it is recorded after --park-after or near --wal-budget"
        }
        false => {
            "why is in the relay's log, `publish refused`, and whether others flow in its reasons: walrelay status --relay \
             ADDRESS; log waits for it, up to --wal-budget"
        }
    };
    Some(Cause {
        tone: Tone::Attention,
        told: format!(
            "nothing further is settled since {since}: the oldest row that waits is neither stored nor recorded, others may be"
        ),
        advice: advice.to_owned(),
    })
}

/// A relay that publishes rows or is idle records its position every few seconds. Above this age
/// the position is stuck.
const SETTLED_SECONDS_MAX: f64 = 30.0;

/// The relay's own records may cause this much WAL.
const LAG_BYTES_MIN: u64 = 1 << 10;

/// Returns when the relay last recorded progress, if that was long ago and WAL is pending.
fn unsettled_since(report: &Map<String, Value>) -> Option<String> {
    let seconds = report.get("settled_seconds")?.as_f64()?;
    let lag = report.get("lag_bytes")?.as_u64()?;
    let is_stuck = seconds >= SETTLED_SECONDS_MAX && lag >= LAG_BYTES_MIN;
    let at = report.get("settled_at")?.as_str().filter(|_| is_stuck)?;
    Some(format!("{}, {seconds:.0} s ago", visible(at)))
}

/// Returns the relay's reasons for not being ready: from its HTTP answer if it was asked, otherwise
/// from its record. Reasons about the slot or anchors at risk are left out, because the report has
/// its own.
fn reasons_not_ready(report: &Map<String, Value>) -> Vec<String> {
    let reasons = |relay: &Value| relay.get("reasons").and_then(Value::as_array).cloned();
    let asked = report.get("relay").filter(|relay| relay["phase"] != "standby").and_then(reasons);
    let all = asked.or_else(|| noted(report).and_then(reasons)).unwrap_or_default();
    let told_anyway = ["slot at risk", anchors::REASON];
    let all = all.iter().filter_map(Value::as_str);
    all.filter(|reason| !told_anyway.iter().any(|it| reason.starts_with(it))).map(visible).collect()
}

/// Returns the relay's record of its own state. A record of another session than the slot's current
/// one is outdated.
pub(super) fn noted(report: &Map<String, Value>) -> Option<&Value> {
    let noted = report.get("noted")?;
    let pid = noted["streaming_pid"].as_i64()?;
    (report.get("active_pid").and_then(Value::as_i64) == Some(pid)).then_some(noted)
}

/// Reports a refused topic that only an operator can fix: the topic, the error code, and the fix.
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

/// Reports rows that were spilled to dispatch state because nothing could be published, and since
/// when.
fn spilled(report: &Map<String, Value>) -> Option<Cause> {
    let spilled = report.get("spilled")?;
    let rows = spilled.get("rows")?.as_u64().filter(|rows| *rows > 0)?;
    let since = spilled.get("since").and_then(Value::as_str).map(visible);
    let since = since.map_or_else(String::new, |since| format!(", the first since {since}"));
    let waiting = match rows {
        1 => "1 row is spilled and waits".to_owned(),
        _ => format!("{rows} rows are spilled and wait"),
    };
    let moment = |name: &str| spilled.get(name).and_then(Value::as_str).map(visible);
    let (tone, told) = match moment("refused_at") {
        Some(at) => {
            let last = match moment("unanswered_at").is_some_and(|unanswered| unanswered == at) {
                true => "the last try had no answer",
                false => "last refused",
            };
            let told = format!("publishing fails: {waiting}{since}; {last} at {at}");
            (Tone::Bad, told)
        }
        None => (Tone::Attention, format!("{waiting} to be published{since}")),
    };
    Some(Cause { tone, told, advice: OUTAGE.to_owned() })
}

/// Lists unfinished replays and backfills to a topic, and whether a process runs each.
pub(super) fn replays(report: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let line = |open: Open<'_>| {
        let Open { command, id, topic, is_being_done } = open;
        let how = match is_being_done {
            true => "under way".to_owned(),
            false => format!(
                "nobody does it: walrelay replay resume {id}, or walrelay replay cancel {id}"
            ),
        };
        ("not finished", format!("{command} {id} to {}, {how}", visible(topic)))
    };
    open(report).map(line).collect()
}

/// Returns the first unfinished replay that no process runs, and the next step.
pub(super) fn first_abandoned_replay(report: &Map<String, Value>) -> Option<(String, String)> {
    let Open { command, id, topic, .. } = open(report).find(|open| !open.is_being_done)?;
    Some((
        format!("{command} {id} to {} is not finished, and nobody does it", visible(topic)),
        format!("walrelay replay resume {id} goes on, walrelay replay cancel {id} gives it up"),
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

/// Returns the number of spilled rows with the oldest time, and the number of rows that are not yet
/// due with the latest time.
pub(super) fn pending_row_counts(
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

    fn cause_of(report: &Value) -> Cause {
        cause(report.as_object().unwrap()).unwrap()
    }

    #[test]
    fn a_relay_that_is_not_ready_is_told_with_the_fix_where_there_is_one() {
        let topic = "projects/p/topics/t";
        let operator = format!("{topic}: create the topic: gcloud pubsub topics create t");
        let outage =
            "nothing is being stored by Pub/Sub although rows wait, the last answer was NOT_FOUND";
        let of = |reasons: Value, refused: Value| json!({ "active": true, "refused": refused, "relay": { "reasons": reasons } });
        // Before rows are recorded, only the relay knows the reason.
        let alone = cause_of(&of(json!([outage, operator]), json!(null)));
        assert_eq!(alone.told, format!("not ready: {outage}; and 1 more"));
        assert_eq!(alone.advice, "create the topic: gcloud pubsub topics create t");
        let topic_alone = cause_of(&of(json!([operator]), json!(null)));
        assert_eq!(topic_alone.told, format!("not ready: {topic} is refused"));
        assert_eq!(topic_alone.advice, alone.advice);
        let recorded = json!({ "topic": topic, "code": "NOT_FOUND", "at": "T2" });
        let both = cause_of(&of(json!([outage, operator]), recorded.clone()));
        let fails = format!("publishing fails: {topic} answers NOT_FOUND, last at T2; 0 rows wait");
        assert_eq!(both.told, fails);
        assert!(both.advice.contains("gcloud pubsub topics create t"), "{}", both.advice);
        let another = cause_of(&of(json!(["draining: asked to stop", operator]), recorded));
        assert_eq!(another.told, format!("{fails}; not ready: draining: asked to stop"));
        let passing = cause_of(&of(json!([outage]), json!(null)));
        assert!(passing.advice.starts_with("they follow by themselves"), "{}", passing.advice);
        let other = cause_of(&of(json!(["draining: asked to stop"]), json!(null)));
        assert!(other.advice.starts_with("docs/operations.md"), "{}", other.advice);
    }

    #[test]
    fn a_row_that_the_server_cannot_send_is_reported_with_the_command_that_passes_it() {
        let reason = "the server cannot send the row at 16/B374D848#1 of transaction 77: XX000";
        let of = |settled: &str, active: bool| {
            let noted = json!({ "phase": "streaming", "reasons": [reason], "streaming_pid": 7 });
            json!({ "active": active, "noted": noted, "settled_lsn": settled })
        };
        for active in [false, true] {
            let cause = cause_of(&of("16/B374D000", active));
            assert_eq!(cause.told, reason);
            let command = "walrelay slot advance --to-lsn 16/B374D848#1 --skip-events";
            assert!(cause.advice.starts_with(command), "{}", cause.advice);
        }
        let passed = of("16/B374D900", false);
        assert!(cause(passed.as_object().unwrap()).is_none(), "the slot was advanced");
    }

    #[test]
    fn what_the_relay_has_noted_is_told_at_once_unless_another_session_has_the_slot() {
        let topic = "projects/p/topics/t: create the topic: gcloud pubsub topics create t";
        let of = |pid: i32, relay: Value| {
            let noted = json!({ "phase": "streaming", "reasons": [topic], "streaming_pid": pid });
            json!({ "active": true, "active_pid": 7, "noted": noted, "relay": relay })
        };
        let told = |report: &Value| cause(report.as_object().unwrap()).map(|cause| cause.told);
        let expected = Some("not ready: projects/p/topics/t is refused".to_owned());
        assert_eq!(told(&of(7, json!(null))), expected);
        assert_eq!(
            cause_of(&of(7, json!(null))).advice,
            "create the topic: gcloud pubsub topics create t"
        );
        assert_eq!(told(&of(7, json!({ "unreachable": "127.0.0.1:1" }))), expected);
        assert_eq!(told(&of(7, json!({ "phase": "standby", "reasons": ["standby"] }))), expected);
        assert_eq!(told(&of(8, json!(null))), None, "the note is of an earlier session");
        let well = json!({ "phase": "streaming", "ready": true, "reasons": [] });
        assert_eq!(told(&of(7, well)), None, "the relay's own answer is newer");
    }

    #[test]
    fn a_table_that_cannot_be_written_is_told_with_its_grant_before_everything_else() {
        let lacking = format!(
            "{TABLE_FAILURE_PREFIX}role r lacks a privilege on app_outbox_dispatch{NEXT_STEP_SEPARATOR}GRANT x TO r"
        );
        let noted = json!({
            "phase": "streaming", "streaming_pid": 7,
            "reasons": [lacking, "projects/p/topics/t: create it"],
        });
        let mut report = json!({
            "active": true, "active_pid": 7, "noted": noted, "lag_bytes": 4096,
            "settled_at": "T3", "settled_seconds": 150,
            "refused": { "topic": "projects/p/topics/t", "code": "NOT_FOUND", "at": "T2" },
        });
        let cause = cause_of(&report);
        let told = "not ready: a dispatch table cannot be used: role r lacks a privilege on \
                    app_outbox_dispatch; and 1 more";
        assert_eq!(cause.told, told);
        assert_eq!(cause.advice, "as its owner: GRANT x TO r");
        report["noted"]["reasons"] =
            json!([format!("{TABLE_FAILURE_PREFIX}no space left on device")]);
        assert!(cause_of(&report).advice.contains("dispatch state failed"));
    }

    #[test]
    fn one_row_that_holds_the_settled_position_is_told_as_one_and_its_advice_leads_on() {
        let of = |relay: Value| {
            let mut report = json!({
                "active": true, "lag_bytes": 4096, "settled_at": "T3", "settled_seconds": 45.2,
            });
            report["relay"] = relay;
            cause_of(&report)
        };
        let unasked = of(json!(null));
        assert!(unasked.told.contains("since T3, 45 s ago: the oldest row that waits"));
        assert!(unasked.advice.contains("--relay"), "{}", unasked.advice);
        let asked = of(json!({ "ready": true, "reasons": [] }));
        assert_eq!(asked.told, unasked.told);
        assert!(!asked.advice.contains("--relay"), "it was asked: {}", asked.advice);
        assert!(asked.advice.contains("others flow"), "{}", asked.advice);
    }

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
