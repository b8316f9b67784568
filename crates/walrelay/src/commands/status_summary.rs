//! Formats a status report: a headline, the recommended next step, and the details in sections.
//! Pure: from JSON to text.

mod anchors;
mod stall_cause;

use serde_json::{Map, Value};
use walrelay_pg_replication::is_little_headroom;

use self::stall_cause::{Cause, cause, first_abandoned_replay, noted, pending_row_counts, replays};
use crate::output::{ColourMode, Tone, human_bytes, shortened, visible};

/// Below this much WAL until the slot is lost, or below a quarter of the slot's limit, somebody has
/// to act now. `check` and the alert use the same thresholds.
const ROOM_BYTES_MIN: i64 = 1 << 30;

/// Most characters of a heavy key that are shown.
const KEY_CHARACTERS: usize = 40;

/// A command for all shards, which takes no `--shard`.
const RESHARD: &str = "walrelay reshard";

/// Lists the rows that need a person.
const LIST: &str = "walrelay dispatch list";

/// Returns the next step for an unfinished operation.
pub(super) fn finishing(command: &str) -> String {
    format!("this finishes it: {command}")
}

/// Returns the next step for the unfinished operation in the report.
fn finishing_operation(report: &Map<String, Value>) -> String {
    let command = report.get("finished_by").and_then(Value::as_str).unwrap_or("walrelay run");
    match report.get("is_vain") == Some(&Value::Bool(true)) {
        true => format!("its anchor is gone, so this gives it up: {command}"),
        false => finishing(command),
    }
}

/// The status in short: headline and recommended next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    tone: Tone,
    /// One line of text.
    pub(super) headline: String,
    /// The recommended next step, or none.
    pub(super) advice: Option<String>,
}

impl Standing {
    /// Summarizes a report: its worst problem, plus dead rows and anchors at risk.
    pub(super) fn of(report: &Map<String, Value>) -> Self {
        Self::gravest(report).with_dead_rows(report).with_anchors(report)
    }

    /// Adds an anchor that may be lost soon, in addition to any other problem.
    fn with_anchors(self, report: &Map<String, Value>) -> Self {
        let Some((told, step)) = anchors::at_risk(report, ROOM_BYTES_MIN) else { return self };
        Self {
            tone: if self.rank() == 0 { Tone::Attention } else { self.tone },
            headline: format!("{}; {told}", self.headline),
            advice: Some(
                self.advice.map_or_else(|| step.clone(), |it| format!("{it}; then {step}")),
            ),
        }
    }

    /// Adds dead rows, which need a person in addition to any other problem.
    fn with_dead_rows(self, report: &Map<String, Value>) -> Self {
        let dead = report.get("dispatch").and_then(|counts| counts.get("dead")?.as_u64());
        let Some(dead) = dead.filter(|dead| *dead > 0) else { return self };
        let told = needs_person_text(report, dead);
        if self.headline.contains(&told) {
            return self;
        }
        let list = |advice| format!("{advice}; then {LIST}");
        Self {
            headline: format!("{}; {told}", self.headline),
            advice: Some(self.advice.map_or_else(|| LIST.to_owned(), list)),
            ..self
        }
    }

