//! Finds out from a report why rows are pending: the relay's own reasons, Pub/Sub, or their retry
//! time.

use pgoutput_parser::Lsn;
use walrelay_core::CallCode;
use walrelay_errors::Code;
use walrelay_outbox_admin::{NextStep, Severity, StatusReport};
use walrelay_outbox_store::{Reason, ReasonKind};
use walrelay_pubsub::code_of_call;
use walrelay_relay::observe::report::{ConditionReport, RelayReport, SlotReport};
use walrelay_relay::observe::server_stall::commits_wait;
use walrelay_relay::stream::unsent_wal::UNSENT_AGE_MAX;

use crate::error::fixes::relay::pass_unsendable;
use crate::output::text::visible;
use crate::topics::creation_of;

/// Why rows do not flow, and the recommended next step.
#[derive(Debug)]
pub(crate) struct Cause {
    pub severity: Severity,
    /// The reason, without a period.
    pub text: String,
    pub step: NextStep,
}

/// Returns the known reason why rows do not flow. The relay's own reasons come first, then spilled
/// rows, then a settled position that does not advance.
pub(super) fn cause(report: &StatusReport) -> Option<Cause> {
    let slot = report.slot.as_ref()?;
    if let Some(cause) = recorded_stop(slot) {
        return Some(cause);
    }
    if slot.commit_wait_seconds >= UNSENT_AGE_MAX.as_secs_f64() {
        // The relay cannot record this reason, because its own commits wait.
        return Some(not_ready(slot, &[&commits_wait()]));
    }
    let reasons = reasons_not_ready(report, slot);
    if !reasons.is_empty() {
        return Some(not_ready(slot, &reasons));
    }
    if !slot.active {
        return None;
    }
    refused(slot).or_else(|| spilled(slot)).or_else(|| unsettled(report, slot))
}

/// Returns why the relay has stopped or waits, from its own record. `check` reports the same.
pub(crate) fn recorded_stop(slot: &SlotReport) -> Option<Cause> {
    unsendable(slot).or_else(|| unreadable(slot)).or_else(|| waiting(slot))
}

/// Reports a row that the relay could not read, or a publication that stopped the relay. The next
/// session that streams replaces the record.
pub(super) fn unreadable(slot: &SlotReport) -> Option<Cause> {
    let reasons = &slot.condition.as_ref().filter(|_| !slot.active)?.reasons;
    let reason = reasons.iter().find(|reason| reason.kind == ReasonKind::UnreadableRow)?;
    let name = reason.code.as_deref();
    let code = Code::ALL.iter().find(|code| Some(code.name()) == name);
    let code = code.copied().unwrap_or(Code::RowUnreadable);
    // A slot that lacks rows is reported as lost before this.
    let fix = match code == Code::PublicationChanged {
        true => NO_ROW_IS_MISSING.to_owned(),
        false => reason.fix.as_deref().map(visible).unwrap_or_default(),
    };
    let text = format!("the relay stopped: {}", visible(&reason.text));
    Some(Cause { severity: Severity::Bad, text, step: NextStep::of(code, fix) })
}

/// The next step after a change of the publication that left out no row.
const NO_ROW_IS_MISSING: &str = "no row is missing; start the relay: walrelay run";

/// Reports a row that the server cannot send, until the slot has passed it. No relay can pass it by
/// itself, so the record counts also when no relay streams any more.
fn unsendable(slot: &SlotReport) -> Option<Cause> {
    let reasons = &slot.condition.as_ref()?.reasons;
    let is_row = |reason: &&Reason| reason.kind == ReasonKind::UnsendableRow;
    let reason = reasons.iter().find(is_row)?;
    let position = reason.subject.as_deref()?;
    let commit_lsn: Lsn = position.split('#').next()?.parse().ok()?;
    let settled: Lsn = slot.settled_lsn.as_deref()?.parse().ok()?;
    let step = pass_unsendable(&visible(position));
    (settled <= commit_lsn).then(|| Cause {
        severity: Severity::Bad,
        text: visible(&reason.text),
        step: NextStep::of(Code::RowUnsendable, step),
    })
}

