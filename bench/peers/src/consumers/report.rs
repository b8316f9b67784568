//! The tables of the compared consumers.

use crate::consumers::drain::{ConsumerDrain, ConsumerRound};
use crate::consumers::faults::ConsumerFault;
use crate::consumers::results::MeasuredConsumer;
use walrelay_bench::report::table;
use walrelay_bench::statistics::{median, number};

/// Returns the tables as Markdown. Empty if no consumer was measured.
pub(crate) fn markdown(measured: &[MeasuredConsumer]) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "## Consumers: a backlog of events\n\n{}\n## Consumers: the same faults\n\n{}",
        drains(measured),
        faults(measured)
    );
    for consumer in measured {
        for reason in &consumer.failed {
            let first = reason.lines().next().unwrap_or_default();
            text += &format!("\n- failed: {}: {first}\n", consumer.label());
        }
    }
    text
}

fn of(drain: &ConsumerDrain, value: fn(&ConsumerRound) -> f64) -> f64 {
    median(drain.rounds.iter().map(value))
}

fn drains(measured: &[MeasuredConsumer]) -> String {
    let rows = measured.iter().flat_map(|it| it.drains.iter().map(move |drain| (it, drain)));
    let rows = rows.map(|(consumer, drain)| {
        vec![
            consumer.label(),
            drain.database_millis.to_string(),
            number(of(drain, |round| round.events_per_second)),
            number(of(drain, |round| round.second_half_events_per_second)),
            number(of(drain, |round| round.cpu_seconds_per_million)),
            number(drain.rounds.iter().map(|round| round.peak_mebibytes).fold(0.0, f64::max)),
        ]
    });
    let head = [
        "Consumer",
        "ms from the database",
        "Events/s",
        "Events/s, second half",
        "CPU s per million events",
        "Peak MiB",
    ];
    table(&head, rows)
}

fn faults(measured: &[MeasuredConsumer]) -> String {
    let rows = measured.iter().flat_map(|it| it.faults.iter().map(move |fault| (it, fault)));
    let mut rows: Vec<(&MeasuredConsumer, &ConsumerFault)> = rows.collect();
    // One fault after the other, so that the consumers are next to each other.
    rows.sort_by_key(|(_, fault)| fault.fault);
    let cells = rows.into_iter().map(|(consumer, fault)| {
        vec![
            fault.fault.name().to_owned(),
            consumer.label(),
            fault.events.to_string(),
            fault.redelivered.to_string(),
            fault.verdict.applied_twice.to_string(),
            fault.verdict.lost.to_string(),
            fault.verdict.outdated_keys.to_string(),
            number(fault.seconds),
        ]
    });
    let head = [
        "Fault",
        "Consumer",
        "Events",
        "Delivered again",
        "Applied twice",
        "Lost",
        "Keys with an outdated state",
        "All acknowledged after, s",
    ];
    table(&head, cells)
}