    fn gravest(report: &Map<String, Value>) -> Self {
        let number = |name: &str| report.get(name).and_then(Value::as_i64);
        let count = |status: &str| {
            report.get("dispatch").and_then(|counts| counts.get(status)?.as_u64()).unwrap_or(0)
        };
        let lag = report.get("lag_bytes").and_then(Value::as_u64).unwrap_or(0);
        let streams = report.get("active") == Some(&Value::Bool(true));
        let behind = format!("{} behind", human_bytes(lag));
        let flow = format!("{}, {behind}", if streams { "streaming" } else { "nothing streams" });
        let stands = |tone, headline, advice: Option<&str>| Self {
            tone,
            headline,
            advice: advice.map(str::to_owned),
        };

        if report.get("lost") == Some(&Value::Bool(true)) {
            let advice =
                Some("walrelay slot recover (do not run init, which would give its rows up)");
            return stands(Tone::Bad, "the slot is lost".to_owned(), advice);
        }
        if let Some(what) = report.get("operation").and_then(Value::as_str) {
            let advice = finishing_operation(report);
            return stands(Tone::Bad, format!("not finished: {what}"), Some(&advice));
        }
        let retained = report.get("retained_bytes").and_then(Value::as_u64);
        let is_little = |room: &i64| is_little_headroom(*room, retained, ROOM_BYTES_MIN);
        if let Some(room) = number("safe_wal_bytes").filter(is_little) {
            let left = human_bytes(u64::try_from(room).unwrap_or(0));
            let raise = "walrelay check, which says how to raise max_slot_wal_keep_size";
            let (why, advice) = match (streams, cause(report)) {
                (false, None) => (String::new(), "start the relay: walrelay run".to_owned()),
                (true, None) => (String::new(), raise.to_owned()),
                (_, Some(Cause { told, advice, .. })) => {
                    (format!("; {told}"), format!("{raise}; then {advice}"))
                }
            };
            let headline = format!("{flow}{why}; the slot is lost after {left} more");
            return stands(Tone::Bad, headline, Some(&advice));
        }
        if let Some(Cause { tone, told, advice }) = cause(report) {
            return stands(tone, format!("{flow}; {told}"), Some(&advice));
        }
        match (streams, count("dead"), count("retrying")) {
            (false, ..) if let Some(seconds) = seconds_since_recent_record(report) => stands(
                Tone::Attention,
                format!("{flow}; the record of the slot was written {seconds:.0} s ago"),
                Some(
                    "a relay that runs reconnects within seconds; if none runs, start it: walrelay run",
                ),
            ),
            (false, ..) => stands(Tone::Bad, flow, Some("start the relay: walrelay run")),
            (true, 0, parked) if let Some(held) = held(report).next() => {
                let headline = format!("{flow}{}", held.told_with(parked));
                stands(Tone::Attention, headline, Some(&held.advice()))
            }
            (true, 0, 0) if let Some((told, advice)) = first_abandoned_replay(report) => {
                stands(Tone::Attention, format!("{flow}, nothing parked; {told}"), Some(&advice))
            }
            (true, 0, 0) => stands(Tone::Good, format!("{flow}, nothing parked"), None),
            (true, 0, parked) => stands(
                Tone::Attention,
                match parked {
                    1 => format!("{flow}, 1 row parked and tried again by itself"),
                    _ => format!("{flow}, {parked} rows parked and tried again by themselves"),
                },
                Some("to see why: walrelay dispatch list --status retrying"),
            ),
            (true, dead, _) => {
                let headline = format!("{flow}, {}", needs_person_text(report, dead));
                stands(Tone::Attention, headline, Some(LIST))
            }
        }
    }

    /// Reads the summary of a report that already contains one, as the report of a shard does.
    pub(super) fn told(report: &Map<String, Value>) -> Self {
        let text =
            |name: &str| report.get(name).and_then(Value::as_str).filter(|it| !it.is_empty());
        let found = match report.get("shards").and_then(Value::as_array) {
            Some(shards) => {
                shards.iter().filter_map(Value::as_object).map(Self::told).max_by_key(Self::rank)
            }
            // A report without dispatch state is an error report.
            None if report.contains_key("dispatch") => Some(Self::of(report)),
            None => None,
        };
        let tone = found.map_or(Tone::Bad, |standing| standing.tone);
        let headline = text("headline").unwrap_or_default().to_owned();
        Self { tone, headline, advice: text("advice").map(str::to_owned) }
    }

    /// Summarizes all shards: the worst problem, and how many shards have one as bad.
    pub(super) fn worst_of_shards(shards: &[(String, Self)]) -> Self {
        let gravest = shards.iter().map(|(_, standing)| standing.rank()).max().unwrap_or(0);
        let concerned = shards.iter().filter(|(_, standing)| standing.rank() == gravest);
        let mut concerned: Vec<_> = concerned.collect();
        // A change of the shard count explains the problems of single shards, so it comes first.
        concerned.sort_by_key(|(_, standing)| !standing.is_of_all());
        let count = shards.len();
        let Some((name, first)) = concerned.first() else {
            return Self { tone: Tone::Bad, headline: "no shards".to_owned(), advice: None };
        };
        if gravest == 0 {
            let headline = format!("all {count} shards are streaming, nothing parked");
            return Self { tone: Tone::Good, headline, advice: None };
        }
        let others = match concerned.len() - 1 {
            0 => String::new(),
            others => format!("; as bad are {others} more of {count} shards"),
        };
        Self {
            tone: first.tone,
            headline: format!("shard {name}: {}{others}", first.headline),
            advice: first.clone().of_shard(name).advice,
        }
    }

