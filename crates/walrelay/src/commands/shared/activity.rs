//! Tells a person what a relay or a consumer does: its first event, and then how much.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::http::Observed;
use crate::output::live::LiveLine;
use crate::output::text::whole_age;

/// Interval between log messages. Nothing is logged while nothing happens.
const LOGGED_EVERY: Duration = Duration::from_mins(1);

/// The metrics that tell what a process does.
#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Activity {
    /// What happens to an event.
    done: &'static str,
    /// The counter of such events, and the label that it must have.
    events: (&'static str, &'static str),
    /// The histogram of the time that they took.
    seconds: &'static str,
    /// The gauge of the age of the oldest event that waits.
    behind: &'static str,
}

impl Activity {
    pub(in crate::commands) const RELAY: Self = Self {
        done: "published",
        events: ("walrelay_messages_published_total", ""),
        seconds: "walrelay_commit_to_ack_seconds_bucket{",
        behind: "walrelay_oldest_unpublished_seconds",
    };
    pub(in crate::commands) const CONSUMER: Self = Self {
        done: "applied",
        events: ("walrelay_inbox_events_total", "result=\"done\""),
        seconds: "walrelay_inbox_stored_to_commit_seconds_bucket{",
        behind: "walrelay_inbox_oldest_waiting_seconds",
    };

    /// Reports until the set is dropped. Reports nothing if only warnings are wanted.
    pub(in crate::commands) fn report(self, observed: Observed) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if !tracing::enabled!(tracing::Level::INFO) {
            return tasks;
        }
        tasks.spawn(async move {
            let mut reporter = Reporter::new(self, self.sample(&observed));
            loop {
                sleep(reporter.pause()).await;
                reporter.next(self.sample(&observed));
            }
        });
        tasks
    }

    /// Logs how much the process has done.
    pub(in crate::commands) fn log_end(self, observed: &Observed) {
        tracing::info!(events = self.sample(observed).events, "{} since the start", self.done);
    }

    fn log(self, now: &Sample, before: &Sample, time: Duration) {
        let events = now.events - before.events;
        tracing::info!(
            events,
            events_per_second = events / time.as_secs().max(1),
            p99_seconds_at_most = now.p99(before),
            behind_seconds = now.behind,
            "{}",
            self.done
        );
    }

    /// Formats the line for a terminal.
    fn text(self, now: &Sample, before: &Sample) -> String {
        let done = self.done;
        let mut text = format!("{} {done}, {}/s", now.events, now.events - before.events);
        if let Some(seconds) = now.p99(before) {
            let time = if seconds < 1.0 {
                format!("{} ms", seconds * 1_000.0)
            } else {
                whole_age(seconds)
            };
            text.push_str(&format!(", p99 within {time}"));
        }
        match (&now.not_ready, now.behind) {
            (Some(reason), _) => format!("{text}; {reason}"),
            (None, 0.0) => text + ", caught up",
            (None, seconds) => format!("{text}, oldest waits for {seconds:.0} s"),
        }
    }

    fn sample(self, observed: &Observed) -> Sample {
        let sample = observed.metrics_text().map(|text| self.read(&text)).unwrap_or_default();
        Sample { not_ready: observed.reasons_not_ready().into_iter().next(), ..sample }
    }

    /// Reads the metrics in Prometheus' format.
    fn read(self, text: &str) -> Sample {
        let mut sample = Sample::default();
        for (series, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
            let (name, label) = self.events;
            let count: u64 = value.parse().unwrap_or_default();
            if series.starts_with(name) && series.contains(label) {
                sample.events += count;
            } else if series.starts_with(self.behind) {
                sample.behind = sample.behind.max(value.parse().unwrap_or_default());
            } else if series.starts_with(self.seconds) {
                let bound = series.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
                let bound = bound.and_then(|it| it.parse().ok()).unwrap_or(f64::INFINITY);
                // Bounds are positive, so their bits have the order of their values.
                *sample.within.entry(bound.to_bits()).or_default() += count;
            }
        }
        sample
    }
}

struct Reporter {
    activity: Activity,
    has_begun: bool,
    /// The figures a second ago, and when the log was written last.
    second: Sample,
    minute: Sample,
    logged_at: Instant,
    /// The line of a terminal, which makes the log needless.
    line: Option<LiveLine>,
}

impl Reporter {
    fn new(activity: Activity, first: Sample) -> Self {
        let (logged_at, second) = (Instant::now(), first.clone());
        let line = io::stderr().is_terminal().then(LiveLine::of_text);
        Self { activity, has_begun: false, second, minute: first, logged_at, line }
    }

