//! Writes the tables and the JSON file of a comparison.

use std::fs;
use std::path::Path;

use crate::consumers;
use crate::drain::{DrainFigures, DrainRound};
use crate::faults::FaultFigures;
use crate::live::LiveFigures;
use crate::results::{FOREIGN_SHARE_MAX, Measured, PeersResults};
use walrelay_bench::failure::Failure;
use walrelay_bench::report::table;
use walrelay_bench::statistics::{median, number};

/// Writes `latest.json` and `latest.md`.
pub(crate) fn write(results: &PeersResults, dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("latest.json"), serde_json::to_string_pretty(results)? + "\n")?;
    fs::write(dir.join("latest.md"), markdown(results))?;
    eprintln!("bench: wrote {}", dir.display());
    Ok(())
}

/// Returns all tables as Markdown.
pub(crate) fn markdown(results: &PeersResults) -> String {
    let sections = [
        heading(results),
        section("Backlog", &drains(results)),
        section("Latency from insert to stored message", &lives(results)),
        section("The same faults", &faults(results)),
        consumers::report::markdown(&results.consumers),
        section("Installed size", &sizes(results)),
        failures(results),
        skipped(results),
    ];
    sections.into_iter().filter(|section| !section.is_empty()).collect::<Vec<_>>().join("\n")
}

fn section(title: &str, table: &str) -> String {
    if table.is_empty() { String::new() } else { format!("## {title}\n\n{table}") }
}

fn heading(results: &PeersResults) -> String {
    let PeersResults { machine, reply_millis, .. } = results;
    let mut text = format!("{machine}. The sink replies after {reply_millis} ms.\n");
    if results.foreign_share > FOREIGN_SHARE_MAX {
        text += &format!(
            "\n**Other programs used {} % of the processors: read the figures as ratios only.**\n",
            number(results.foreign_share * 100.0)
        );
    }
    if let Some(note) = &results.note {
        text += &format!("\n{note}\n");
    }
    text
}

fn of(drain: &DrainFigures, value: fn(&DrainRound) -> f64) -> f64 {
    median(drain.rounds.iter().map(value))
}

/// Formats the median with the lowest and the highest value when there are several rounds.
fn spread(drain: &DrainFigures, value: fn(&DrainRound) -> f64) -> String {
    let middle = number(of(drain, value));
    if drain.rounds.len() < 2 {
        return middle;
    }
    let values = || drain.rounds.iter().map(value);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    format!("{middle} ({}–{})", number(low), number(high))
}

fn drains(results: &PeersResults) -> String {
    let rows =
        results.measured.iter().flat_map(|it| it.drains.iter().map(move |drain| (it, drain)));
    let rows = rows.map(|(measured, drain)| {
        vec![
            measured.label(),
            drain.name.to_owned(),
            number(f64::from(drain.rows)),
            number(of(drain, |round| f64::from(round.stored))),
            spread(drain, |round| round.rows_per_second),
            spread(drain, |round| round.second_half_rows_per_second),
            number(of(drain, |round| round.first_message_seconds)),
            number(of(drain, |round| round.cpu_seconds_per_million)),
            number(drain.rounds.iter().map(|round| round.peak_mebibytes).fold(0.0, f64::max)),
        ]
    });
    let head = [
        "Peer",
        "Backlog",
        "Rows",
        "Stored in time",
        "Rows/s",
        "Rows/s, second half",
        "First message, s",
        "CPU s per million rows",
        "Peak MiB",
    ];
    table(&head, rows)
}

fn lives(results: &PeersResults) -> String {
    let rows = results.measured.iter().flat_map(|it| it.lives.iter().map(move |live| (it, live)));
    let rows = rows.map(|(measured, live)| {
        let LiveFigures { rows_per_second, p50_millis, p99_millis, max_millis, verdict, .. } = live;
        vec![
            measured.label(),
            rows_per_second.to_string(),
            number(*p50_millis),
            number(*p99_millis),
            number(*max_millis),
            verdict.lost.to_string(),
        ]
    });
    let head = ["Peer", "Rows/s", "p50 ms", "p99 ms", "Maximum ms", "Not stored in time"];
    table(&head, rows)
}

fn faults(results: &PeersResults) -> String {
    let rows =
        results.measured.iter().flat_map(|it| it.faults.iter().map(move |fault| (it, fault)));
    let mut rows: Vec<(&Measured, &FaultFigures)> = rows.collect();
    // One fault after the other, so that the peers are next to each other.
    rows.sort_by_key(|(_, fault)| fault.kind);
    let cells = rows.into_iter().map(|(measured, fault)| {
        let FaultFigures { kind, fault_seconds, verdict, .. } = fault;
        let caught_up = match verdict.lost {
            0 => number(fault.caught_up_seconds),
            _ if fault.is_behind => "still behind".to_owned(),
            _ if fault.lost_of_other_keys > 0 => "stopped".to_owned(),
            _ => "one key stopped".to_owned(),
        };
        vec![
            kind.name().to_owned(),
            measured.label(),
            number(*fault_seconds),
            fault.rows.to_string(),
            verdict.lost.to_string(),
            verdict.out_of_order.to_string(),
            verdict.repeated.to_string(),
            caught_up,
            number(fault.others_waited_seconds),
            fault.restarts.to_string(),
            fault.remedy.clone().unwrap_or_else(|| "nothing".to_owned()),
        ]
    });
    let head = [
        "Fault",
        "Peer",
        "Fault, s",
        "Rows",
        "Undelivered",
        "Out of order",
        "Repeated",
        "Caught up after, s",
        "Longest wait of other keys, s",
        "Restarts",
        "A person must",
    ];
    table(&head, cells)
}

fn sizes(results: &PeersResults) -> String {
    let rows = results.measured.iter().map(|measured| {
        let links: Vec<String> =
            measured.documentation.iter().map(|link| format!("<{link}>")).collect();
        let note = measured.note.clone().unwrap_or_default();
        vec![
            measured.label(),
            number(measured.installation_mebibytes),
            measured.licence.clone(),
            links.join(" "),
            note,
        ]
    });
    table(&["Peer", "MiB", "Licence", "Settings from", "Note"], rows)
}

fn failures(results: &PeersResults) -> String {
    let lines = results.measured.iter().flat_map(|measured| {
        measured.failed.iter().map(|reason| {
            let first = reason.lines().next().unwrap_or_default();
            format!("- {}: {first}\n", measured.label())
        })
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("## Measurements that failed\n\n{lines}") }
}

fn skipped(results: &PeersResults) -> String {
    let lines = results.skipped.iter().map(|it| format!("- {}: {}\n", it.peer, it.reason));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("## Not measured\n\n{lines}") }
}