    /// Adds `--shard` to the advice, unless the advice is about all shards.
    pub(super) fn of_shard(self, name: &str) -> Self {
        if self.is_of_all() {
            return self;
        }
        let advice = self.advice.map(|advice| format!("with --shard {name}: {advice}"));
        Self { advice, ..self }
    }

    /// Returns the summary unchanged if it reports a problem. Otherwise adds an unfinished replay
    /// or backfill of the whole outbox that no process runs.
    pub(super) fn or_abandoned_replay(self, report: &Map<String, Value>) -> Self {
        match first_abandoned_replay(report).filter(|_| self.rank() == 0) {
            Some((told, advice)) => Self {
                tone: Tone::Attention,
                headline: format!("{}; {told}", self.headline),
                advice: Some(advice),
            },
            None => self,
        }
    }

    /// Returns whether the advice is about all shards.
    fn is_of_all(&self) -> bool {
        self.advice.as_ref().is_some_and(|advice| advice.contains(RESHARD))
    }

    /// Returns the severity, for comparisons.
    const fn rank(&self) -> u8 {
        match self.tone {
            Tone::Good | Tone::Heading => 0,
            Tone::Attention => 1,
            Tone::Bad => 2,
        }
    }

    /// Formats headline and advice for printing.
    pub(super) fn text(&self, paint: ColourMode) -> String {
        let headline = paint.text(self.tone, &self.headline);
        match &self.advice {
            Some(advice) => format!("{headline}\n  {advice}\n"),
            None => format!("{headline}\n"),
        }
    }
}

/// Longest time that a running relay needs to stream again after a reset or a lost connection.
const RECONNECTS_WITHIN_SECONDS: f64 = 15.0;

/// Returns the seconds since the slot's record was written, if a running relay may still be
/// reconnecting.
fn seconds_since_recent_record(report: &Map<String, Value>) -> Option<f64> {
    let seconds = report.get("settled_seconds")?.as_f64()?;
    (seconds < RECONNECTS_WITHIN_SECONDS).then_some(seconds)
}

/// Describes the dead rows, and keys paused for a replay that no process runs. Both need a person.
fn needs_person_text(report: &Map<String, Value>, dead: u64) -> String {
    let dead = match dead {
        1 => "1 dead row waits".to_owned(),
        _ => format!("{dead} dead rows wait"),
    };
    let left = held(report).find(|held| !held.is_being_done);
    let left = left.map_or_else(String::new, |held| format!("; {}", held.text()));
    format!("{dead} for a person{left}")
}

/// Formats the details of a report in sections. Missing fields are left out.
pub(super) fn sections(report: &Map<String, Value>, paint: ColourMode) -> String {
    let mut text = shards(report, paint);
    let is_divided = !text.is_empty();
    let mut section = |title: &str, lines: Vec<(&str, String)>| {
        if lines.is_empty() {
            return;
        }
        text.push_str(&format!("{}\n", paint.text(Tone::Heading, title)));
        for (name, value) in lines {
            text.push_str(&format!("  {name:<16} {value}\n"));
        }
    };
    if report.contains_key("wal_end") {
        section("slot", slot(report));
        section("log", log(report));
        let anchors = anchors::lines(report);
        section("anchors", anchors.iter().map(|(name, line)| (&**name, line.clone())).collect());
    } else if let Some(name) = field(report, "slot").filter(|_| report.contains_key("dispatch")) {
        let state = "is not there: it is being replaced".to_owned();
        section("slot", vec![("name", plain(name)), ("state", state)]);
    }
    if report.contains_key("dispatch") {
        section("dispatch state", dispatch(report));
    }
    if report.contains_key("dispatch") || is_divided {
        section("replays", replays(report));
    }
    section("rebuilds", rebuilds(report));
    if let Some(relay) = report.get("relay") {
        section("relay", own(relay));
        section("heaviest keys", heaviest(relay));
    } else if let Some(noted) = noted(report) {
        section("relay", own(noted));
    }
    text
}

