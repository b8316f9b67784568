//! The texts and the JSON about replays.

use std::num::NonZeroU32;

use serde::Serialize;
use walrelay_outbox_replay::replay::{
    CancelledRows, DeadRows, Destination, ReplayDone, ReplayEnd, ReplayJob, ReplayRequest,
    ReplaySource, WalRows,
};
use walrelay_relay::observe::report::rfc3339;

use crate::output::table::columns;
use crate::output::text::visible;

/// Explains how consumers handle copies of events.
const COPIES: &str = "a consumer skips copies of the events that its inbox lists. Events that `walrelay consumer prune` deleted \
     there are applied again, unless the consumer runs with `--dedupe position`. `walrelay consumer rebuild NAME --key KEY` \
     applies all events of a key again\n";

const IN_PLACE: &str = "in place";

/// Returns a line about the rows that were left out, or an empty string.
fn left_out(rows: u64) -> String {
    match rows {
        0 => String::new(),
        rows => {
            format!("left out: {rows} row(s) that Pub/Sub would never accept, named in the log\n")
        }
    }
}

#[derive(Debug)]
pub(super) enum ReplayResult {
    /// No row is to be published again in place.
    Nothing {
        job: ReplayJob,
        /// Rows that Pub/Sub would never accept.
        left_out: u64,
    },
    Done {
        job: ReplayJob,
        done: ReplayDone,
    },
}