    /// Returns the time until the next figures are needed. All metrics are encoded to read some.
    fn pause(&self) -> Duration {
        match self.has_begun && self.line.is_none() {
            true => LOGGED_EVERY,
            false => Duration::from_secs(1),
        }
    }

    fn next(&mut self, now: Sample) {
        let activity = self.activity;
        if !self.has_begun && now.events > self.minute.events {
            self.has_begun = true;
            tracing::info!("the first event is {}", activity.done);
        }
        if let Some(line) = &mut self.line {
            line.show(0, activity.text(&now, &self.second));
        }
        let time = self.logged_at.elapsed();
        if time >= LOGGED_EVERY {
            if now.events > self.minute.events && self.line.is_none() {
                activity.log(&now, &self.minute, time);
            }
            (self.minute, self.logged_at) = (now.clone(), Instant::now());
        }
        self.second = now;
    }
}

#[derive(Debug, Clone, Default)]
struct Sample {
    events: u64,
    /// Events that took at most so many seconds (the bits of a float).
    within: BTreeMap<u64, u64>,
    behind: f64,
    /// The reason why the process is not ready, in place of what its metrics say.
    not_ready: Option<String>,
}

impl Sample {
    /// Returns the time in seconds within which 99 of 100 events since `before` were done. None without
    /// events, or beyond the longest time that is counted.
    fn p99(&self, before: &Self) -> Option<f64> {
        let since = |(bound, count): (&u64, &u64)| {
            (f64::from_bits(*bound), count - before.within.get(bound).copied().unwrap_or_default())
        };
        let counts: Vec<(f64, u64)> = self.within.iter().map(since).collect();
        let all = counts.last().map(|(_, count)| *count).filter(|count| *count > 0)?;
        let found = counts.into_iter().find(|(_, count)| count * 100 >= all * 99);
        found.map(|(bound, _)| bound).filter(|bound| bound.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
walrelay_messages_published_total{topic=\"a\"} 60
walrelay_messages_published_total{topic=\"b\"} 40
walrelay_commit_to_ack_seconds_bucket{le=\"0.01\",topic=\"a\"} 50
walrelay_commit_to_ack_seconds_bucket{le=\"0.025\",topic=\"a\"} 60
walrelay_commit_to_ack_seconds_bucket{le=\"+Inf\",topic=\"a\"} 60
walrelay_commit_to_ack_seconds_bucket{le=\"0.01\",topic=\"b\"} 40
walrelay_commit_to_ack_seconds_bucket{le=\"0.025\",topic=\"b\"} 40
walrelay_commit_to_ack_seconds_bucket{le=\"+Inf\",topic=\"b\"} 40
walrelay_oldest_unpublished_seconds 0.0
";

    #[test]
    fn the_line_tells_how_much_how_fast_and_how_far_behind() {
        let (none, all) = (Sample::default(), Activity::RELAY.read(TEXT));
        let text = Activity::RELAY.text(&all, &none);
        assert_eq!(text, "100 published, 100/s, p99 within 25 ms, caught up");
        assert_eq!(Activity::RELAY.text(&all, &all), "100 published, 0/s, caught up");
        let slow = Activity::RELAY.read(&TEXT.replace("0.025", "1800"));
        assert!(Activity::RELAY.text(&slow, &none).contains("p99 within 30 min"));
        let waiting = Sample { not_ready: Some("no access token".to_owned()), ..all.clone() };
        let unready = Activity::RELAY.text(&waiting, &all);
        assert_eq!(unready, "100 published, 0/s; no access token");
        let late = Sample { behind: 12.3, ..all.clone() };
        assert!(Activity::RELAY.text(&late, &all).ends_with(", oldest waits for 12 s"));
    }

    #[test]
    fn every_metric_that_is_read_exists() {
        let metrics = walrelay_relay::observe::metrics::Metrics::new();
        let published = metrics.of_topic(&"projects/p/topics/t".into());
        published.messages.inc();
        let text = metrics.encode().unwrap();
        for name in ["messages_published", "commit_to_ack_seconds", "oldest_unpublished_seconds"] {
            assert!(text.contains(&format!("walrelay_{name}")), "{name} is not in {text}");
        }
        let of_consumer = walrelay_inbox::Metrics::new("billing").encode().unwrap();
        for name in ["events", "stored_to_commit_seconds", "oldest_waiting_seconds"] {
            assert!(
                of_consumer.contains(&format!("walrelay_inbox_{name}")),
                "{name}: {of_consumer}"
            );
        }
    }
}
