//! The summary of a status report: a headline, its severity, and the recommended next step.

use walrelay_errors::Code;
use walrelay_outbox_admin::{
    HEADROOM_BYTES_MIN, NextStep, OperationKind, OperationReport, Severity, StatusReport, StepScope,
};
use walrelay_outbox_replay::PausingReplay;
use walrelay_outbox_store::Shard;
use walrelay_pg_client::HORIZON_AGE_MAX;
use walrelay_pg_replication::is_little_headroom;
use walrelay_relay::observe::report::SlotReport;

use super::stall_cause::{Cause, cause, first_abandoned_replay, unreadable};
use super::{anchors, consumers};
use crate::error::printed_commands::with_shard;
use crate::output::colour::{ColourMode, Tone};
use crate::output::text::{human_bytes, visible};

/// Lists the rows that need a person.
const LIST: &str = "walrelay dispatch list";

const START: &str = "start the relay: walrelay run";
const RESTART: &str =
    "if no relay runs, start it: walrelay run; one that runs reconnects within seconds";

/// Returns the next step for an unfinished operation that this command finishes.
pub(crate) fn finishing_step(command: &str) -> NextStep {
    NextStep::of(Code::OperationUnfinished, format!("this finishes it: {command}"))
}

/// Returns the next step for the unfinished operation of a report.
fn finishing(operation: &OperationReport) -> NextStep {
    let text = match (&operation.finished_by, operation.is_anchor_gone) {
        (Some(command), true) => format!("its anchor is gone, so this cancels it: {command}"),
        (Some(command), false) => format!("this finishes it: {command}"),
        (None, _) => "the relay that streams the slot finishes it".to_owned(),
    };
    let scope = match operation.kind {
        OperationKind::Resharding => StepScope::AllShards,
        OperationKind::Reset | OperationKind::Recovery | OperationKind::Release => StepScope::Slot,
    };
    NextStep { scope, ..NextStep::of(Code::OperationUnfinished, text) }
}

/// The status in short: severity, headline and recommended next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub severity: Severity,
    /// One line of text.
    pub headline: String,
    pub next_step: Option<NextStep>,
}

impl Summary {
    fn new(severity: Severity, headline: String, next_step: Option<NextStep>) -> Self {
        Self { severity, headline, next_step }
    }

    /// Summarizes a report: its worst problem, plus dead rows and anchors at risk.
    pub(crate) fn of(report: &StatusReport) -> Self {
        let worst = Self::worst(report).with_dead_rows(report).with_paused_keys(report);
        worst.with_anchors(report).with_old_horizon(report)
    }

    /// Adds that so many transactions have run since the last settled one that a recovery soon needs
    /// a time.
    pub(crate) fn with_old_horizon(self, report: &StatusReport) -> Self {
        let age = report.slot.as_ref().and_then(|slot| slot.settled_transactions).unwrap_or(0);
        if age < HORIZON_AGE_MAX / 2 {
            return self;
        }
        let text = format!(
            "{age} transactions have run since the last settled one, and after {HORIZON_AGE_MAX} a recovery needs a time"
        );
        Self {
            severity: self.severity.max(Severity::Attention),
            headline: format!("{}; {text}", self.headline),
            ..self
        }
    }

    /// Returns the summary that the report contains.
    pub(crate) fn in_report(report: &StatusReport) -> Self {
        let StatusReport { severity, headline, next_step, .. } = report;
        Self::new(*severity, headline.clone(), next_step.clone())
    }

    pub(crate) fn into_report(self, report: StatusReport) -> StatusReport {
        let Self { severity, headline, next_step } = self;
        StatusReport { severity, headline, next_step, ..report }
    }

    /// Adds an anchor that may be lost soon, in addition to any other problem.
    fn with_anchors(self, report: &StatusReport) -> Self {
        let Some((text, step)) = anchors::at_risk(report, HEADROOM_BYTES_MIN) else { return self };
        Self {
            severity: self.severity.max(Severity::Attention),
            headline: format!("{}; {text}", self.headline),
            next_step: Some(followed_by(self.next_step, step)),
        }
    }