/// A waiting relay records its wait once a minute, so an older record is of a stopped relay.
const WAIT_SECONDS_MAX: f64 = 90.0;

/// Reports the wait of a running relay that has no session, such as for a permission.
fn waiting(slot: &SlotReport) -> Option<Cause> {
    let condition = slot.condition.as_ref()?;
    let is_recent = condition.streaming_pid.is_none() && condition.seconds < WAIT_SECONDS_MAX;
    let is_wait = |reason: &&Reason| reason.kind == ReasonKind::Waiting;
    let reason = condition.reasons.iter().find(is_wait).filter(|_| is_recent && !slot.active)?;
    Some(Cause {
        severity: Severity::Bad,
        text: format!("a running relay waits: {}", visible(&reason.text)),
        step: NextStep {
            code: reason.code.clone(),
            ..NextStep::new(reason.fix.as_deref().map(visible).unwrap_or_default())
        },
    })
}

/// Advice during an outage, which only a change at Pub/Sub can end.
const OUTAGE: &str = "they follow by themselves, in order, once Pub/Sub stores messages again";

fn outage_step() -> NextStep {
    NextStep::of(Code::PubsubUnreachable, OUTAGE)
}

/// Builds the cause from the relay's own reasons. For a refused topic, dispatch state has the same
/// information plus the error code.
fn not_ready(slot: &SlotReport, reasons: &[&Reason]) -> Cause {
    let find = |kind| reasons.iter().find(|reason| reason.kind == kind);
    // What the server does not do, no topic can.
    if let Some(stall) = find(ReasonKind::ServerStalled) {
        let fix = stall.fix.as_deref().unwrap_or(READ_THE_LOG);
        let step = NextStep { code: stall.code.clone(), ..NextStep::new(visible(fix)) };
        let text = format!("not ready: {}", visible(&stall.text));
        return Cause { severity: Severity::Bad, text, step };
    }
    // This fix comes first, because rows must be recorded before another fix can help.
    if let Some(table) = find(ReasonKind::DispatchFailure) {
        let step = match &table.fix {
            Some(fix) => format!("as its owner: {}", visible(fix)),
            None => DISPATCH_FAILURE.to_owned(),
        };
        let step = NextStep { code: table.code.clone(), ..NextStep::new(step) };
        return Cause { severity: Severity::Bad, text: listed(reasons), step };
    }
    if let (Some(refused), Some(refusal)) = (refused(slot), &slot.refused) {
        let is_another = |reason: &&&Reason| {
            let is_same = reason.subject.as_ref() == Some(&refusal.topic);
            !is_same && reason.kind != ReasonKind::Outage
        };
        let others: Vec<_> = reasons.iter().filter(is_another).copied().collect();
        let others = match listed(&others) {
            none if none.is_empty() => none,
            others => format!("; {others}"),
        };
        return Cause { text: format!("{}{others}", refused.text), ..refused };
    }
    let spilled = spilled(slot).map_or_else(String::new, |it| format!("; {}", it.text));
    let text = format!("{}{spilled}", listed(reasons));
    Cause { severity: Severity::Bad, text, step: step_of(reasons) }
}

/// Lists the first reason, and the number of the others.
fn listed(reasons: &[&Reason]) -> String {
    match reasons {
        [] => String::new(),
        [one] => format!("not ready: {}", in_short(one)),
        [first, others @ ..] => {
            format!("not ready: {}; and {} more", in_short(first), others.len())
        }
    }
}

