//! Writes the tables of docs/project/benchmarks.md and the JSON file.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::clients::{PublishRound, Publishing};
use crate::drain::{DrainResult, RelayRound};
use crate::failure::Failure;
use crate::process::{Measured, Usage};
use crate::results::{
    CONSUME_DURABLE, CONSUME_DURABLE_OFFICIAL, CONSUME_FAR, CONSUME_FAR_OFFICIAL, CONSUME_HOT,
    CONSUME_OFFICIAL, Results,
};
use crate::statistics::{cpu_per_million, median, number, peak_mebibytes};
use crate::targets::consumed_per_second;

/// Writes the JSON file.
pub(crate) fn write(results: &Results, dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir)?;
    let name = results.machine.date.replace([' ', ':'], "-");
    let file = dir.join(format!("{name}.json"));
    fs::write(&file, serde_json::to_string_pretty(results)? + "\n")?;
    eprintln!("bench: wrote {}", file.display());
    Ok(())
}

/// Returns the whole report as Markdown.
pub(crate) fn markdown(results: &Results) -> String {
    let sections = [
        heading(results),
        targets(results),
        drains(results),
        lives(results),
        sharded(results),
        traced(results),
        outages(results),
        again(results),
        publishers(results),
        consumers(results),
        applied_live(results),
    ];
    sections.into_iter().filter(|section| !section.is_empty()).collect::<Vec<_>>().join("\n")
}

fn heading(results: &Results) -> String {
    let load = number(results.load_before);
    let mut text = format!("{}, load {load} at the beginning.", results.machine);
    if !results.relay_arguments.is_empty() {
        let arguments = results.relay_arguments.join(" ");
        line(&mut text, &format!(" The relay was run with `{arguments}`."));
    }
    if let Some(note) = &results.note {
        line(&mut text, &format!(" {note}"));
    }
    text + "\n"
}

fn targets(results: &Results) -> String {
    let rows = results.targets.iter().map(|verdict| {
        let is_met = if verdict.is_met { "yes" } else { "**no**" };
        vec![
            verdict.workload.to_owned(),
            verdict.target.clone(),
            verdict.measured.clone(),
            is_met.to_owned(),
        ]
    });
    table(&["Workload", "Target", "Measured", "Met"], rows)
}

fn drains(results: &Results) -> String {
    let rows = results.drains.iter().map(|drained| {
        let last = |value: fn(&DrainResult) -> f64| number(value(drained));
        let recvlogical = drained.rounds.iter().filter_map(|round| round.recvlogical);
        let recvlogical = median(recvlogical.map(|measured| measured.rows_per_second));
        let requests = drained.rounds.iter().map(|round| round.relay.requests_per_row);
        let duplicates: u64 = drained.rounds.iter().map(|round| round.relay.duplicates).sum();
        vec![
            drained.name.to_owned(),
            number(f64::from(drained.rows)),
            last(DrainResult::rows_per_second),
            number(recvlogical),
            drained.share_of_recvlogical().map_or("–".to_owned(), number),
            format!(
                "{} + {}",
                last(DrainResult::user_seconds_per_million),
                last(DrainResult::system_seconds_per_million)
            ),
            last(DrainResult::sink_seconds_per_million),
            number(drained.peak_mebibytes()),
            number(median(requests)),
            duplicates.to_string(),
        ]
    });
    let head = [
        "Backlog",
        "Rows",
        "Rows/s",
        "pg_recvlogical, rows/s",
        "Ratio",
        "CPU s per million rows, user + sys",
        "Sink's CPU s",
        "Peak MiB",
        "Requests per row",
        "Duplicates",
    ];
    table(&head, rows)
}

fn lives(results: &Results) -> String {
    let rows = results.lives.iter().map(|live| {
        let Usage { user_seconds, system_seconds, .. } = live.usage;
        vec![
            live.name.to_owned(),
            number(f64::from(live.rows)),
            number(live.rows_per_second),
            number(live.p50_millis),
            number(live.p99_millis),
            number(live.p999_millis),
            cpu_per_million(user_seconds, system_seconds, live.rows),
            number(peak_mebibytes([live.usage])),
            number(live.requests_per_row),
            live.duplicates.to_string(),
        ]
    });
    let head = [
        "Live",
        "Rows",
        "Rows/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "CPU s per million rows, user + sys",
        "Peak MiB",
        "Requests per row",
        "Duplicates",
    ];
    table(&head, rows)
}

