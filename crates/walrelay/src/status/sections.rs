//! The details of a status report, in sections. Pure: from the report to text.

use crate::config::OutputFormat;
use crate::error::printed_commands::as_given;
use serde_json::json;
use walrelay_outbox_admin::{FailingTopic, RelayAnswer, StatusReport, TableSize};
use walrelay_pubsub::split_topic;
use walrelay_relay::observe::report::{PublishedReport, RelayReport, SlotReport};

use super::stall_cause::recorded_condition;
use super::summary::{Summary, pause_text, tone_of};
use super::{anchors, consumers};
use crate::output::colour::{ColourMode, Tone};
use crate::output::text::{human_bytes, shortened, visible, whole_age};

/// Most characters of a heavy key that are shown.
const KEY_CHARACTERS: usize = 40;

/// A name and its value.
type Line = (String, String);

fn line(name: &str, value: impl Into<String>) -> Line {
    (name.to_owned(), value.into())
}

/// Formats a report: as JSON, or the summary and the details.
pub(crate) fn report_text(
    report: &StatusReport,
    format: OutputFormat,
    paint: ColourMode,
) -> String {
    match format {
        OutputFormat::Json => format!("{:#}\n", json!(report)),
        OutputFormat::Text => {
            let summary = Summary::in_report(report).text(paint);
            as_given(&format!("{summary}{}\n{}", flow(report), sections(report, paint)))
        }
    }
}

/// Formats how much is published, and how far behind that is. Empty before there is a slot.
fn flow(report: &StatusReport) -> String {
    let slots = || report.slot.iter().chain(report.shards.iter().filter_map(|it| it.slot.as_ref()));
    let Some(lag) = slots().filter_map(|slot| slot.lag_bytes).reduce(|sum, it| sum + it) else {
        return String::new();
    };
    let published = slots().filter_map(|slot| slot.published).reduce(|all, it| PublishedReport {
        rows: all.rows + it.rows,
        today: all.today + it.today,
        last_seconds: all.last_seconds.min(it.last_seconds),
    });
    let published = published.map_or_else(
        || "nothing yet".to_owned(),
        |PublishedReport { rows, today, last_seconds }| {
            let last = whole_age(last_seconds);
            let unit = if rows == 1 { "row" } else { "rows" };
            format!("{rows} {unit} since the slot is on record, {today} of them today (UTC), the last {last} ago")
        },
    );
    let is_pending = report.failing_topics.iter().any(|topic| topic.retrying > 0);
    let streams = |slot: &SlotReport| slot.active && slot.may_hold_rows();
    let oldest = report.oldest_unpublished_seconds.filter(|_| is_pending || slots().any(streams));
    let is_not_ready = |slot: &SlotReport| {
        recorded_condition(slot).is_some_and(|condition| !condition.reasons.is_empty())
    };
    // The WAL of a slot that nobody streams may be that of other tables. A reason that rows do not flow
    // is sooner known than how old they are.
    let may_wait =
        |slot: &SlotReport| slot.lag_bytes > Some(0) && (!slot.active || is_not_ready(slot));
    let behind = match oldest {
        Some(seconds) => format!("the oldest unpublished row is {} old", whole_age(seconds)),
        None if slots().any(may_wait) => {
            format!("{} of WAL are not confirmed, and may hold rows", human_bytes(lag))
        }
        None => "nothing waits".to_owned(),
    };
    format!("  {:<16} {published}\n  {:<16} {behind}\n", "published", "behind")
}

/// Formats the details of a report in sections. Sections without content are left out.
pub(crate) fn sections(report: &StatusReport, paint: ColourMode) -> String {
    let mut text = shards(report, paint);
    let mut section = |title: &str, lines: Vec<Line>| {
        if lines.is_empty() {
            return;
        }
        text.push_str(&format!("{}\n", paint.text(Tone::Heading, title)));
        let width = lines.iter().map(|(name, _)| name.chars().count()).fold(16, usize::max);
        for (name, value) in lines {
            text.push_str(&format!("  {name:<width$} {value}\n"));
        }
    };
    // Parts that may need a person come first, because a small terminal cuts the end.
    section("failing topics", report.failing_topics.iter().map(topic_line).collect());
    section("consumers", consumers::lines(report));
    section("replays", replay_lines(report));
    let rebuilds = report.rebuilds.iter();
    section("rebuilds", rebuilds.map(|it| line(&it.consumer, visible(&it.report))).collect());
    if let Some(slot) = &report.slot {
        if slot.wal_end.is_some() {
            section("slot", slot_lines(slot));
            section("WAL", wal_lines(report, slot));
            section("anchors", anchors::lines(report));
        } else if slot.dispatch.is_some() {
            let state = "is not there: it is being replaced";
            section("slot", vec![line("name", visible(&slot.slot)), line("state", state)]);
        }
        section("dispatch state", dispatch_lines(report, slot));
    }
    match (&report.relay, &report.slot) {
        (Some(RelayAnswer { unreachable, report }), _) => {
            let relay = report.as_ref();
            let mut lines: Vec<_> =
                unreachable.iter().map(|why| line("unreachable", visible(why))).collect();
            lines.extend(relay.into_iter().flat_map(relay_lines));
            section("relay", lines);
            section("heaviest keys", relay.map(heaviest).unwrap_or_default());
        }
        (None, Some(slot)) => section("relay", recorded_lines(slot)),
        (None, None) => {}
    }
    section("largest tables", table_lines(&report.tables));
    text
}