/// Returns the next step: the fix of a topic, that of an outage, or that of the first reason.
fn step_of(reasons: &[&Reason]) -> NextStep {
    let find = |kind| reasons.iter().find(|reason| reason.kind == kind);
    let topic = find(ReasonKind::TopicRefused);
    let topic_fix = topic.and_then(|reason| Some((reason, reason.fix.as_deref()?)));
    match (topic_fix, find(ReasonKind::Outage)) {
        (Some((reason, fix)), _) => {
            let is_missing = reason.code.as_deref() == Some(Code::TopicNotFound.name());
            let missing = reason.subject.as_deref().filter(|_| is_missing);
            let step = missing.map_or_else(|| visible(fix), creation_of);
            NextStep { code: reason.code.clone(), ..NextStep::new(step) }
        }
        (None, Some(_)) => outage_step(),
        (None, None) => {
            let first = reasons.first();
            let fix = first.and_then(|reason| reason.fix.as_deref()).map(visible);
            NextStep {
                code: first.and_then(|reason| reason.code.clone()),
                ..NextStep::new(fix.unwrap_or_else(|| READ_THE_LOG.to_owned()))
            }
        }
    }
}

/// The next step for a dispatch table that fails for an unknown reason.
const DISPATCH_FAILURE: &str = "the relay's log has the server's error (message `dispatch state failed` or `does not answer`); then run walrelay check";

/// The next step for a reason that ends by itself.
const READ_THE_LOG: &str = "wait until it ends; the relay's log reports each change";

/// Shortens a reason by its fix. The advice repeats the fix, and the relay section shows the whole
/// reason.
fn in_short(reason: &Reason) -> String {
    match reason.kind {
        ReasonKind::TopicRefused => format!("{} is refused", visible(&reason.text)),
        ReasonKind::DispatchFailure => visible(&reason.text),
        ReasonKind::Phase
        | ReasonKind::Waiting
        | ReasonKind::Operation
        | ReasonKind::SlotAtRisk
        | ReasonKind::AnchorAtRisk
        | ReasonKind::Outage
        | ReasonKind::UnsendableRow
        | ReasonKind::UnreadableRow
        | ReasonKind::UnpublishedRows
        | ReasonKind::ServerStalled
        | ReasonKind::WalBudget => visible(&reason.to_string()),
    }
}

/// Reports that the settled position does not advance. One row blocks it, and later rows may still
/// be published.
fn unsettled(report: &StatusReport, slot: &SlotReport) -> Option<Cause> {
    let since = unsettled_since(slot)?;
    let is_ready = relay_answer(report).is_some_and(|relay| relay.ready)
        || recorded_condition(slot).is_some_and(|condition| condition.phase == "streaming");
    let step = match is_ready {
        true => {
            "the relay is ready, so others flow: what this row's topic answers is in the relay's log, `publish refused`, and \
             in walrelay_publish_requests_total by code; it is recorded after --park-after or near --wal-budget"
        }
        false => {
            "why is in the relay's log, `publish refused`, and whether others flow in its reasons: walrelay status --relay \
             ADDRESS; WAL is retained for it, up to --wal-budget"
        }
    };
    Some(Cause {
        severity: Severity::Attention,
        text: format!(
            "nothing further is settled since {since}: the oldest row that waits is neither stored nor recorded, others may be"
        ),
        step: NextStep::new(step),
    })
}

/// A relay that publishes rows or is idle records its position every few seconds. Above this age
/// the position is stuck.
const SETTLED_SECONDS_MAX: f64 = 30.0;

/// Returns when the relay last recorded progress, if that was long ago and WAL is pending.
fn unsettled_since(slot: &SlotReport) -> Option<String> {
    let seconds = slot.settled_seconds?;
    let is_stuck = seconds >= SETTLED_SECONDS_MAX && slot.may_hold_rows();
    let at = slot.settled_at.as_ref().filter(|_| is_stuck)?;
    Some(format!("{}, {seconds:.0} s ago", visible(at)))
}

fn relay_answer(report: &StatusReport) -> Option<&RelayReport> {
    let answer = report.relay.as_ref().filter(|answer| answer.unreachable.is_none())?;
    answer.report.as_ref()
}

