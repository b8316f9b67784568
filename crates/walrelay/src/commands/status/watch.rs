//! `status --watch`: on a terminal the figures with their recent course, elsewhere report after
//! report.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;
use walrelay_outbox_admin::{Severity, StatusReport};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::shutdown::Shutdown;

use super::reading::{StatusReading, StatusSources, read};
use crate::config::OutputFormat;
use crate::error::Error;
use crate::output::colour::{ColourMode, Tone};
use crate::output::text::{human_bytes, whole_age};
use crate::output::{Reader, colours, print_part, show};
use crate::status::{Summary, report_text, sections, tone_of};

/// The number of samples in a sparkline.
const SAMPLES_MAX: usize = 40;

/// Where the reports of `--watch` go.
#[derive(Clone, Copy)]
enum WatchOutput {
    /// Each report replaces the one before.
    Terminal(ColourMode),
    /// Each report follows the one before.
    Pipe,
}

/// Shows report after report until the reader is gone: on a terminal in place, elsewhere one below
/// the other. Errors are shown and retried, so that the user sees when the server is back.
pub(super) async fn watch(
    sources: &StatusSources,
    format: OutputFormat,
    interval: Duration,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let place = match std::io::stdout().is_terminal() {
        true => WatchOutput::Terminal(colours()),
        false => WatchOutput::Pipe,
    };
    let mut client = None;
    let mut course = RecentFigures::default();
    loop {
        let report = refresh(&mut client, sources, shutdown).await;
        match &report {
            Ok(report) => course.add(report, Instant::now()),
            Err(_) => client = None,
        }
        let reader = match place {
            WatchOutput::Terminal(paint) => show(&screen(&report, &course, paint, format))?,
            WatchOutput::Pipe => print_part(&piped(&report, format, SystemTime::now()))?,
        };
        if reader == Reader::Gone {
            return Ok(());
        }
        sleep(interval).await;
    }
}

async fn refresh(
    client: &mut Option<SqlClient>,
    sources: &StatusSources,
    shutdown: &Shutdown,
) -> Result<StatusReport, Error> {
    let client = match client {
        Some(connected) => connected,
        None => client.insert(connect_sql(&sources.database.connect).await?),
    };
    read(client, sources, shutdown).await.map(|StatusReading { report, .. }| report)
}

/// Formats what a terminal shows: the summary, the figures with their course, and the sections.
fn screen(
    report: &Result<StatusReport, Error>,
    course: &RecentFigures,
    paint: ColourMode,
    format: OutputFormat,
) -> String {
    match (report, format) {
        (Ok(report), OutputFormat::Json) => report_text(report, format, paint),
        (Ok(report), OutputFormat::Text) => format!(
            "{}{}\n\n{}",
            Summary::in_report(report).text(paint),
            course.figures(report, paint),
            sections(report, paint)
        ),
        (Err(error), _) => failure(error, paint),
    }
}

fn failure(error: &Error, paint: ColourMode) -> String {
    format!("{}\n", paint.text(Tone::Bad, &error.report()))
}

/// One JSON report of many.
#[derive(Serialize)]
struct TimedReport<'a> {
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    report: Option<&'a StatusReport>,
}

/// Formats one of many reports for a pipe. A text report starts with its time, and a JSON report is
/// one line.
fn piped(report: &Result<StatusReport, Error>, format: OutputFormat, now: SystemTime) -> String {
    let at = rfc3339(now);
    match (format, report) {
        (OutputFormat::Text, Ok(report)) => {
            format!("--- {at}\n{}", report_text(report, format, ColourMode::Plain))
        }
        (OutputFormat::Text, Err(error)) => {
            format!("--- {at}\n{}", failure(error, ColourMode::Plain))
        }
        (OutputFormat::Json, _) => {
            let error = report.as_ref().err().map(Error::report);
            let report = report.as_ref().ok();
            format!("{}\n", json!(TimedReport { at, error, report }))
        }
    }
}

#[derive(Debug, Default)]
struct RecentFigures {
    lag_bytes: VecDeque<u64>,
    rates: VecDeque<u64>,
    published: Option<(u64, Instant)>,
}

impl RecentFigures {
    fn add(&mut self, report: &StatusReport, now: Instant) {
        let slots = slots(report);
        push(&mut self.lag_bytes, slots.iter().filter_map(|slot| slot.lag_bytes).sum());
        let published = slots.iter().filter_map(|slot| slot.published).map(|it| it.rows).sum();
        if let Some((before, at)) = self.published.replace((published, now)) {
            let elapsed = now.saturating_duration_since(at);
            push(&mut self.rates, per_second(published.saturating_sub(before), elapsed));
        }
    }