/// Returns a line for each shard, or nothing without shards. `--shard` shows the details of one.
fn shards(report: &StatusReport, paint: ColourMode) -> String {
    if report.shards.is_empty() {
        return String::new();
    }
    let mut text = format!("{}\n", paint.text(Tone::Heading, "shards"));
    for shard in &report.shards {
        let name = shard.shard.as_deref().map(visible).unwrap_or_default();
        let headline = paint.text(tone_of(shard.severity), &shard.headline);
        text.push_str(&format!("  {name:<6} {headline}\n"));
    }
    text.push_str("  one of them: walrelay status --shard I/N\n");
    text
}

const TABLES_SHOWN: usize = 4;

/// Returns the largest tables. JSON has all of them.
fn table_lines(tables: &[TableSize]) -> Vec<Line> {
    let mut largest: Vec<&TableSize> = tables.iter().collect();
    largest.sort_by_key(|table| std::cmp::Reverse(table.bytes));
    let shown = largest.into_iter().take(TABLES_SHOWN);
    shown.map(|it| line(&human_bytes(it.bytes), visible(&it.table))).collect()
}

fn slot_lines(slot: &SlotReport) -> Vec<Line> {
    let holder = slot.active_pid.map(|pid| format!("server process {pid}"));
    let mut lines = vec![line("held by", holder.unwrap_or_else(|| "nobody".to_owned()))];
    lines.push(line("name", visible(&slot.slot)));
    lines.extend(slot.wal_status.as_deref().map(|it| line("state", visible(it))));
    lines.extend(slot.invalidation_reason.as_deref().map(|it| line("invalidated", visible(it))));
    lines.extend(slot.failover.map(|it| line("failover", it.to_string())));
    lines
}

fn wal_lines(report: &StatusReport, slot: &SlotReport) -> Vec<Line> {
    let since = slot.lag_seconds.map_or_else(String::new, |seconds| format!(", {seconds:.1} s"));
    let headroom = match slot.safe_wal_bytes {
        Some(bytes) => human_bytes(u64::try_from(bytes).unwrap_or(0)),
        None if slot.lost => "none: it is lost".to_owned(),
        None => "unlimited".to_owned(),
    };
    let lag = slot.lag_bytes.map(human_bytes);
    let mut lines: Vec<Line> = Vec::new();
    lines.extend(lag.map(|lag| line("not confirmed", format!("{lag}{since}"))));
    lines.extend(slot.retained_bytes.map(|bytes| line("retained", human_bytes(bytes))));
    lines.extend(pinned(slot));
    lines.push(line("headroom", headroom));
    lines.extend(budget(report));
    let positions = [
        ("end", &slot.wal_end),
        ("confirmed", &slot.confirmed_flush_lsn),
        ("retained from", &slot.restart_lsn),
        ("settled", &slot.settled_lsn),
        ("settled at", &slot.settled_at),
    ];
    let position = |(name, at): (&str, &Option<String>)| Some(line(name, visible(at.as_ref()?)));
    lines.extend(positions.into_iter().filter_map(position));
    lines
}

/// Returns `--wal-budget` as given to this command, and the server's limit.
fn budget(report: &StatusReport) -> Option<Line> {
    let limit = match report.wal_limit_bytes {
        Some(bytes) => format!("the server retains {} for a slot", human_bytes(bytes)),
        None => "the server sets no limit".to_owned(),
    };
    let budget = report.wal_budget_bytes.map_or_else(|| "off".to_owned(), human_bytes);
    Some(line("--wal-budget", format!("{budget}; {limit}")))
}

/// Returns the WAL that is retained although it is confirmed, and the transaction that retains it.
/// A little is always retained, because the server records the running transactions only every few
/// seconds.
fn pinned(slot: &SlotReport) -> Option<Line> {
    const SHOWN_BYTES_MIN: u64 = 64 << 20;
    let bytes = slot.pinned_bytes.filter(|bytes| *bytes >= SHOWN_BYTES_MIN)?;
    let writer = slot.pinned_by.as_ref();
    let who = writer.map_or_else(
        || "a transaction that has ended by now".to_owned(),
        |writer| match &writer.prepared {
            Some(name) => format!("prepared transaction {}", visible(name)),
            None => format!("server process {}", writer.pid.unwrap_or_default()),
        },
    );
    let since = writer.and_then(|writer| writer.seconds);
    let since = since.map_or_else(String::new, |seconds| format!(", writing for {seconds:.0} s"));
    Some(line("of that confirmed", format!("{}, for {who}{since}", human_bytes(bytes))))
}