    /// Adds a consumer that needs a person, in addition to any other problem.
    pub(crate) fn with_consumers(self, report: &StatusReport) -> Self {
        let Some((text, step)) = consumers::attention(report) else { return self };
        Self {
            severity: self.severity.max(Severity::Attention),
            headline: format!("{}; {text}", self.headline),
            next_step: Some(followed_by(self.next_step, step)),
        }
    }

    /// Adds keys that a replay pauses which no process runs, in addition to any other problem.
    fn with_paused_keys(self, report: &StatusReport) -> Self {
        let Some(left) = report.paused_by.iter().find(|pausing| !pausing.is_being_done) else {
            return self;
        };
        let text = pause_text(left);
        if self.headline.contains(&text) || report.slot.as_ref().is_some_and(|slot| slot.lost) {
            return self;
        }
        Self {
            severity: self.severity.max(Severity::Attention),
            headline: format!("{}; {text}", self.headline),
            next_step: Some(followed_by(self.next_step, NextStep::new(pause_advice(left)))),
        }
    }

    /// Adds dead rows, which need a person in addition to any other problem.
    fn with_dead_rows(self, report: &StatusReport) -> Self {
        let dead = report.slot.as_ref().and_then(|slot| slot.dispatch).map_or(0, |it| it.dead);
        if dead == 0 {
            return self;
        }
        let text = needs_person_text(dead);
        if self.headline.contains(&text) {
            return self;
        }
        Self {
            headline: format!("{}; {text}", self.headline),
            next_step: Some(followed_by(self.next_step, NextStep::of(Code::DeadRows, LIST))),
            ..self
        }
    }

    fn worst(report: &StatusReport) -> Self {
        let slot = report.slot.clone().unwrap_or_default();
        let behind = format!("{} behind", human_bytes(slot.lag_bytes.unwrap_or(0)));
        let flow =
            format!("{}, {behind}", if slot.active { "streaming" } else { "nothing streams" });
        if slot.lost {
            let step = "walrelay slot recover (do not run init, which would give its rows up)";
            let step = Some(NextStep::of(Code::SlotLost, step));
            return Self::new(Severity::Bad, "the slot is lost".to_owned(), step);
        }
        // The relay that would finish an operation cannot pass this row.
        if let Some(Cause { severity, text, step }) =
            report.operation.as_ref().and_then(|_| unreadable(&slot))
        {
            return Self::new(severity, format!("{flow}; {text}"), Some(step));
        }
        if let Some(operation) = &report.operation {
            let headline = format!("not finished: {}", operation.text);
            return Self::new(Severity::Bad, headline, Some(finishing(operation)));
        }
        let is_little =
            |left: &i64| is_little_headroom(*left, slot.retained_bytes, HEADROOM_BYTES_MIN);
        let cause = cause(report);
        if let Some(left) = slot.safe_wal_bytes.filter(is_little) {
            return Self::with_little_headroom(&flow, &slot, left, cause);
        }
        if let Some(Cause { severity, text, step }) = cause {
            return Self::new(severity, format!("{flow}; {text}"), Some(step));
        }
        match slot.active {
            true => Self::of_streaming(report, flow),
            false => {
                // Only a relay notes a condition.
                let settled_seconds = slot.condition.as_ref().and(slot.settled_seconds);
                Self::of_stopped(settled_seconds, flow)
            }
        }
    }

    /// The slot is lost soon. The cause and its fix follow.
    fn with_little_headroom(
        flow: &str,
        slot: &SlotReport,
        left: i64,
        cause: Option<Cause>,
    ) -> Self {
        let left = human_bytes(u64::try_from(left).unwrap_or(0));
        let raise = "walrelay check, which says how to raise max_slot_wal_keep_size";
        let (why, step) = match (slot.active, cause) {
            (false, None) => (String::new(), START.to_owned()),
            (true, None) => (String::new(), raise.to_owned()),
            (_, Some(Cause { text, step, .. })) => {
                (format!("; {text}"), format!("{raise}; then {}", step.text))
            }
        };
        let headline = format!("{flow}{why}; the slot is lost after {left} more");
        Self::new(Severity::Bad, headline, Some(NextStep::of(Code::SlotAtRisk, step)))
    }