/// Returns the relay's reasons for not being ready: from its HTTP answer if it was asked, otherwise
/// from its record. Reasons about the slot or anchors at risk are left out, because the report has
/// its own.
fn reasons_not_ready<'a>(report: &'a StatusReport, slot: &'a SlotReport) -> Vec<&'a Reason> {
    let asked = relay_answer(report).filter(|relay| relay.phase != "standby");
    let asked = asked.map(|relay| &relay.reasons);
    let all = asked.or_else(|| recorded_condition(slot).map(|it| &it.reasons));
    let is_own =
        |reason: &&Reason| matches!(reason.kind, ReasonKind::SlotAtRisk | ReasonKind::AnchorAtRisk);
    all.into_iter().flatten().filter(|reason| !is_own(reason)).collect()
}

/// Returns the relay's record of its own state. A record of another session than the slot's current
/// one is outdated.
pub(super) fn recorded_condition(slot: &SlotReport) -> Option<&ConditionReport> {
    let condition = slot.condition.as_ref()?;
    let pid = condition.streaming_pid?;
    (slot.active_pid == Some(pid)).then_some(condition)
}

/// Reports a refused topic that only an operator can fix: the topic, the error code, and the fix.
fn refused(slot: &SlotReport) -> Option<Cause> {
    let refused = slot.refused.as_ref()?;
    let (topic, code) = (&refused.topic, &refused.code);
    let rows = slot.dispatch.map_or(0, |counts| counts.retrying);
    let of_them = match slot.spilled.rows {
        0 => String::new(),
        spilled => format!(", {spilled} of them spilled"),
    };
    // A row holds the name of the code. A text that is no code has the general fix.
    let call = code.parse().unwrap_or(CallCode::Unknown);
    Some(Cause {
        severity: Severity::Bad,
        text: format!(
            "publishing fails: {} answers {}, last at {}; {rows} rows wait{of_them}",
            visible(topic),
            visible(code),
            visible(&refused.at)
        ),
        step: NextStep::of(
            code_of_call(call),
            match call == CallCode::NotFound {
                true => creation_of(topic),
                false => visible(&walrelay_pubsub::operator_fix(call, topic)),
            },
        ),
    })
}

/// Reports rows that were spilled to dispatch state because nothing could be published, and since
/// when.
fn spilled(slot: &SlotReport) -> Option<Cause> {
    let spilled = Some(&slot.spilled).filter(|spilled| spilled.rows > 0)?;
    let since = spilled.since.as_deref().map(visible);
    let since = since.map_or_else(String::new, |since| format!(", the first since {since}"));
    let rows = match spilled.rows {
        1 => "1 row is spilled and waits".to_owned(),
        rows => format!("{rows} rows are spilled and wait"),
    };
    let (severity, text) = match &spilled.refused_at {
        Some(at) => {
            let last = match spilled.unanswered_at.as_ref() == Some(at) {
                true => "the last try had no answer",
                false => "last refused",
            };
            let at = visible(at);
            (Severity::Bad, format!("publishing fails: {rows}{since}; {last} at {at}"))
        }
        None => (Severity::Attention, format!("{rows} to be published{since}")),
    };
    Some(Cause { severity, text, step: outage_step() })
}