fn sharded(results: &Results) -> String {
    let rows = results.sharded.iter().map(|sharded| {
        let of = |value: fn(&RelayRound) -> f64| median(sharded.rounds.iter().map(value));
        let per_million = 1e6 / f64::from(sharded.rows);
        let peak = peak_mebibytes(sharded.rounds.iter().map(|round| round.measured.usage));
        let duplicates: u64 = sharded.rounds.iter().map(|round| round.duplicates).sum();
        vec![
            sharded.shards.to_string(),
            number(f64::from(sharded.rows)),
            number(of(|round| round.measured.rows_per_second)),
            cpu_per_million(
                of(|round| round.measured.usage.user_seconds),
                of(|round| round.measured.usage.system_seconds),
                sharded.rows,
            ),
            number(of(|round| round.sink.user_seconds + round.sink.system_seconds) * per_million),
            number(peak),
            number(of(|round| round.requests_per_row)),
            duplicates.to_string(),
        ]
    });
    let head = [
        "Shards, a relay each",
        "Rows",
        "Rows/s together",
        "CPU s of all relays per million rows, user + sys",
        "Sink's CPU s",
        "Peak MiB of one relay",
        "Requests per row",
        "Duplicates",
    ];
    table(&head, rows)
}

fn traced(results: &Results) -> String {
    let rows = results.traced.iter().map(|it| {
        let peak = peak_mebibytes(it.rounds.iter().map(|round| round.on.measured.usage));
        let spans = it.rounds.iter().map(|round| round.spans).max().unwrap_or(0);
        let duplicates: u64 = it.rounds.iter().map(|round| round.on.duplicates).sum();
        vec![
            it.name.to_owned(),
            number(f64::from(it.rows)),
            number(it.rows_per_second()),
            number(it.share()),
            number(it.cpu_share()),
            number(median(it.rounds.iter().map(|round| round.on.requests_per_row))),
            spans.to_string(),
            number(peak),
            duplicates.to_string(),
        ]
    });
    let head = [
        "With telemetry",
        "Rows",
        "Rows/s",
        "Ratio to without",
        "Ratio of CPU time",
        "Requests per row",
        "Spans that arrived, at most",
        "Peak MiB",
        "Duplicates",
    ];
    table(&head, rows)
}

fn outages(results: &Results) -> String {
    let rows = results.outages.iter().map(|outage| {
        let per_million =
            |usage: Usage| cpu_per_million(usage.user_seconds, usage.system_seconds, outage.rows);
        let peak = |usage: Usage| number(peak_mebibytes([usage]));
        vec![
            outage.name.to_owned(),
            number(f64::from(outage.rows)),
            number(f64::from(outage.keys)),
            number(outage.live_rows_per_second),
            number(outage.spilled_rows_per_second),
            number(outage.ready_seconds),
            number(outage.redelivered_rows_per_second),
            per_million(outage.spilling),
            per_million(outage.redelivering),
            peak(outage.spilling),
            peak(outage.redelivering),
            outage.duplicates.to_string(),
        ]
    });
    let head = [
        "Outage",
        "Rows",
        "Keys",
        "Live, rows/s",
        "Spilled, rows/s",
        "Start to ready, s",
        "Redelivered, rows/s",
        "CPU s per million spilled, user + sys",
        "CPU s per million redelivered",
        "Peak MiB spilling",
        "Peak MiB redelivering",
        "Duplicates",
    ];
    table(&head, rows)
}

fn again(results: &Results) -> String {
    let rows = results.again.iter().map(|it| {
        let Usage { user_seconds, system_seconds, .. } = it.again.usage;
        vec![
            it.name.to_owned(),
            number(f64::from(it.rows)),
            number(it.live.rows_per_second),
            number(it.again.rows_per_second),
            number(it.again.rows_per_second / it.live.rows_per_second),
            cpu_per_million(user_seconds, system_seconds, it.rows),
            number(peak_mebibytes([it.again.usage])),
            it.duplicates.to_string(),
        ]
    });
    let head = [
        "Again",
        "Rows",
        "Live, rows/s",
        "Again, rows/s",
        "Ratio",
        "CPU s per million, user + sys",
        "Peak MiB",
        "Duplicates",
    ];
    table(&head, rows)
}