    /// A relay that has recorded progress may run and reconnect, after a short break as after a long one.
    fn of_stopped(settled_seconds: Option<f64>, flow: String) -> Self {
        let step = NextStep::new(if settled_seconds.is_some() { RESTART } else { START });
        match settled_seconds.filter(|seconds| *seconds < RECONNECTS_WITHIN_SECONDS) {
            Some(seconds) => {
                let headline = format!("{flow}; last progress {seconds:.0} s ago");
                Self::new(Severity::Attention, headline, Some(step))
            }
            None => Self::new(Severity::Bad, flow, Some(step)),
        }
    }

    fn of_streaming(report: &StatusReport, flow: String) -> Self {
        let counts = report.slot.as_ref().and_then(|slot| slot.dispatch).unwrap_or_default();
        let attention = |headline, step| Self::new(Severity::Attention, headline, Some(step));
        let may_hold_rows = report.slot.as_ref().is_some_and(SlotReport::may_hold_rows);
        let flow = match counts.retrying == 0 && !may_hold_rows {
            true => "streaming, caught up".to_owned(),
            false => flow,
        };
        let all_published = format!("{flow}, nothing parked");
        match (counts.dead, counts.retrying) {
            (0, parked) if let Some(pausing) = report.paused_by.first() => attention(
                format!("{flow}{}", paused_with_parked_rows(pausing, parked)),
                NextStep::new(pause_advice(pausing)),
            ),
            (0, 0) if let Some((text, step)) = first_abandoned_replay(report) => {
                attention(format!("{all_published}; {text}"), step)
            }
            (0, 0) => Self::new(Severity::Good, all_published, None),
            (0, parked) if report.replayed_rows >= parked => attention(
                format!("{flow}, {parked} rows of a replay in place are being published"),
                NextStep::new(
                    "the relay publishes them by itself; walrelay replay list shows the replay",
                ),
            ),
            (0, parked) => attention(
                match parked {
                    1 => format!("{flow}, 1 row parked and tried again by itself"),
                    _ => format!("{flow}, {parked} rows parked and tried again by themselves"),
                },
                NextStep::new("to see why: walrelay dispatch list --status retrying"),
            ),
            (dead, _) => attention(
                format!("{flow}, {}", needs_person_text(dead)),
                NextStep::of(Code::DeadRows, LIST),
            ),
        }
    }

    /// Summarizes all shards: the worst problem, and how many shards have one as bad.
    pub(crate) fn worst_of_shards(shards: &[StatusReport]) -> Self {
        let severity = shards.iter().map(|shard| shard.severity).max().unwrap_or_default();
        let count = shards.len();
        let mut worst: Vec<_> = shards.iter().filter(|it| it.severity == severity).collect();
        // A change of the shard count explains the problems of single shards, so it comes first.
        worst.sort_by_key(|shard| !shard.next_step.as_ref().is_some_and(is_of_all));
        let Some(first) = worst.first() else {
            return Self::new(Severity::Bad, "no shards".to_owned(), None);
        };
        if severity == Severity::Good {
            let headline = format!("all {count} shards are streaming, nothing parked");
            return Self::new(severity, headline, None);
        }
        let others = match worst.len() - 1 {
            0 => String::new(),
            1 => format!("; 1 more of {count} shards is equally bad"),
            others => format!("; {others} more of {count} shards are equally bad"),
        };
        let name = first.shard.as_deref().unwrap_or_default();
        let Self { headline, next_step, .. } = Self::in_report(first).of_shard(name);
        Self::new(severity, format!("shard {name}: {headline}{others}"), next_step)
    }

    /// Adds the shard of this name to the commands of the next step, unless the step is about all
    /// shards.
    pub(crate) fn of_shard(self, name: &str) -> Self {
        let shard = name.parse().unwrap_or(Shard::WHOLE);
        let named = |step: NextStep| match is_of_all(&step) {
            true => step,
            false => NextStep { text: with_shard(&step.text, shard), ..step },
        };
        Self { next_step: self.next_step.map(named), ..self }
    }

    /// Returns the summary unchanged if it reports a problem. Otherwise adds an unfinished replay
    /// or backfill of the whole outbox that no process runs.
    pub(crate) fn or_abandoned_replay(self, report: &StatusReport) -> Self {
        match first_abandoned_replay(report).filter(|_| self.severity == Severity::Good) {
            Some((text, step)) => {
                Self::new(Severity::Attention, format!("{}; {text}", self.headline), Some(step))
            }
            None => self,
        }
    }