/// Returns the first unfinished replay that no process runs, and the next step.
pub(super) fn first_abandoned_replay(report: &StatusReport) -> Option<(String, NextStep)> {
    let open = report.replays.iter().find(|replay| !replay.is_being_done)?;
    let id = visible(&open.id);
    let text =
        format!("replay {id} to {} is not finished, and no process runs it", visible(&open.topic));
    let step =
        format!("walrelay replay resume {id} continues it, walrelay replay cancel {id} cancels it");
    Some((text, NextStep::new(step)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(report: &Value) -> StatusReport {
        serde_json::from_value(report.clone()).unwrap()
    }

    fn cause_of(report: &Value) -> Cause {
        cause(&parsed(report)).unwrap()
    }

    fn topic_reason(topic: &str, fix: &str) -> Value {
        json!({
            "kind": "topic_refused", "text": topic, "fix": fix, "subject": topic,
            "code": "topic-not-found",
        })
    }

    #[test]
    fn a_relay_that_is_not_ready_is_told_with_the_fix_where_there_is_one() {
        let topic = "projects/p/topics/t";
        let operator = topic_reason(topic, "create the topic: gcloud pubsub topics create t");
        let outage_text = "Pub/Sub stores nothing: NOT_FOUND";
        let outage = json!({ "kind": "outage", "text": outage_text });
        let draining = json!({ "kind": "phase", "text": "draining: asked to stop" });
        let of = |reasons: Value, refused: Value| json!({ "active": true, "refused": refused, "relay": { "reasons": reasons } });
        // Before rows are recorded, only the relay knows the reason.
        let alone = cause_of(&of(json!([outage, operator]), json!(null)));
        assert_eq!(alone.text, format!("not ready: {outage_text}; and 1 more"));
        assert_eq!(alone.step.text, creation_of(topic));
        let topic_alone = cause_of(&of(json!([operator]), json!(null)));
        assert_eq!(topic_alone.text, format!("not ready: {topic} is refused"));
        assert_eq!(topic_alone.step, alone.step);
        assert_eq!(topic_alone.step.code.as_deref(), Some("topic-not-found"));
        let recorded = json!({ "topic": topic, "code": "NOT_FOUND", "at": "T2" });
        let both = cause_of(&of(json!([outage, operator]), recorded.clone()));
        let fails = format!("publishing fails: {topic} answers NOT_FOUND, last at T2; 0 rows wait");
        assert_eq!(both.text, fails);
        assert!(
            both.step.text.contains("--create-topics=projects/p/topics/t"),
            "{}",
            both.step.text
        );
        let another = cause_of(&of(json!([draining, operator]), recorded));
        assert_eq!(another.text, format!("{fails}; not ready: draining: asked to stop"));
        let passing = cause_of(&of(json!([outage]), json!(null)));
        assert!(
            passing.step.text.starts_with("they follow by themselves"),
            "{}",
            passing.step.text
        );
        let other = cause_of(&of(json!([draining]), json!(null)));
        assert!(other.step.text.starts_with("wait until it ends"), "{}", other.step.text);
    }

    #[test]
    fn a_row_that_the_server_cannot_send_is_reported_with_the_command_that_passes_it() {
        let reason = "the server cannot send the row at 16/B374D848#1 of transaction 77: XX000";
        let of = |settled: &str, active: bool| {
            let reasons = json!([{
                "kind": "unsendable_row", "text": reason, "subject": "16/B374D848#1",
            }]);
            let noted = json!({ "phase": "streaming", "reasons": reasons, "streaming_pid": 7 });
            json!({ "active": active, "condition": noted, "settled_lsn": settled })
        };
        for active in [false, true] {
            let cause = cause_of(&of("16/B374D000", active));
            assert_eq!(cause.text, reason);
            let command = "walrelay slot advance --to-lsn 16/B374D848#1";
            assert!(cause.step.text.starts_with(command), "{}", cause.step.text);
            assert!(cause.step.text.contains("--discard-rows N"), "{}", cause.step.text);
        }
        let passed = of("16/B374D900", false);
        assert!(cause(&parsed(&passed)).is_none(), "the slot was advanced");
    }

    #[test]
    fn what_the_relay_has_noted_is_told_at_once_unless_another_session_has_the_slot() {
        let topic =
            topic_reason("projects/p/topics/t", "create the topic: gcloud pubsub topics create t");
        let of = |pid: i32, relay: Value| {
            let noted = json!({ "phase": "streaming", "reasons": [topic], "streaming_pid": pid });
            json!({ "active": true, "active_pid": 7, "condition": noted, "relay": relay })
        };
        let told = |report: &Value| cause(&parsed(report)).map(|cause| cause.text);
        let expected = Some("not ready: projects/p/topics/t is refused".to_owned());
        assert_eq!(told(&of(7, json!(null))), expected);
        assert_eq!(cause_of(&of(7, json!(null))).step.text, creation_of("projects/p/topics/t"));
        assert_eq!(told(&of(7, json!({ "unreachable": "127.0.0.1:1" }))), expected);
        assert_eq!(
            told(&of(7, json!({ "phase": "standby", "reasons": [{ "text": "standby" }] }))),
            expected
        );
        assert_eq!(told(&of(8, json!(null))), None, "the note is of an earlier session");
        let well = json!({ "phase": "streaming", "ready": true, "reasons": [] });
        assert_eq!(told(&of(7, well)), None, "the relay's own answer is newer");
    }

    #[test]
    fn a_table_that_cannot_be_written_is_told_with_its_grant_before_everything_else() {
        let lacking = json!({
            "kind": "dispatch_failure",
            "text": "a dispatch table cannot be used: role r lacks a privilege on app_outbox_dispatch",
            "fix": "GRANT x TO r",
        });
        let noted = json!({
            "phase": "streaming", "streaming_pid": 7,
            "reasons": [lacking, topic_reason("projects/p/topics/t", "create it")],
        });
        let mut report = json!({
            "active": true, "active_pid": 7, "condition": noted, "lag_bytes": 4096,
            "settled_at": "T3", "settled_seconds": 150,
            "refused": { "topic": "projects/p/topics/t", "code": "NOT_FOUND", "at": "T2" },
        });
        let cause = cause_of(&report);
        let told = "not ready: a dispatch table cannot be used: role r lacks a privilege on \
                    app_outbox_dispatch; and 1 more";
        assert_eq!(cause.text, told);
        assert_eq!(cause.step.text, "as its owner: GRANT x TO r");
        let full = "a dispatch table cannot be used: no space left on device";
        report["condition"]["reasons"] = json!([{ "kind": "dispatch_failure", "text": full }]);
        assert!(cause_of(&report).step.text.contains("dispatch state failed"));
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
        assert!(unasked.text.contains("since T3, 45 s ago: the oldest row that waits"));
        assert!(unasked.step.text.contains("--relay"), "{}", unasked.step.text);
        let asked = of(json!({ "ready": true, "reasons": [] }));
        assert_eq!(asked.text, unasked.text);
        assert!(!asked.step.text.contains("--relay"), "it was asked: {}", asked.step.text);
        assert!(asked.step.text.contains("others flow"), "{}", asked.step.text);
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
            cause(&parsed(&report)).unwrap()
        };
        let Cause { text: spilled, step, .. } = told(7);
        let fails = "publishing fails: projects/p/topics/t answers PERMISSION_DENIED, last at T2; 9 rows wait";
        assert_eq!(spilled, format!("{fails}, 7 of them spilled"));
        assert!(step.text.contains("roles/pubsub.publisher"), "{}", step.text);
        assert_eq!(step.code.as_deref(), Some("pubsub-permission-missing"));
        assert_eq!(told(0).text, fails);
    }

    #[test]
    fn a_running_relay_that_waits_is_reported_with_its_reason_instead_of_a_start() {
        let reason = json!({
            "kind": "waiting", "text": "role r may not read app_outbox_dispatch",
            "fix": "GRANT SELECT", "code": "dispatch-permission-missing",
        });
        let of = |seconds: f64, active: bool| {
            json!({ "active": active, "condition": {
                "phase": "waiting", "reasons": [reason], "streaming_pid": null, "seconds": seconds,
            } })
        };
        let recent = cause_of(&of(61.0, false));
        let text = "a running relay waits: role r may not read app_outbox_dispatch";
        assert_eq!(recent.text, text);
        assert_eq!(recent.step.text, "GRANT SELECT");
        assert_eq!(recent.step.code.as_deref(), Some("dispatch-permission-missing"));
        assert!(cause(&parsed(&of(120.0, false))).is_none(), "the relay is gone");
        assert!(cause(&parsed(&of(61.0, true))).is_none(), "a session streams now");
    }
}