fn publishers(results: &Results) -> String {
    let rows = results.publishers.iter().map(|published| {
        let of = |value: fn(&PublishRound) -> f64| median(published.rounds.iter().map(value));
        let Publishing { name, options, .. } = published.publishing;
        let per_million = 1e6 / f64::from(options.messages);
        let peak = peak_mebibytes(published.rounds.iter().map(|round| round.measured.usage));
        vec![
            name.to_owned(),
            number(f64::from(options.messages)),
            options.batch.to_string(),
            options.outstanding.to_string(),
            number(of(|round| round.measured.rows_per_second)),
            cpu_per_million(
                of(|round| round.measured.usage.user_seconds),
                of(|round| round.measured.usage.system_seconds),
                options.messages,
            ),
            number(of(|round| round.sink.user_seconds + round.sink.system_seconds) * per_million),
            number(peak),
        ]
    });
    let head = [
        "Publisher",
        "Messages",
        "Per request",
        "Outstanding",
        "Messages/s",
        "CPU s per million, user + sys",
        "Sink's CPU s",
        "Peak MiB",
    ];
    table(&head, rows)
}

fn consumers(results: &Results) -> String {
    let rows = results.consumers.iter().map(|consumed| {
        let of = |value: fn(&Measured) -> f64| median(consumed.rounds_measured.iter().map(value));
        let peak = peak_mebibytes(consumed.rounds_measured.iter().map(|round| round.usage));
        vec![
            consumed.consume.name.to_owned(),
            consumed.server.clone(),
            number(f64::from(consumed.events)),
            number(of(|round| round.rows_per_second)),
            cpu_per_million(
                of(|round| round.usage.user_seconds),
                of(|round| round.usage.system_seconds),
                consumed.events,
            ),
            number(median(consumed.events_per_transaction.iter().copied())),
            number(peak),
        ]
    });
    let head = [
        "Consumer",
        "Server",
        "Events",
        "Events/s",
        "CPU s per million, user + sys",
        "Events a transaction",
        "Peak MiB",
    ];
    table(&head, rows) + &against_official(results)
}

/// Shows the judged ratio with two further ratios. With a database 3 ms away, one transaction per
/// message mostly waits. Without a disk, one transaction per message looks better than in
/// production.
fn against_official(results: &Results) -> String {
    let ratio = |ours, official| {
        let rate = |name| consumed_per_second(results, name);
        Some(number(rate(ours)? / rate(official)?))
    };
    let cached = ratio(CONSUME_HOT, CONSUME_OFFICIAL).map(|ratio| {
        format!("{ratio} × with fsync off, where a transaction costs nearly nothing: not judged")
    });
    let durable = ratio(CONSUME_DURABLE, CONSUME_DURABLE_OFFICIAL)
        .map(|ratio| format!("{ratio} × where a commit waits for the disk: judged"));
    let far = ratio(CONSUME_FAR, CONSUME_FAR_OFFICIAL)
        .map(|ratio| format!("{ratio} × with the database 3 ms away"));
    let ratios: Vec<String> = durable.into_iter().chain(far).chain(cached).collect();
    match ratios.is_empty() {
        true => String::new(),
        false => format!("\nAgainst a transaction for each message: {}.\n", ratios.join("; ")),
    }
}

fn applied_live(results: &Results) -> String {
    let rows = results.applied_live.iter().map(|live| {
        let Usage { user_seconds, system_seconds, .. } = live.usage;
        vec![
            live.name.to_owned(),
            number(f64::from(live.events)),
            number(live.p50_millis),
            number(live.p99_millis),
            cpu_per_million(user_seconds, system_seconds, live.events),
            number(peak_mebibytes([live.usage])),
        ]
    });
    let head =
        ["Applied live", "Events", "p50 ms", "p99 ms", "CPU s per million, user + sys", "Peak MiB"];
    table(&head, rows)
}

/// Formats a table whose first column is text and whose other columns are numbers. Returns an empty
/// string without rows.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    line(&mut text, &format!("| {} |\n", head.join(" | ")));
    line(&mut text, &format!("| ---{} |\n", " | ---:".repeat(head.len() - 1)));
    for row in rows {
        line(&mut text, &format!("| {} |\n", row.join(" | ")));
    }
    text
}

fn line(text: &mut String, addition: &str) {
    text.write_str(addition).expect("a String takes whatever is written");
}