fn dispatch_lines(report: &StatusReport, slot: &SlotReport) -> Vec<Line> {
    let Some(counts) = slot.dispatch else { return Vec::new() };
    let mut lines = vec![
        line("dead", counts.dead.to_string()),
        line("retrying", counts.retrying.to_string()),
        line("published late", counts.published.to_string()),
        line("discarded", counts.discarded.to_string()),
    ];
    let pending = [
        ("of those spilled", slot.spilled.rows, "the first since", &slot.spilled.since),
        ("not due yet", slot.not_due.rows, "the last at", &slot.not_due.until),
    ];
    for (name, rows, word, moment) in pending.into_iter().filter(|(_, rows, ..)| *rows > 0) {
        let moment = moment.as_deref().map(visible);
        let moment = moment.map_or_else(String::new, |at| format!(", {word} {at}"));
        lines.push(line(name, format!("{rows}{moment}")));
    }
    lines.extend(report.paused_by.iter().map(|it| line("paused keys", pause_text(it))));
    lines
}

fn topic_line(topic: &FailingTopic) -> Line {
    let (_, name) = split_topic(&topic.topic);
    let FailingTopic { retrying, dead, oldest_seconds, last_error_code, .. } = topic;
    let code =
        last_error_code.as_deref().map_or_else(String::new, |it| format!(", {}", visible(it)));
    let age = whole_age(*oldest_seconds);
    line(&visible(name), format!("{retrying} retrying, {dead} dead, the oldest for {age}{code}"))
}

/// Lists unfinished replays to a topic, and whether a process runs each.
fn replay_lines(report: &StatusReport) -> Vec<Line> {
    let lines = report.replays.iter().map(|replay| {
        let id = visible(&replay.id);
        let how = match replay.is_being_done {
            true => "under way".to_owned(),
            false => format!(
                "no process runs it: walrelay replay resume {id}, or walrelay replay cancel {id}"
            ),
        };
        line("not finished", format!("replay {id} to {}, {how}", visible(&replay.topic)))
    });
    lines.collect()
}

fn recorded_lines(slot: &SlotReport) -> Vec<Line> {
    let Some(condition) = recorded_condition(slot) else { return Vec::new() };
    let mut lines = vec![line("phase", visible(&condition.phase))];
    let reasons = condition.reasons.iter();
    lines.extend(reasons.map(|reason| line("not ready", visible(&reason.to_string()))));
    lines
}

fn relay_lines(relay: &RelayReport) -> Vec<Line> {
    let mut lines = vec![
        line("phase", visible(&relay.phase)),
        line("ready", if relay.ready { "yes" } else { "no" }),
    ];
    let reasons = relay.reasons.iter();
    lines.extend(reasons.map(|reason| line("not ready", visible(&reason.to_string()))));
    lines.push(line("settled last", format!("{:.1} s ago", relay.seconds_since_progress)));
    let rate = relay.published_per_second;
    lines.extend(rate.map(|rate| line("publish rate", format!("{rate:.1} rows/s"))));
    lines
}

fn heaviest(relay: &RelayReport) -> Vec<Line> {
    let keys = relay.heaviest_keys.iter().map(|key| {
        let (_, topic) = split_topic(&key.topic);
        let rate = human_bytes(key.bytes_per_second);
        let name = shortened(&visible(&key.ordering_key), KEY_CHARACTERS);
        line("", format!("{rate:>10}/s  {topic}  {name}"))
    });
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_headline_are_how_much_is_published_and_how_far_behind_that_is() {
        let of = |rows: Option<u64>, lag_bytes: u64| SlotReport {
            active: true,
            lag_bytes: Some(lag_bytes),
            published: rows.map(|rows| PublishedReport { rows, today: 2, last_seconds: 75.0 }),
            ..SlotReport::default()
        };
        let report = |slot| StatusReport { headline: "h".into(), ..StatusReport::of_slot(slot) };
        let text = |it: &StatusReport| report_text(it, OutputFormat::Text, ColourMode::Plain);
        let told = text(&report(of(Some(9), 0)));
        let lines = "h\n  published        9 rows since the slot is on record, 2 of them today (UTC), the last 1 min ago\n  \
                     behind           nothing waits\n\n";
        assert!(told.starts_with(lines), "{told}");
        assert!(text(&report(of(None, 0))).contains("published        nothing yet\n"));
        let late = report(of(None, 1 << 30));
        let late = StatusReport { oldest_unpublished_seconds: Some(30.0), ..late };
        assert!(text(&late).contains("behind           the oldest unpublished row is 30 s old\n"));
        let stopped = SlotReport { active: false, ..of(None, 700) };
        let stopped = StatusReport { oldest_unpublished_seconds: Some(30.0), ..report(stopped) };
        let unknown = "behind           700 B of WAL are not confirmed, and may hold rows\n";
        assert!(text(&stopped).contains(unknown), "{}", text(&stopped));
        let shards = vec![report(of(Some(1), 0)), report(of(Some(2), 0))];
        let all = text(&StatusReport { shards, ..StatusReport::default() });
        assert!(all.contains("3 rows since the slot is on record, 4 of them"), "{all}");
        let missing = StatusReport::of_slot(SlotReport::default());
        assert!(!text(&missing).contains("behind"), "there is no slot");
    }
}