    /// Formats headline and next step for printing.
    pub(crate) fn text(&self, paint: ColourMode) -> String {
        let headline = paint.text(tone_of(self.severity), &self.headline);
        match &self.next_step {
            Some(step) => format!("{headline}\n  {}\n", step.text),
            None => format!("{headline}\n"),
        }
    }
}

pub(crate) const fn tone_of(severity: Severity) -> Tone {
    match severity {
        Severity::Good => Tone::Good,
        Severity::Attention => Tone::Attention,
        Severity::Bad => Tone::Bad,
    }
}

fn is_of_all(step: &NextStep) -> bool {
    step.scope == StepScope::AllShards
}

/// Appends a step. The code is that of the first step.
fn followed_by(first: Option<NextStep>, then: NextStep) -> NextStep {
    match first {
        Some(first) => NextStep { text: format!("{}; then {}", first.text, then.text), ..first },
        None => then,
    }
}

/// Longest time that a running relay needs to stream again after a reset or a lost connection.
const RECONNECTS_WITHIN_SECONDS: f64 = 15.0;

/// Describes the dead rows.
fn needs_person_text(dead: u64) -> String {
    match dead {
        1 => "1 dead row waits for a person".to_owned(),
        _ => format!("{dead} dead rows wait for a person"),
    }
}

/// Describes the keys whose rows wait for a replay in place.
pub(super) fn pause_text(PausingReplay { keys, id, .. }: &PausingReplay) -> String {
    format!("{keys} key(s) wait for replay {}", visible(id))
}

/// Describes paused keys together with the parked rows, most of which belong to them.
fn paused_with_parked_rows(pausing: &PausingReplay, parked: u64) -> String {
    let text = pause_text(pausing);
    match parked {
        0 => format!("; {text}"),
        1 => format!(", 1 row parked; that of {text}"),
        _ => format!(", {parked} rows parked; those of {text}"),
    }
}

