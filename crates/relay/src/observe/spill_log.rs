//! Spilling in the log: a line when it begins, one a minute while it goes on, and one when it is over.
//!
//! It is over when something was stored and no log has waited for ten seconds, or when nothing was spilled for a
//! minute. What still comes behind spilled rows of its key is an event of its own.
//!
//! What is spilled goes up and down with each look at the log, several times a minute on a busy server;
//! for whoever reads the log an outage is one event.

use std::time::{Duration, Instant};

use walrelay_core::Spill;

/// Between two lines of one event, and without spilling until it is over.
const QUIET: Duration = Duration::from_mins(1);

/// So long after the log last waited, with something stored since, the outage is over.
const HEALTHY: Duration = Duration::from_secs(10);

/// Nothing was spilled for so long: nothing *is being* spilled.
const PAUSE: Duration = Duration::from_secs(5);

/// What has been spilled, and what was told of it.
#[derive(Debug, Default)]
pub(super) struct SpillLog {
    event: Option<Event>,
    /// Rows that were spilled since the last look.
    rows: u64,
    futile_told_at: Option<Instant>,
}

#[derive(Debug)]
struct Event {
    began: Instant,
    /// When there was last anything to spill, or a row was.
    last: Instant,
    /// When too much log last waited.
    last_of_the_log: Instant,
    /// Too much log waited; otherwise rows only come behind others of their keys.
    is_of_the_log: bool,
    told_at: Instant,
    rows_told: u64,
    rows: u64,
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Rows are spilled from now on, because too much log waits.
    Begins,
    /// Rows are, because others of their keys were: before a restart, as a rule.
    Follows,
    /// They still are, now and then.
    GoesOn(Sum),
    /// Rows still come behind spilled ones.
    FollowsOn(Sum),
    /// No log waits any more, and rows are stored; some may still come behind spilled ones.
    LogIsOver(Sum),
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
        self.rows += 1;
    }

    /// What is spilled from now on, and when something was last stored; the line that is due.
    pub(super) fn measured(
        &mut self,
        spill: Spill,
        stored_at: Option<Instant>,
        now: Instant,
    ) -> Option<Line> {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let rows = std::mem::take(&mut self.rows);
        let is_of_the_log = spill != Spill::Off;
        if !is_of_the_log && rows == 0 && self.event.is_none() {
            return None;
        }
        let is_new = self.event.is_none();
        let event = self.event.get_or_insert(Event {
            began: now,
            last: now,
            last_of_the_log: now,
            is_of_the_log: false,
            told_at: now,
            rows_told: 0,
            rows: 0,
        });
        event.rows += rows;
        if is_of_the_log && !std::mem::replace(&mut event.is_of_the_log, true) {
            (event.last, event.last_of_the_log, event.told_at) = (now, now, now);
            return Some(Line::Begins);
        }
        if is_new {
            return Some(Line::Follows);
        }
        if is_of_the_log || rows > 0 {
            event.last = now;
        }
        if is_of_the_log {
            event.last_of_the_log = now;
        }
        let sum = Sum { rows: event.rows, lasts: since(event.began) };
        let is_healthy = stored_at.is_some_and(|at| at > event.last_of_the_log)
            && since(event.last_of_the_log) >= HEALTHY;
        if event.is_of_the_log && is_healthy {
            self.event = None;
            return Some(Line::LogIsOver(sum));
        }
        if since(event.last) >= QUIET {
            self.event = None;
            return Some(Line::IsOver(sum));
        }
        let is_going_on = event.rows > event.rows_told && since(event.last) < PAUSE;
        if !is_going_on || since(event.told_at) < QUIET {
            return None;
        }
        (event.told_at, event.rows_told) = (now, event.rows);
        Some(if event.is_of_the_log { Line::GoesOn(sum) } else { Line::FollowsOn(sum) })
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
            if spill != Spill::Off {
                log.row();
            }
            told.extend(log.measured(spill, None, now).map(|line| (second, line)));
        }
        let sum = |rows, seconds| Sum { rows, lasts: Duration::from_secs(seconds) };
        let expected = [
            (1, Line::Begins),
            (61, Line::GoesOn(sum(31, 60))),
            (121, Line::GoesOn(sum(61, 120))),
            (181, Line::GoesOn(sum(90, 180))),
            (239, Line::IsOver(sum(90, 238))),
        ];
        assert_eq!(told, expected);
    }

    /// What is told in so many seconds, in each of which so much is spilled.
    fn told(seconds: u64, at: impl Fn(u64) -> (Spill, u64)) -> Vec<(u64, Line)> {
        let start = Instant::now();
        let mut log = SpillLog::default();
        let line = |second| {
            let (spill, rows) = at(second);
            (0..rows).for_each(|_| log.row());
            Some((second, log.measured(spill, None, start + Duration::from_secs(second))?))
        };
        (0..seconds).filter_map(line).collect()
    }

    #[test]
    fn rows_are_said_to_be_spilled_still_only_while_some_are() {
        let sum = |rows, seconds| Sum { rows, lasts: Duration::from_secs(seconds) };
        // It stops after ten seconds.
        let stops = told(200, |second| match second < 10 {
            true => (Spill::Everything, 4_000),
            false => (Spill::Off, 0),
        });
        assert_eq!(stops, [(0, Line::Begins), (69, Line::IsOver(sum(40_000, 69)))]);
        // There is nothing to spill.
        let idle = told(200, |_| (Spill::Everything, 0));
        assert_eq!(idle, [(0, Line::Begins)]);
    }

    #[test]
    fn rows_that_only_come_behind_spilled_ones_are_told_as_such() {
        let sum = |rows, seconds| Sum { rows, lasts: Duration::from_secs(seconds) };
        let behind = told(200, |second| match second {
            0..5 => (Spill::Off, 7),
            5..9 => (Spill::Everything, 7),
            _ => (Spill::Off, 0),
        });
        let over = (68, Line::IsOver(sum(63, 68)));
        assert_eq!(behind, [(0, Line::Follows), (5, Line::Begins), over]);
    }

    #[test]
    fn outages_with_healthy_time_between_them_are_told_one_by_one_though_rows_still_come_behind() {
        let start = Instant::now();
        let after = |second| start + Duration::from_secs(second);
        let mut log = SpillLog::default();
        let mut told = Vec::new();
        for second in 0..100_u64 {
            // Twenty seconds of an outage, thirty without; rows come behind spilled ones all the time.
            let (spill, stored_at) = match second % 50 < 20 {
                true => (Spill::Everything, None),
                false => (Spill::Off, Some(after(second))),
            };
            log.row();
            told.extend(log.measured(spill, stored_at, after(second)).map(|line| (second, line)));
        }
        let sum = |rows, seconds| Sum { rows, lasts: Duration::from_secs(seconds) };
        let expected = [
            (0, Line::Begins),
            (29, Line::LogIsOver(sum(30, 29))),
            (30, Line::Follows),
            (50, Line::Begins),
            (79, Line::LogIsOver(sum(50, 49))),
            (80, Line::Follows),
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