/// Returns the consumers with an unfinished rebuild, each with the next step.
fn rebuilds(report: &Map<String, Value>) -> Vec<(&str, String)> {
    let all = report.get("rebuilds").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|one| Some((one["consumer"].as_str()?, plain(&one["report"])))).collect()
}

/// Returns a line for each shard, or nothing without shards. `--shard` shows the details of one.
fn shards(report: &Map<String, Value>, paint: ColourMode) -> String {
    let Some(all) = report.get("shards").and_then(Value::as_array) else { return String::new() };
    let mut text = format!("{}\n", paint.text(Tone::Heading, "shards"));
    for shard in all.iter().filter_map(Value::as_object) {
        let name = field(shard, "shard").map(plain).unwrap_or_default();
        let standing = Standing::told(shard);
        text.push_str(&format!("  {name:<6} {}\n", paint.text(standing.tone, &standing.headline)));
    }
    text.push_str("  one of them: walrelay status --shard I/N\n");
    text
}

fn field<'a>(report: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    report.get(name).filter(|value| !value.is_null())
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), visible)
}

fn slot(report: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let held = field(report, "active_pid").map(|pid| format!("server process {pid}"));
    let mut lines = vec![("held by", held.unwrap_or_else(|| "nobody".to_owned()))];
    let fields = [
        ("name", "slot"),
        ("state", "wal_status"),
        ("invalidated", "invalidation_reason"),
        ("failover", "failover"),
    ];
    lines.extend(
        fields.iter().filter_map(|(shown, name)| Some((*shown, plain(field(report, name)?)))),
    );
    lines
}

fn log(report: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let bytes = |name| field(report, name).and_then(Value::as_u64).map(human_bytes);
    let seconds = field(report, "lag_seconds").and_then(Value::as_f64);
    let since = seconds.map_or_else(String::new, |seconds| format!(", {seconds:.1} s"));
    let lost = report.get("lost") == Some(&Value::Bool(true));
    let room = match field(report, "safe_wal_bytes").and_then(Value::as_i64) {
        Some(room) => human_bytes(u64::try_from(room).unwrap_or(0)),
        None if lost => "none: it is lost".to_owned(),
        None => "unlimited".to_owned(),
    };
    let mut lines: Vec<(&str, String)> = Vec::new();
    lines.extend(bytes("lag_bytes").map(|lag| ("not confirmed", format!("{lag}{since}"))));
    lines.extend(bytes("retained_bytes").map(|kept| ("kept for it", kept)));
    lines.extend(pinned(report));
    lines.push(("room until lost", room));
    lines.extend(budget(report));
    let positions = [
        ("end", "wal_end"),
        ("confirmed", "confirmed_flush_lsn"),
        ("kept from", "restart_lsn"),
        ("settled", "settled_lsn"),
        ("settled at", "settled_at"),
    ];
    lines.extend(
        positions.iter().filter_map(|(shown, name)| Some((*shown, plain(field(report, name)?)))),
    );
    lines
}

/// Returns `--wal-budget` as given to this command, and the server's limit.
fn budget(report: &Map<String, Value>) -> Option<(&'static str, String)> {
    let bound = match report.get("wal_bound_bytes")?.as_u64() {
        Some(bound) => format!("the server keeps {} for a slot", human_bytes(bound)),
        None => "the server sets no bound".to_owned(),
    };
    let budget = match report.get("wal_budget_bytes")?.as_u64() {
        Some(budget) => human_bytes(budget),
        None => "off".to_owned(),
    };
    Some(("--wal-budget", format!("{budget}; {bound}")))
}

/// Returns the WAL that is retained although it is confirmed, and the transaction that retains it.
/// A little is always retained, because the server records the running transactions only every few
/// seconds.
fn pinned(report: &Map<String, Value>) -> Option<(&'static str, String)> {
    const WORTH_TELLING: u64 = 64 << 20;
    let bytes = field(report, "pinned_bytes")?.as_u64().filter(|bytes| *bytes >= WORTH_TELLING)?;
    let by = field(report, "pinned_by");
    let who = by.map_or_else(
        || "a transaction that has ended by now".to_owned(),
        |by| match (by["pid"].as_i64(), by["prepared"].as_str()) {
            (_, Some(name)) => format!("prepared transaction {}", visible(name)),
            (pid, None) => format!("server process {}", pid.unwrap_or_default()),
        },
    );
    let since = by.and_then(|by| by["seconds"].as_f64());
    let since = since.map_or_else(String::new, |seconds| format!(", writing for {seconds:.0} s"));
    Some(("of that confirmed", format!("{}, for {who}{since}", human_bytes(bytes))))
}