pub(super) fn result_text(result: &ReplayResult) -> String {
    let (job, ReplayDone { published, refused }) = match result {
        ReplayResult::Nothing { left_out: rows, .. } => {
            return format!("nothing was published\n{}", left_out(*rows));
        }
        ReplayResult::Done { job, done } => (job, *done),
    };
    let id = &job.id;
    match &job.request.destination {
        Destination::Topic { template, .. } => {
            let left_out = left_out(refused);
            format!("replay {id}: {published} row(s) are in {template}\n{left_out}{COPIES}")
        }
        Destination::InPlace => {
            let dead = match refused {
                0 => String::new(),
                dead => format!("dead: {dead} row(s), in `walrelay dispatch list --status dead`\n"),
            };
            format!("replay {id}: {published} row(s) were published again in place\n{dead}{COPIES}")
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ReplayResultJson<'a> {
    id: Option<&'a str>,
    result: &'static str,
    destination: &'a str,
    published: u64,
    left_out: u64,
    dead: u64,
}

impl<'a> ReplayResultJson<'a> {
    #[must_use]
    pub(super) fn new(result: &'a ReplayResult) -> Self {
        match result {
            ReplayResult::Nothing { job, left_out } => Self {
                id: None,
                result: "nothing_to_publish",
                destination: destination(job),
                published: 0,
                left_out: *left_out,
                dead: 0,
            },
            ReplayResult::Done { job, done: ReplayDone { published, refused } } => {
                let (left_out, dead) = match job.request.destination {
                    Destination::Topic { .. } => (*refused, 0),
                    Destination::InPlace => (0, *refused),
                };
                Self {
                    id: Some(&job.id),
                    result: "done",
                    destination: destination(job),
                    published: *published,
                    left_out,
                    dead,
                }
            }
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ReplayCancelJson<'a> {
    id: &'a str,
    destination: &'a str,
    published: u64,
    removed: u64,
}

impl<'a> ReplayCancelJson<'a> {
    #[must_use]
    pub(super) fn new(id: &'a str, rows: &'a CancelledRows) -> Self {
        let (destination, published, removed) = match rows {
            CancelledRows::Published { topic, rows } => (topic.as_str(), rows.known(), 0),
            CancelledRows::InPlace { removed, published } => (IN_PLACE, *published, *removed),
        };
        Self { id, destination, published, removed }
    }
}

/// Describes the effect of a cancellation, before it happens.
pub(super) fn to_cancel(rows: &CancelledRows) -> String {
    match rows {
        CancelledRows::Published { topic, rows } => {
            format!("{rows} row(s) were published to {topic}, and stay there")
        }
        CancelledRows::InPlace { removed, published } => {
            format!("{removed} row(s) are not published any more, {published} were published")
        }
    }
}

pub(super) fn cancelled(rows: &CancelledRows) -> String {
    match rows {
        CancelledRows::Published { .. } => to_cancel(rows),
        CancelledRows::InPlace { removed, published } => {
            format!("{removed} row(s) were removed, {published} were published")
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ReplayJson<'a> {
    id: &'a str,
    slot: &'a str,
    state: &'static str,
    source: &'static str,
    destination: &'a str,
    rows: u64,
    settled: String,
    request: RequestJson<'a>,
}

/// The request of a replay. A value that the source or the destination does not have is null.
#[derive(Debug, Serialize)]
struct RequestJson<'a> {
    anchor: Option<&'a str>,
    from: Option<String>,
    to: Option<String>,
    from_time: Option<String>,
    to_time: Option<String>,
    aggregate_types: &'a [String],
    aggregate_ids: &'a [String],
    event_types: &'a [String],
    event_ids: &'a [String],
    order_by: &'a [String],
    rate: Option<u32>,
    skip_dead: bool,
}

impl<'a> ReplayJson<'a> {
    #[must_use]
    pub(super) fn of(job: &'a ReplayJob) -> Self {
        Self {
            id: &job.id,
            slot: &job.slot,
            state: state(job),
            source: job.request.source.name(),
            destination: destination(job),
            rows: job.progress.rows,
            settled: job.progress.settled.to_string(),
            request: RequestJson::of(&job.request),
        }
    }
}

impl<'a> RequestJson<'a> {
    fn of(request: &'a ReplayRequest) -> Self {
        let ReplayRequest { source, destination, matching, dead_rows } = request;
        let (wal, table) = match source {
            ReplaySource::Wal(rows) => (Some(rows), None),
            ReplaySource::Table(rows) => (None, Some(rows)),
        };
        let since = wal.and_then(|rows| rows.since).or(table.and_then(|rows| rows.since));
        let until = wal.and_then(|rows| rows.until);
        Self {
            anchor: wal.map(|rows| rows.anchor.as_str()),
            from: wal.map(|rows| rows.from.to_string()),
            to: wal.map(|rows| rows.to.to_string()),
            from_time: since.map(|time| rfc3339(time.to_system_time())),
            to_time: until.map(|time| rfc3339(time.to_system_time())),
            aggregate_types: &matching.aggregate_types,
            aggregate_ids: &matching.aggregate_ids,
            event_types: &matching.event_types,
            event_ids: table.map_or(&[], |rows| &rows.event_ids),
            order_by: table.map_or(&[], |rows| &rows.order_by),
            rate: match destination {
                Destination::Topic { rate, .. } => rate.map(NonZeroU32::get),
                Destination::InPlace => None,
            },
            skip_dead: *dead_rows == DeadRows::LeaveOut,
        }
    }
}

const fn state(job: &ReplayJob) -> &'static str {
    match job.end {
        None => "unfinished",
        Some(ReplayEnd::Done) => "done",
        Some(ReplayEnd::Cancelled) => "cancelled",
    }
}

fn destination(job: &ReplayJob) -> &str {
    match &job.request.destination {
        Destination::InPlace => IN_PLACE,
        Destination::Topic { template, .. } => template,
    }
}

#[must_use]
pub(super) fn table(jobs: &[ReplayJob]) -> String {
    if jobs.is_empty() {
        return "there is no replay\n".to_owned();
    }
    let cells = |job: &ReplayJob| {
        [
            job.id.clone(),
            state(job).to_owned(),
            job.request.source.name().to_owned(),
            visible(destination(job)),
            job.progress.rows.to_string(),
        ]
    };
    let headings = ["ID", "STATE", "SOURCE", "DESTINATION", "ROWS"];
    columns(headings, &jobs.iter().map(cells).collect::<Vec<_>>())
}

/// Formats one replay, a line for each value.
#[must_use]
pub(super) fn page(job: &ReplayJob) -> String {
    let range = match &job.request.source {
        ReplaySource::Wal(WalRows { from, to, .. }) => format!("{from} to {to}"),
        ReplaySource::Table(rows) => format!("snapshot {}", rows.snapshot),
    };
    let request = RequestJson::of(&job.request);
    let lines = [
        ("state", state(job).to_owned()),
        ("slot", job.slot.clone()),
        ("source", job.request.source.name().to_owned()),
        ("destination", visible(destination(job))),
        ("range", range),
        ("published up to", job.progress.settled.to_string()),
        ("rows", job.progress.rows.to_string()),
        ("request", visible(&serde_json::to_string(&request).unwrap_or_default())),
    ];
    let lines: String =
        lines.iter().map(|(name, value)| format!("  {name:<16} {value}\n")).collect();
    format!("{}\n{lines}", job.id)
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::Lsn;
    use walrelay_core::ColumnFilter;
    use walrelay_outbox_replay::replay::ReplayProgress;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn rows_that_were_left_out_are_counted_and_none_are_not_mentioned() {
        assert_eq!(left_out(0), "");
        assert!(left_out(2).starts_with("left out: 2 row(s)"));
    }

    #[test]
    fn a_replay_warns_that_events_pruned_from_an_inbox_are_applied_again() {
        let done = ReplayDone { published: 3, refused: 0 };
        let text = result_text(&ReplayResult::Done { job: job(Destination::InPlace), done });
        assert!(text.contains("`walrelay consumer prune`") && text.contains("again"), "{text}");
    }

    fn job(destination: Destination) -> ReplayJob {
        let time = pgoutput_parser::PgTimestamp::from_micros(0);
        ReplayJob {
            id: "5f3a9c01".into(),
            slot: "walrelay".into(),
            system_identifier: "1".into(),
            request: ReplayRequest {
                source: ReplaySource::Wal(WalRows {
                    anchor: "a".into(),
                    from: Lsn::new(1),
                    to: Lsn::new(2),
                    since: Some(time),
                    until: Some(time),
                }),
                destination,
                matching: ColumnFilter::default(),
                dead_rows: DeadRows::Stop,
            },
            progress: ReplayProgress { settled: Lsn::new(1), rows: 1, resume_at: None },
            end: None,
        }
    }

    #[test]
    fn the_json_of_a_replay_is_documented() {
        let job = job(Destination::Topic { template: "again".into(), rate: NonZeroU32::new(500) });
        assert_documented("replay list and show", &ReplayJson::of(&job));
    }

    #[test]
    fn the_json_of_each_result_is_documented() {
        let done = ReplayDone { published: 3, refused: 1 };
        let result = ReplayResult::Done { job: job(Destination::InPlace), done };
        let json = ReplayResultJson::new(&result);
        assert_eq!((json.published, json.left_out, json.dead), (3, 0, 1));
        assert_documented("replay start and resume", &json);
        let rows = CancelledRows::InPlace { removed: 2, published: 1 };
        assert_documented("replay cancel", &ReplayCancelJson::new("5f3a9c01", &rows));
    }
}
