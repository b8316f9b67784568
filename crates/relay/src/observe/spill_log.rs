//! Spilling in the log: a line when it begins, one a minute while it goes on, and one when it is over.
//!
//! What is spilled goes up and down with each look at the log, several times a minute on a busy server;
//! for whoever reads the log an outage is one event.

use std::time::{Duration, Instant};

use walrelay_core::Spill;

/// Between two lines of one event, and without spilling until it is over.
const QUIET: Duration = Duration::from_mins(1);

/// What has been spilled, and what was told of it.
#[derive(Debug, Default)]
pub(super) struct SpillLog {
    event: Option<Event>,
    futile_told_at: Option<Instant>,
}

#[derive(Debug)]
struct Event {
    began: Instant,
    last: Instant,
    told_at: Instant,
    rows: u64,
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Rows are spilled from now on.
    Begins,
    /// They still are, now and then.
    GoesOn(Sum),
    /// They have not been for a while.
    IsOver(Sum),
}

/// What an event comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Rows that were spilled so far.
    pub(super) rows: u64,
    /// How long ago it began.
    pub(super) lasts: Duration,
}

impl SpillLog {
    /// A row is spilled.
    pub(super) fn row(&mut self) {
        if let Some(event) = &mut self.event {
            event.rows += 1;
        }
    }

    /// What is spilled from now on; the line that is due.
    pub(super) fn measured(&mut self, spill: Spill, now: Instant) -> Option<Line> {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let Some(event) = &mut self.event else {
            let begins = Event { began: now, last: now, told_at: now, rows: 0 };
            self.event = (spill != Spill::Off).then_some(begins);
            return self.event.is_some().then_some(Line::Begins);
        };
        if spill != Spill::Off {
            event.last = now;
        }
        let sum = Sum { rows: event.rows, lasts: since(event.began) };
        if since(event.last) >= QUIET {
            self.event = None;
            return Some(Line::IsOver(sum));
        }
        if since(event.told_at) < QUIET {
            return None;
        }
        event.told_at = now;
        Some(Line::GoesOn(sum))
    }

    /// Spilling is given up as futile: whether that is told.
    pub(super) fn is_futile(&mut self, now: Instant) -> bool {
        let is_told =
            self.futile_told_at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        if is_told {
            self.futile_told_at = Some(now);
        }
        is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_one_event_however_often_spilling_comes_and_goes() {
        let start = Instant::now();
        let mut log = SpillLog::default();
        let mut told = Vec::new();
        for second in 0..300_u64 {
            let now = start + Duration::from_secs(second);
            // Every other second for three minutes.
            let spill = match second % 2 == 1 && second < 180 {
                true => Spill::Everything,
                false => Spill::Off,
            };
            log.row();
            told.extend(log.measured(spill, now).map(|line| (second, line)));
        }
        let sum = |rows, seconds| Sum { rows, lasts: Duration::from_secs(seconds) };
        let expected = [
            (1, Line::Begins),
            (61, Line::GoesOn(sum(60, 60))),
            (121, Line::GoesOn(sum(120, 120))),
            (181, Line::GoesOn(sum(180, 180))),
            (239, Line::IsOver(sum(238, 238))),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_given_up_again_and_again_is_told_once_a_minute() {
        let start = Instant::now();
        let mut log = SpillLog::default();
        let told = (0..130).filter(|second| log.is_futile(start + Duration::from_secs(*second)));
        assert_eq!(told.collect::<Vec<_>>(), [0, 60, 120]);
    }
}