fn dispatch(report: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let count = |name: &str| report.get("dispatch")?.get(name).map(Value::to_string);
    let statuses = ["dead", "retrying", "published", "discarded"];
    let mut lines: Vec<(&str, String)> =
        statuses.iter().filter_map(|name| Some((*name, count(name)?))).collect();
    lines.extend(pending_row_counts(report));
    lines.extend(held(report).map(|held| ("held", held.text())));
    lines
}

/// Keys whose rows wait for a replay in place.
struct Held {
    keys: u64,
    /// The command that runs the replay, `replay` or `backfill`.
    command: String,
    id: String,
    is_being_done: bool,
}

impl Held {
    fn text(&self) -> String {
        let Self { keys, command, id, .. } = self;
        format!("{keys} key(s) wait for {command} {id}")
    }

    /// Formats the keys together with the parked rows, most of which belong to them.
    fn told_with(&self, parked: u64) -> String {
        match parked {
            0 => format!("; {}", self.text()),
            1 => format!(", 1 row parked; that of {}", self.text()),
            _ => format!(", {parked} rows parked; those of {}", self.text()),
        }
    }

    fn advice(&self) -> String {
        let Self { id, is_being_done, .. } = self;
        match is_being_done {
            true => format!(
                "they go on when it is done; to give it up instead, stop it, then: walrelay replay cancel {id}"
            ),
            false => format!(
                "nobody does it: walrelay replay resume {id} goes on, walrelay replay cancel {id} gives it up"
            ),
        }
    }
}

fn held(report: &Map<String, Value>) -> impl Iterator<Item = Held> {
    let all = report.get("held").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|one| {
        Some(Held {
            keys: one["keys"].as_u64()?,
            command: one["command"].as_str().map(visible)?,
            id: one["id"].as_str().map(visible)?,
            is_being_done: one["is_being_done"].as_bool()?,
        })
    })
}

fn own(relay: &Value) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let mut put = |shown, value: Option<String>| lines.extend(value.map(|value| (shown, value)));
    put("unreachable", relay.get("unreachable").map(plain));
    put("phase", relay.get("phase").map(plain));
    put(
        "ready",
        relay
            .get("ready")
            .and_then(Value::as_bool)
            .map(|ready| if ready { "yes".to_owned() } else { "no".to_owned() }),
    );
    for reason in relay.get("reasons").and_then(Value::as_array).into_iter().flatten() {
        put("not ready", Some(plain(reason)));
    }
    let silent = relay.get("seconds_since_progress").and_then(Value::as_f64);
    put("settled last", silent.map(|seconds| format!("{seconds:.1} s ago")));
    lines
}