    /// Formats the figures in aligned columns, each with its course.
    fn figures(&self, report: &StatusReport, paint: ColourMode) -> String {
        let rate = self.rates.back().map(|rate| format!("{rate} rows/s"));
        let rate = rate.unwrap_or_else(|| "-".to_owned());
        let slots = slots(report);
        let retained = slots.iter().filter_map(|slot| slot.retained_bytes).sum();
        let headroom = slots.iter().filter_map(|slot| slot.safe_wal_bytes).min();
        let headroom = headroom.map_or_else(
            || "unlimited".to_owned(),
            |bytes| human_bytes(u64::try_from(bytes).unwrap_or(0)),
        );
        let counts = slots.iter().filter_map(|slot| slot.dispatch);
        let (retrying, dead) =
            counts.fold((0, 0), |sum, it| (sum.0 + it.retrying, sum.1 + it.dead));
        let oldest = report.oldest_unpublished_seconds;
        let oldest = oldest.map_or_else(|| "-".to_owned(), whole_age);
        let lag = self.lag_bytes.back().copied().unwrap_or_default();
        let course = |values: &VecDeque<u64>| {
            paint.text(tone_of(Severity::Good), &sparkline(values.iter().copied()))
        };
        let rows = [
            ("published", rate, course(&self.rates)),
            ("lag", human_bytes(lag), course(&self.lag_bytes)),
            ("oldest unpublished", oldest, String::new()),
            ("WAL retained", human_bytes(retained), String::new()),
            ("headroom", headroom, String::new()),
            ("pending rows", retrying.to_string(), String::new()),
            ("dead rows", dead.to_string(), String::new()),
        ];
        let lines = rows.map(|(name, value, line)| {
            format!("  {name:<16}{value:>12}  {line}").trim_end().to_owned()
        });
        lines.join("\n")
    }
}

fn slots(report: &StatusReport) -> Vec<&walrelay_relay::observe::report::SlotReport> {
    report.slot.iter().chain(report.shards.iter().filter_map(|it| it.slot.as_ref())).collect()
}

fn per_second(amount: u64, elapsed: Duration) -> u64 {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    amount.saturating_mul(1_000) / millis
}

fn push(samples: &mut VecDeque<u64>, sample: u64) {
    samples.push_back(sample);
    if samples.len() > SAMPLES_MAX {
        samples.pop_front();
    }
}

/// Draws one block per sample. The highest sample has the full height, and zero the lowest.
fn sparkline(samples: impl Iterator<Item = u64> + Clone) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = u128::from(samples.clone().max().unwrap_or(0)).max(1);
    samples
        .map(|sample| {
            let height = (u128::from(sample) * 7).div_ceil(most);
            usize::try_from(height).ok().and_then(|it| BLOCKS.get(it)).copied().unwrap_or(' ')
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use walrelay_outbox_admin::NextStep;
    use walrelay_relay::observe::report::{PublishedReport, SlotReport};

    use super::*;

    fn streaming(lag_bytes: u64, rows: u64) -> StatusReport {
        StatusReport {
            headline: "streaming".to_owned(),
            next_step: Some(NextStep::new("do this")),
            ..StatusReport::of_slot(SlotReport {
                lag_bytes: Some(lag_bytes),
                published: Some(PublishedReport { rows, ..PublishedReport::default() }),
                ..SlotReport::default()
            })
        }
    }

    #[test]
    fn reports_in_a_pipe_have_their_time_and_those_in_json_a_line_each() {
        let found = Ok(StatusReport {
            headline: "streaming".to_owned(),
            ..StatusReport::of_slot(SlotReport::default())
        });
        let text = piped(&found, OutputFormat::Text, SystemTime::UNIX_EPOCH);
        assert!(text.starts_with("--- 1970-01-01T00:00:00Z\nstreaming\n"), "{text}");
        for told in [found, Err(Error::Interrupted)] {
            let line = piped(&told, OutputFormat::Json, SystemTime::UNIX_EPOCH);
            assert_eq!(line.lines().count(), 1, "{line}");
            let value: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["at"], "1970-01-01T00:00:00Z");
            assert_eq!(value["error"].is_string(), told.is_err());
        }
    }

    #[test]
    fn a_sparkline_has_a_block_for_each_sample_and_the_highest_is_full() {
        assert_eq!(sparkline([0, 1, 50, 100].into_iter()), "▁▂▅█");
        assert_eq!(sparkline([0, 0].into_iter()), "▁▁");
        assert_eq!(sparkline([].into_iter()), "");
        assert_eq!(sparkline([u64::MAX, 0].into_iter()), "█▁");
    }

    #[test]
    fn the_screen_shows_aligned_figures_with_their_course_and_the_next_step() {
        let (mut course, start) = (RecentFigures::default(), Instant::now());
        course.add(&streaming(0, 100), start);
        let report = streaming(2048, 124);
        course.add(&report, start + Duration::from_secs(2));
        let shown = screen(&Ok(report.clone()), &course, ColourMode::Plain, OutputFormat::Text);
        assert!(shown.starts_with("streaming\n  do this\n"), "{shown}");
        assert!(shown.contains("  published          12 rows/s  █\n"), "{shown}");
        assert!(shown.contains("  lag                  2.0 KiB  ▁█\n"), "{shown}");
    }

    #[test]
    fn the_course_is_bounded() {
        let (mut course, start) = (RecentFigures::default(), Instant::now());
        for second in 0..SAMPLES_MAX as u64 + 10 {
            course.add(&streaming(second, 10), start + Duration::from_secs(second));
        }
        assert_eq!((course.lag_bytes.len(), course.rates.len()), (SAMPLES_MAX, SAMPLES_MAX));
    }
}