fn pause_advice(PausingReplay { id, is_being_done, .. }: &PausingReplay) -> String {
    let id = visible(id);
    match is_being_done {
        true => format!(
            "they continue when it is done; to cancel it instead, stop it, then: walrelay replay cancel {id}"
        ),
        false => format!(
            "no process runs it: walrelay replay resume {id} continues it, walrelay replay cancel {id} cancels it"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sections::sections;
    use super::*;

    /// Returns the report of a streaming relay, with changes.
    fn report(changes: Value) -> StatusReport {
        let mut report = json!({
            "slot": "walrelay", "active": true, "active_pid": 7, "lost": false, "lag_bytes": 0,
            "safe_wal_bytes": null, "wal_end": "0/2",
            "dispatch": { "dead": 0, "retrying": 0, "published": 3, "discarded": 0 },
        });
        let all = report.as_object_mut().unwrap();
        all.extend(changes.as_object().unwrap().clone());
        serde_json::from_value(report).unwrap()
    }

    fn headline(changes: Value) -> (Severity, String, bool) {
        let summary = Summary::of(&report(changes));
        (summary.severity, summary.headline, summary.next_step.is_some())
    }

    fn advice(summary: Summary) -> String {
        summary.next_step.map(|step| step.text).unwrap_or_default()
    }

    fn shard(name: &str, changes: Value) -> StatusReport {
        let report = StatusReport { shard: Some(name.to_owned()), ..report(changes) };
        Summary::of(&report).into_report(report)
    }

    #[test]
    fn an_unreadable_row_comes_before_the_recovery_that_it_stops() {
        let reason = json!({ "kind": "unreadable_row", "text": "event e-1", "fix": "DELETE it" });
        let recovery = json!({
            "active": false, "operation": { "text": "a recovery", "finished_by": "walrelay run" },
            "condition": { "phase": "stopped", "reasons": [reason], "seconds": 9000 },
        });
        let summary = Summary::of(&report(recovery));
        let step = summary.next_step.clone().unwrap_or_default();
        assert_eq!(step.code.as_deref(), Some("row-unreadable"));
        assert_eq!(step.text, "DELETE it");
        assert!(summary.headline.contains("the relay stopped: event e-1"), "{}", summary.headline);
    }

    #[test]
    fn an_old_horizon_is_a_warning_before_a_recovery_needs_a_time() {
        for (age, expected) in [(999_999_999, false), (1_000_000_000, true)] {
            for changes in [json!({}), json!({ "active": false }), json!({ "lost": true })] {
                let mut changes = changes;
                changes["settled_transactions"] = json!(age);
                let summary = Summary::of(&report(changes));
                let is_warned = summary.headline.contains("transactions have run since");
                assert_eq!(is_warned, expected, "{summary:?}");
                assert!(!expected || summary.severity >= Severity::Attention, "{summary:?}");
            }
        }
    }

    #[test]
    fn what_helps_one_shard_names_that_shard() {
        let summary = Summary::of(&report(json!({ "active": false }))).of_shard("2/4");
        assert_eq!(advice(summary), "start the relay: walrelay run --shard 2/4");
    }

    #[test]
    fn the_headline_says_that_all_is_well_or_the_gravest_thing_and_what_helps() {
        let dispatch = |dead: u64, retrying: u64| json!({ "dispatch": { "dead": dead, "retrying": retrying } });
        let cases = [
            (json!({}), Severity::Good, "streaming, caught up, nothing parked"),
            (
                dispatch(0, 4),
                Severity::Attention,
                "streaming, 0 B behind, 4 rows parked and tried again by themselves",
            ),
            (
                dispatch(2, 4),
                Severity::Attention,
                "streaming, 0 B behind, 2 dead rows wait for a person",
            ),
            (
                json!({ "active": false, "lag_bytes": 2048 }),
                Severity::Bad,
                "nothing streams, 2.0 KiB behind",
            ),
            // Right after a reset a running relay is about to reconnect.
            (
                json!({
                    "active": false, "lag_bytes": 2048, "settled_seconds": 3.2,
                    "condition": { "phase": "streaming" }
                }),
                Severity::Attention,
                "nothing streams, 2.0 KiB behind; last progress 3 s ago",
            ),
            (
                json!({ "safe_wal_bytes": 5 << 20 }),
                Severity::Bad,
                "streaming, 0 B behind; the slot is lost after 5.0 MiB more",
            ),
            (
                json!({ "safe_wal_bytes": 60 << 20, "retained_bytes": 4 << 20 }),
                Severity::Good,
                "streaming, caught up, nothing parked",
            ),
            (
                json!({ "safe_wal_bytes": -5 }),
                Severity::Bad,
                "streaming, 0 B behind; the slot is lost after 0 B more",
            ),
            (json!({ "lost": true, "active": false }), Severity::Bad, "the slot is lost"),
            (
                json!({ "spilled": { "rows": 7, "since": "T1", "refused_at": "T2" } }),
                Severity::Bad,
                "streaming, 0 B behind; publishing fails: 7 rows are spilled and wait, the first since T1; \
                 last refused at T2",
            ),
            (
                json!({ "spilled": { "rows": 7, "since": "T1", "refused_at": null } }),
                Severity::Attention,
                "streaming, 0 B behind; 7 rows are spilled and wait to be published, the first since T1",
            ),
            (
                json!({ "relay": { "reasons": [{ "text": "nothing is stored" }, { "text": "and so on" }] } }),
                Severity::Bad,
                "streaming, 0 B behind; not ready: nothing is stored; and 1 more",
            ),
            (
                json!({ "operation": { "kind": "recovery", "text": "a recovery; it waits" } }),
                Severity::Bad,
                "not finished: a recovery; it waits",
            ),
        ];
        for (changes, tone, text) in cases {
            assert_eq!(headline(changes), (tone, text.to_owned(), tone != Severity::Good));
        }
    }

    #[test]
    fn rows_of_a_replay_in_place_are_not_called_parked() {
        let changes = json!({ "dispatch": { "retrying": 117 }, "replayed_rows": 117 });
        let told = "streaming, 0 B behind, 117 rows of a replay in place are being published";
        assert_eq!(headline(changes).1, told);
    }

    #[test]
    fn one_row_is_told_as_one() {
        let spilled = json!({ "spilled": { "rows": 1, "since": "T1", "refused_at": null } });
        for (changes, told) in [
            (
                json!({ "dispatch": { "retrying": 1 } }),
                "0 B behind, 1 row parked and tried again by itself",
            ),
            (json!({ "dispatch": { "dead": 1 } }), "caught up, 1 dead row waits for a person"),
            (spilled, "0 B behind; 1 row is spilled and waits to be published, the first since T1"),
        ] {
            assert_eq!(headline(changes).1, format!("streaming, {told}"));
        }
    }

    #[test]
    fn the_cause_is_the_headline_beside_little_room_and_when_nothing_is_settled() {
        let cases = [
            (
                json!({
                    "safe_wal_bytes": 5 << 20,
                    "spilled": { "rows": 7, "since": "T1", "refused_at": "T2", "unanswered_at": "T2" },
                }),
                Severity::Bad,
                "streaming, 0 B behind; publishing fails: 7 rows are spilled and wait, the first since T1; \
                 the last try had no answer at T2; the slot is lost after 5.0 MiB more",
            ),
            (
                json!({
                    "safe_wal_bytes": 5 << 20,
                    "relay": { "reasons": [
                        { "kind": "slot_at_risk", "text": "slot at risk: 7 bytes of WAL" },
                        { "text": "nothing is stored" },
                    ] },
                }),
                Severity::Bad,
                "streaming, 0 B behind; not ready: nothing is stored; the slot is lost after 5.0 MiB more",
            ),
            (
                json!({ "lag_bytes": 4096, "settled_at": "T3", "settled_seconds": 45.2 }),
                Severity::Attention,
                "streaming, 4.0 KiB behind; nothing further is settled since T3, 45 s ago: the oldest row that waits is \
                 neither stored nor recorded, others may be",
            ),
            (
                json!({ "lag_bytes": 4096, "settled_at": "T3", "settled_seconds": 29.0 }),
                Severity::Good,
                "streaming, 4.0 KiB behind, nothing parked",
            ),
            (
                json!({ "lag_bytes": 900, "settled_at": "T3", "settled_seconds": 45.2 }),
                Severity::Good,
                "streaming, caught up, nothing parked",
            ),
        ];
        for (changes, tone, text) in cases {
            assert_eq!(headline(changes), (tone, text.to_owned(), tone != Severity::Good));
        }
    }

    #[test]
    fn after_init_no_relay_is_said_to_reconnect() {
        let fresh = json!({ "active": false, "lag_bytes": 2048, "settled_seconds": 3.2 });
        let told = (Severity::Bad, "nothing streams, 2.0 KiB behind".to_owned(), true);
        assert_eq!(headline(fresh), told);
    }

    #[test]
    fn dead_rows_are_told_beside_what_is_graver_with_both_things_that_help() {
        let refused = json!({ "topic": "projects/p/topics/t", "code": "NOT_FOUND", "at": "T2" });
        let cases = [
            (
                json!({ "refused": refused }),
                "publishing fails: projects/p/topics/t",
                "--create-topics=projects/p/topics/t",
            ),
            (
                json!({ "safe_wal_bytes": 5 << 20 }),
                "the slot is lost after",
                "max_slot_wal_keep_size",
            ),
            (json!({ "active": false }), "nothing streams", "walrelay run"),
        ];
        for (mut changes, told, first) in cases {
            changes["dispatch"] = json!({ "dead": 2, "retrying": 3 });
            let summary = Summary::of(&report(changes));
            assert!(summary.headline.contains(told), "{}", summary.headline);
            assert!(
                summary.headline.ends_with("; 2 dead rows wait for a person"),
                "{}",
                summary.headline
            );
            let both = advice(summary);
            assert!(
                both.contains(first) && both.ends_with("; then walrelay dispatch list"),
                "{both}"
            );
        }
    }

    #[test]
    fn an_anchor_that_may_be_lost_soon_is_told_beside_everything_else() {
        let anchor = json!({ "anchor": "daily", "lost": false, "age_seconds": 90_000,
                             "retained_bytes": 490 << 20, "safe_wal_bytes": 22 << 20 });
        let told = "anchor daily retains 490 MiB, reaches back 1 d 1 h, is lost after 22 MiB more";
        let alone = Summary::of(&report(json!({ "anchors": [anchor] })));
        assert_eq!(alone.headline, format!("streaming, caught up, nothing parked; {told}"));
        assert_eq!(alone.severity, Severity::Attention);
        assert!(advice(alone).contains("walrelay anchor drop daily"));
        let both = Summary::of(&report(json!({ "anchors": [anchor], "active": false })));
        assert_eq!(both.severity, Severity::Bad);
        assert!(advice(both).contains("walrelay run; then walrelay anchor advance daily"));
        let text = sections(&report(json!({ "anchors": [anchor] })), ColourMode::Plain);
        assert!(text.contains("anchors\n  daily            retains 490 MiB"), "{text}");
        // The relay's own reason for the same anchor adds no second cause.
        let reason = json!({ "kind": "anchor_at_risk", "text": "anchor at risk: daily" });
        let asked = json!({ "anchors": [anchor], "relay": { "reasons": [reason] } });
        assert!(!Summary::of(&report(asked)).headline.contains("not ready"));
    }

    #[test]
    fn rows_that_wait_for_a_replay_in_place_are_told_with_it_and_how_to_go_on() {
        let held = |is_being_done: bool| {
            let replay = json!({ "id": "5f3a9c01", "keys": 2, "is_running": is_being_done });
            report(json!({ "dispatch": { "dead": 0, "retrying": 40 }, "paused_by": [replay] }))
        };
        let left = Summary::of(&held(false));
        let told =
            "streaming, 0 B behind, 40 rows parked; those of 2 key(s) wait for replay 5f3a9c01";
        assert_eq!(left.headline, told);
        let step = advice(left);
        for word in ["walrelay replay resume 5f3a9c01", "walrelay replay cancel 5f3a9c01"] {
            assert!(step.contains(word), "{step}");
        }
        let running = advice(Summary::of(&held(true)));
        assert!(running.starts_with("they continue when it is done"), "{running}");
        let text = sections(&held(true), ColourMode::Plain);
        assert!(text.contains("  paused keys      2 key(s) wait for replay 5f3a9c01\n"), "{text}");
        // Dead rows come first, because they need a person.
        let with_counts = |dead, retrying| {
            let mut report = held(false);
            let counts = report.slot.as_mut().unwrap().dispatch.as_mut().unwrap();
            (counts.dead, counts.retrying) = (dead, retrying);
            report
        };
        let both = "1 dead row waits for a person; 2 key(s) wait for replay 5f3a9c01";
        assert!(Summary::of(&with_counts(1, 40)).headline.ends_with(both));
        // An error of before does not hide what holds the rows now.
        let refused = json!({ "topic": "t", "code": "PERMISSION_DENIED", "at": "T" });
        let mut stale = held(false);
        stale.slot.as_mut().unwrap().refused = serde_json::from_value(refused).unwrap();
        assert!(Summary::of(&stale).headline.contains("; 2 key(s) wait for replay 5f3a9c01"));
        assert!(advice(Summary::of(&stale)).contains("; then no process runs it: walrelay replay"));
        // The replay was killed before it recorded a row, but its keys are paused.
        let alone = "streaming, caught up; 2 key(s) wait for replay 5f3a9c01";
        assert_eq!(Summary::of(&with_counts(0, 0)).headline, alone);
    }

    #[test]
    fn of_several_shards_the_gravest_is_told_and_each_has_a_line() {
        let of = |changes: [Value; 3]| {
            let names = ["0/4", "1/4", "2/4"].into_iter();
            let shards: Vec<_> = names.zip(changes).map(|(name, it)| shard(name, it)).collect();
            let Summary { headline, next_step, .. } = Summary::worst_of_shards(&shards);
            (headline, next_step.is_some())
        };
        let (good, gone) = (json!({}), json!({ "active": false }));
        let dead = json!({ "dispatch": { "dead": 2, "retrying": 0 } });
        assert_eq!(
            of([good.clone(), good.clone(), good.clone()]),
            ("all 3 shards are streaming, nothing parked".to_owned(), false)
        );
        assert_eq!(
            of([dead.clone(), gone.clone(), good.clone()]),
            ("shard 1/4: nothing streams, 0 B behind".to_owned(), true)
        );
        assert_eq!(
            of([gone.clone(), good, gone]),
            (
                "shard 0/4: nothing streams, 0 B behind; 1 more of 3 shards is equally bad"
                    .to_owned(),
                true
            )
        );
        let first = StatusReport { headline: "two dead".to_owned(), ..shard("0/2", dead) };
        let missing = StatusReport {
            shard: Some("1/2".to_owned()),
            headline: "slot is missing".to_owned(),
            severity: Severity::Bad,
            next_step: Some(NextStep::new("make it")),
            ..StatusReport::default()
        };
        let shards = vec![first, missing];
        assert_eq!(Summary::worst_of_shards(&shards).severity, Severity::Bad);
        let all = StatusReport { shards, ..StatusReport::default() };
        let text = sections(&all, ColourMode::Plain);
        assert!(text.contains("  0/2    two dead\n  1/2    slot is missing\n"), "{text}");
    }

    #[test]
    fn what_is_not_finished_is_told_with_the_command_that_finishes_it() {
        let operation = |kind: &str, command: &str, is_anchor_gone: bool| {
            json!({ "operation": {
                "kind": kind, "text": "a change", "finished_by": command, "is_anchor_gone": is_anchor_gone,
            } })
        };
        let resharding = || operation("resharding", "walrelay reshard --shards 4", false);
        let reshard = "this finishes it: walrelay reshard --shards 4";
        assert_eq!(advice(Summary::of(&report(resharding()))), reshard);
        let worst_of_shards = |changes| {
            let idle = shard("0/2", json!({ "active": false }));
            advice(Summary::worst_of_shards(&[idle, shard("1/2", changes)]))
        };
        assert_eq!(worst_of_shards(resharding()), reshard);
        let must_abandon = "its anchor is gone, so this cancels it: walrelay run";
        let at_work = json!({ "kind": "recovery", "text": "a recovery", "finished_by": null });
        let at_work = report(json!({ "operation": at_work }));
        assert_eq!(advice(Summary::of(&at_work)), "the relay that streams the slot finishes it");
        let vain = operation("reset", "walrelay run", true);
        assert_eq!(advice(Summary::of(&report(vain))), must_abandon);
        let run = "start the relay: walrelay run --shard 0/2";
        assert_eq!(worst_of_shards(operation("reset", "walrelay run", false)), run);
    }

    #[test]
    fn confirmed_log_that_is_kept_is_told_with_the_transaction_that_keeps_it() {
        let pinned = |bytes: u64, by: Value| {
            let changes = json!({ "pinned_bytes": bytes, "pinned_by": by });
            let text = sections(&report(changes), ColourMode::Plain);
            text.lines().find(|line| line.contains("of that confirmed")).map(str::to_owned)
        };
        assert_eq!(pinned(1 << 20, json!({ "pid": 7, "seconds": 3.0 })), None);
        let cases = [
            (json!({ "pid": 7, "seconds": 3600.4 }), "for server process 7, writing for 3600 s"),
            (json!({ "pid": 7, "seconds": null }), "for server process 7"),
            (
                json!({ "prepared": "a\nb", "seconds": 9.0 }),
                "for prepared transaction a\\nb, writing for 9 s",
            ),
            (json!(null), "for a transaction that has ended by now"),
        ];
        for (by, told) in cases {
            let line = pinned(1 << 30, by).unwrap();
            assert!(line.ends_with(&format!("1.0 GiB, {told}")), "{line}");
        }
    }

    #[test]
    fn sections_show_what_there_is_and_a_key_cannot_break_its_line() {
        let relay = json!({ "relay": {
            "phase": "streaming", "ready": true, "reasons": [], "seconds_since_progress": 0.25,
            "heaviest_keys": [{ "topic": "projects/p/topics/orders", "ordering_key": "a\nb".repeat(30),
                                "bytes_per_second": 800_000, "rows_per_second": 12 }],
        }});
        let text = sections(&report(relay), ColourMode::Plain);
        for expected in [
            "slot\n",
            "  held by          server process 7\n",
            "headroom         unlimited\n",
            "dispatch state\n",
            "  phase            streaming\n",
            "781 KiB/s  orders  a\\nb",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() < 100), "{text}");
        assert!(text.contains('…'), "{text}");
        let alone = sections(&report(json!({})), ColourMode::Plain);
        assert!(!alone.contains("heaviest"), "{alone}");
    }
}