fn heaviest(relay: &Value) -> Vec<(&'static str, String)> {
    let keys = relay.get("heaviest_keys").and_then(Value::as_array);
    let line = |key: &Value| {
        let topic = key["topic"].as_str().unwrap_or_default();
        let topic = topic.rsplit('/').next().unwrap_or(topic);
        let rate = human_bytes(key["bytes_per_second"].as_u64().unwrap_or(0));
        let name = visible(key["ordering_key"].as_str().unwrap_or_default());
        ("", format!("{rate:>10}/s  {topic}  {}", shortened(&name, KEY_CHARACTERS)))
    };
    keys.into_iter().flatten().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the report of a streaming relay, with changes.
    fn report(changes: Value) -> Map<String, Value> {
        let mut report = json!({
            "slot": "walrelay", "active": true, "active_pid": 7, "lost": false, "lag_bytes": 0,
            "safe_wal_bytes": null, "wal_end": "0/2",
            "dispatch": { "dead": 0, "retrying": 0, "published": 3, "discarded": 0 },
        });
        let all = report.as_object_mut().unwrap();
        all.extend(changes.as_object().unwrap().clone());
        all.clone()
    }

    fn headline(changes: Value) -> (Tone, String, bool) {
        let standing = Standing::of(&report(changes));
        (standing.tone, standing.headline, standing.advice.is_some())
    }

    #[test]
    fn what_helps_one_shard_names_that_shard() {
        let standing = Standing::of(&report(json!({ "active": false }))).of_shard("2/4");
        let advice = standing.advice.unwrap_or_default();
        assert_eq!(advice, "with --shard 2/4: start the relay: walrelay run");
    }

    #[test]
    fn the_headline_says_that_all_is_well_or_the_gravest_thing_and_what_helps() {
        let dispatch = |dead: u64, retrying: u64| json!({ "dispatch": { "dead": dead, "retrying": retrying } });
        let cases = [
            (json!({}), Tone::Good, "streaming, 0 B behind, nothing parked"),
            (
                dispatch(0, 4),
                Tone::Attention,
                "streaming, 0 B behind, 4 rows parked and tried again by themselves",
            ),
            (
                dispatch(2, 4),
                Tone::Attention,
                "streaming, 0 B behind, 2 dead rows wait for a person",
            ),
            (
                json!({ "active": false, "lag_bytes": 2048 }),
                Tone::Bad,
                "nothing streams, 2.0 KiB behind",
            ),
            // Right after a reset a running relay is about to reconnect.
            (
                json!({ "active": false, "lag_bytes": 2048, "settled_seconds": 3.2 }),
                Tone::Attention,
                "nothing streams, 2.0 KiB behind; the record of the slot was written 3 s ago",
            ),
            (
                json!({ "safe_wal_bytes": 5 << 20 }),
                Tone::Bad,
                "streaming, 0 B behind; the slot is lost after 5.0 MiB more",
            ),
            (
                json!({ "safe_wal_bytes": 60 << 20, "retained_bytes": 4 << 20 }),
                Tone::Good,
                "streaming, 0 B behind, nothing parked",
            ),
            (
                json!({ "safe_wal_bytes": -5 }),
                Tone::Bad,
                "streaming, 0 B behind; the slot is lost after 0 B more",
            ),
            (json!({ "lost": true, "active": false }), Tone::Bad, "the slot is lost"),
            (
                json!({ "spilled": { "rows": 7, "since": "T1", "refused_at": "T2" } }),
                Tone::Bad,
                "streaming, 0 B behind; publishing fails: 7 rows are spilled and wait, the first since T1; \
                 last refused at T2",
            ),
            (
                json!({ "spilled": { "rows": 7, "since": "T1", "refused_at": null } }),
                Tone::Attention,
                "streaming, 0 B behind; 7 rows are spilled and wait to be published, the first since T1",
            ),
            (
                json!({ "relay": { "reasons": ["nothing is stored", "and so on"] } }),
                Tone::Bad,
                "streaming, 0 B behind; not ready: nothing is stored; and 1 more",
            ),
            (
                json!({ "operation": "a recovery; it waits" }),
                Tone::Bad,
                "not finished: a recovery; it waits",
            ),
        ];
        for (changes, tone, text) in cases {
            assert_eq!(headline(changes), (tone, text.to_owned(), tone != Tone::Good));
        }
    }

    #[test]
    fn one_row_is_told_as_one() {
        let spilled = json!({ "spilled": { "rows": 1, "since": "T1", "refused_at": null } });
        for (changes, told) in [
            (json!({ "dispatch": { "retrying": 1 } }), ", 1 row parked and tried again by itself"),
            (json!({ "dispatch": { "dead": 1 } }), ", 1 dead row waits for a person"),
            (spilled, "; 1 row is spilled and waits to be published, the first since T1"),
        ] {
            assert_eq!(headline(changes).1, format!("streaming, 0 B behind{told}"));
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
                Tone::Bad,
                "streaming, 0 B behind; publishing fails: 7 rows are spilled and wait, the first since T1; \
                 the last try had no answer at T2; the slot is lost after 5.0 MiB more",
            ),
            (
                json!({
                    "safe_wal_bytes": 5 << 20,
                    "relay": { "reasons": ["slot at risk: 7 bytes of log", "nothing is stored"] },
                }),
                Tone::Bad,
                "streaming, 0 B behind; not ready: nothing is stored; the slot is lost after 5.0 MiB more",
            ),
            (
                json!({ "lag_bytes": 4096, "settled_at": "T3", "settled_seconds": 45.2 }),
                Tone::Attention,
                "streaming, 4.0 KiB behind; nothing further is settled since T3, 45 s ago: the oldest row that waits is \
                 neither stored nor recorded, others may be",
            ),
            (
                json!({ "lag_bytes": 4096, "settled_at": "T3", "settled_seconds": 29.0 }),
                Tone::Good,
                "streaming, 4.0 KiB behind, nothing parked",
            ),
            (
                json!({ "lag_bytes": 900, "settled_at": "T3", "settled_seconds": 45.2 }),
                Tone::Good,
                "streaming, 900 B behind, nothing parked",
            ),
        ];
        for (changes, tone, text) in cases {
            assert_eq!(headline(changes), (tone, text.to_owned(), tone != Tone::Good));
        }
    }

    #[test]
    fn dead_rows_are_told_beside_what_is_graver_with_both_things_that_help() {
        let refused = json!({ "topic": "projects/p/topics/t", "code": "NOT_FOUND", "at": "T2" });
        let cases = [
            (
                json!({ "refused": refused }),
                "publishing fails: projects/p/topics/t",
                "topics create t",
            ),
            (
                json!({ "safe_wal_bytes": 5 << 20 }),
                "the slot is lost after",
                "max_slot_wal_keep_size",
            ),
            (json!({ "active": false }), "nothing streams", "walrelay run"),
        ];
        for (mut changes, told, advice) in cases {
            changes["dispatch"] = json!({ "dead": 2, "retrying": 3 });
            let standing = Standing::of(&report(changes));
            assert!(standing.headline.contains(told), "{}", standing.headline);
            assert!(
                standing.headline.ends_with("; 2 dead rows wait for a person"),
                "{}",
                standing.headline
            );
            let both = standing.advice.unwrap();
            assert!(
                both.contains(advice) && both.ends_with("; then walrelay dispatch list"),
                "{both}"
            );
        }
    }

    #[test]
    fn an_anchor_that_may_be_lost_soon_is_told_beside_everything_else() {
        let anchor = json!({ "anchor": "daily", "lost": false, "age_seconds": 90_000,
                             "retained_bytes": 490 << 20, "safe_wal_bytes": 22 << 20 });
        let told = "anchor daily retains 490 MiB, reaches back 1 d 1 h, is lost after 22 MiB more";
        let alone = Standing::of(&report(json!({ "anchors": [anchor] })));
        assert_eq!(alone.headline, format!("streaming, 0 B behind, nothing parked; {told}"));
        assert_eq!(alone.tone, Tone::Attention);
        assert!(alone.advice.unwrap().contains("walrelay anchor drop daily"));
        let both = Standing::of(&report(json!({ "anchors": [anchor], "active": false })));
        assert_eq!(both.tone, Tone::Bad);
        assert!(both.advice.unwrap().contains("walrelay run; then walrelay anchor advance daily"));
        let text = sections(&report(json!({ "anchors": [anchor] })), ColourMode::PlainHarness);
        assert!(text.contains("anchors\n  daily            retains 490 MiB"), "{text}");
        // The relay's own reason for the same anchor adds no second cause.
        let reason = "anchor at risk: daily retains 513802240 bytes of WAL";
        let asked = json!({ "anchors": [anchor], "relay": { "reasons": [reason] } });
        assert!(!Standing::of(&report(asked)).headline.contains("not ready"));
    }

    #[test]
    fn rows_that_wait_for_a_replay_in_place_are_told_with_it_and_how_to_go_on() {
        let held = |is_being_done: bool| {
            let replay = json!({ "id": "5f3a9c01", "command": "backfill", "keys": 2, "is_being_done": is_being_done });
            report(json!({ "dispatch": { "dead": 0, "retrying": 40 }, "held": [replay] }))
        };
        let left = Standing::of(&held(false));
        let told =
            "streaming, 0 B behind, 40 rows parked; those of 2 key(s) wait for backfill 5f3a9c01";
        assert_eq!(left.headline, told);
        let advice = left.advice.unwrap();
        for word in ["walrelay replay resume 5f3a9c01", "walrelay replay cancel 5f3a9c01"] {
            assert!(advice.contains(word), "{advice}");
        }
        let running = Standing::of(&held(true)).advice.unwrap();
        assert!(running.starts_with("they go on when it is done"), "{running}");
        let text = sections(&held(true), ColourMode::PlainHarness);
        assert!(
            text.contains("  held             2 key(s) wait for backfill 5f3a9c01\n"),
            "{text}"
        );
        // Dead rows come first, because they need a person.
        let mut dead = held(false);
        dead.insert("dispatch".into(), json!({ "dead": 1, "retrying": 40 }));
        let both = "1 dead row waits for a person; 2 key(s) wait for backfill 5f3a9c01";
        assert!(Standing::of(&dead).headline.ends_with(both));
        // The replay was killed before it recorded a row, but its keys are paused.
        let mut empty = held(false);
        empty.insert("dispatch".into(), json!({ "dead": 0, "retrying": 0 }));
        let alone = "streaming, 0 B behind; 2 key(s) wait for backfill 5f3a9c01";
        assert_eq!(Standing::of(&empty).headline, alone);
    }

    #[test]
    fn of_several_shards_the_gravest_is_told_and_each_has_a_line() {
        let standing = |changes: Value| Standing::of(&report(changes));
        let of = |changes: [Value; 3]| {
            let names = ["0/4", "1/4", "2/4"].map(str::to_owned);
            let shards: Vec<_> = names.into_iter().zip(changes.map(standing)).collect();
            let Standing { headline, advice, .. } = Standing::worst_of_shards(&shards);
            (headline, advice.is_some())
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
                "shard 0/4: nothing streams, 0 B behind; as bad are 1 more of 3 shards".to_owned(),
                true
            )
        );
        let mut first = report(dead);
        first.insert("shard".into(), json!("0/2"));
        first.insert("headline".into(), json!("two dead"));
        let missing = json!({ "shard": "1/2", "headline": "slot is missing", "advice": "make it" });
        let all = json!({ "headline": "h", "shards": [first, missing] });
        let all = all.as_object().unwrap();
        assert_eq!(Standing::told(all).tone, Tone::Bad);
        let text = sections(all, ColourMode::PlainHarness);
        assert!(text.contains("  0/2    two dead\n  1/2    slot is missing\n"), "{text}");
    }

    #[test]
    fn what_is_not_finished_is_told_with_the_command_that_finishes_it() {
        let standing = |command: &str| {
            Standing::of(&report(json!({ "operation": "a change", "finished_by": command })))
        };
        let reshard = "this finishes it: walrelay reshard --shards 4";
        assert_eq!(standing("walrelay reshard --shards 4").advice.as_deref(), Some(reshard));
        let worst_of_shards = |command| {
            let idle = ("0/2".to_owned(), Standing::of(&report(json!({ "active": false }))));
            Standing::worst_of_shards(&[idle, ("1/2".to_owned(), standing(command))]).advice
        };
        assert_eq!(worst_of_shards("walrelay reshard --shards 4").as_deref(), Some(reshard));
        let vain =
            json!({ "operation": "a reset", "finished_by": "walrelay run", "is_vain": true });
        let must_abandon = "its anchor is gone, so this gives it up: walrelay run";
        assert_eq!(Standing::of(&report(vain)).advice.as_deref(), Some(must_abandon));
        let run = "with --shard 0/2: start the relay: walrelay run";
        assert_eq!(worst_of_shards("walrelay run").as_deref(), Some(run));
    }

    #[test]
    fn confirmed_log_that_is_kept_is_told_with_the_transaction_that_keeps_it() {
        let pinned = |bytes: u64, by: Value| {
            let changes = json!({ "pinned_bytes": bytes, "pinned_by": by });
            let text = sections(&report(changes), ColourMode::PlainHarness);
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
        let text = sections(&report(relay), ColourMode::PlainHarness);
        for expected in [
            "slot\n",
            "  held by          server process 7\n",
            "room until lost  unlimited\n",
            "dispatch state\n",
            "  phase            streaming\n",
            "781 KiB/s  orders  a\\nb",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() < 100), "{text}");
        assert!(text.contains('…'), "{text}");
        let alone = sections(&report(json!({})), ColourMode::PlainHarness);
        assert!(!alone.contains("heaviest"), "{alone}");
    }
}
