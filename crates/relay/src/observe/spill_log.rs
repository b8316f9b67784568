//! Log messages about spilling: one when it starts, one per minute while it continues, and one when
//! it ends.
//!
//! Spilling ends in one of two ways. Either a message was stored and WAL was within the budget for
//! ten seconds, or no row was spilled for a minute. Rows that only follow spilled rows of their
//! keys are an event of their own.
//!
//! On a busy server spilling starts and stops with each measurement of WAL, several times a minute.
//! For an operator an outage is one event.

use std::time::{Duration, Instant};

use walrelay_core::SpillMode;

/// The time between two messages of one event, and the time without spilling that ends an event.
const QUIET: Duration = Duration::from_mins(1);

/// An outage ends this long after WAL last exceeded the limit, if a message was stored since.
const HEALTHY: Duration = Duration::from_secs(10);

/// After this time without a spilled row, no row *is being* spilled.
const PAUSE: Duration = Duration::from_secs(5);

/// The current spilling event, and the messages logged about it.
#[derive(Debug, Default)]
pub(super) struct SpillLog {
    event: Option<Event>,
    /// Rows that were spilled since the last measurement.
    rows: u64,
    futile_told_at: Option<Instant>,
}

#[derive(Debug)]
struct Event {
    began: Instant,
    /// The last time at which spilling was on, or a row was spilled.
    last: Instant,
    /// The last time at which too much WAL was retained.
    last_over_budget: Instant,
    /// Whether too much WAL was retained. Otherwise rows only follow spilled rows of their keys.
    is_over_budget: bool,
    logged_at: Instant,
    rows_told: u64,
    rows: u64,
}

/// A log message that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Spilling starts, because too much WAL is retained.
    Begins,
    /// Rows are spilled only because earlier rows of their keys were, usually before a restart.
    Follows,
    /// Rows are still being spilled from time to time.
    GoesOn(Sum),
    /// Rows still follow spilled rows.
    FollowsOn(Sum),
    /// WAL is within the limit and rows are stored. Some rows may still follow spilled ones.
    LogIsOver(Sum),
    /// No row was spilled for a while.
    IsOver(Sum),
}

/// The totals of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// The number of rows spilled so far.
    pub(super) rows: u64,
    /// The time since the event started.
    pub(super) lasts: Duration,
}

impl SpillLog {
    pub(super) fn row(&mut self) {
        self.rows += 1;
    }

    /// Takes the current spilling and the last time at which a message was stored. Returns the log
    /// message that is due.
    pub(super) fn measured(
        &mut self,
        spill: SpillMode,
        stored_at: Option<Instant>,
        now: Instant,
    ) -> Option<Line> {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let rows = std::mem::take(&mut self.rows);
        let is_over_budget = spill != SpillMode::Off;
        if !is_over_budget && rows == 0 && self.event.is_none() {
            return None;
        }
        let is_new = self.event.is_none();
        let event = self.event.get_or_insert(Event {
            began: now,
            last: now,
            last_over_budget: now,
            is_over_budget: false,
            logged_at: now,
            rows_told: 0,
            rows: 0,
        });
        event.rows += rows;
        if is_over_budget && !std::mem::replace(&mut event.is_over_budget, true) {
            (event.last, event.last_over_budget, event.logged_at) = (now, now, now);
            return Some(Line::Begins);
        }
        if is_new {
            return Some(Line::Follows);
        }
        if is_over_budget || rows > 0 {
            event.last = now;
        }
        if is_over_budget {
            event.last_over_budget = now;
        }
        let sum = Sum { rows: event.rows, lasts: since(event.began) };
        let is_healthy = stored_at.is_some_and(|at| at > event.last_over_budget)
            && since(event.last_over_budget) >= HEALTHY;
        if event.is_over_budget && is_healthy {
            self.event = None;
            return Some(Line::LogIsOver(sum));
        }
        if since(event.last) >= QUIET {
            self.event = None;
            return Some(Line::IsOver(sum));
        }
        let is_going_on = event.rows > event.rows_told && since(event.last) < PAUSE;
        if !is_going_on || since(event.logged_at) < QUIET {
            return None;
        }
        (event.logged_at, event.rows_told) = (now, event.rows);
        Some(if event.is_over_budget { Line::GoesOn(sum) } else { Line::FollowsOn(sum) })
    }

    /// Records that spilling was stopped as futile. Returns whether to log it.
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
            // Spilling is on every other second for three minutes.
            let spill = match second % 2 == 1 && second < 180 {
                true => SpillMode::Everything,
                false => SpillMode::Off,
            };
            if spill != SpillMode::Off {
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

    /// Returns the log messages of so many seconds, with the spilling of each second.
    fn told(seconds: u64, at: impl Fn(u64) -> (SpillMode, u64)) -> Vec<(u64, Line)> {
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
        // Spilling stops after ten seconds.
        let stops = told(200, |second| match second < 10 {
            true => (SpillMode::Everything, 4_000),
            false => (SpillMode::Off, 0),
        });
        assert_eq!(stops, [(0, Line::Begins), (69, Line::IsOver(sum(40_000, 69)))]);
        // There is nothing to spill.
        let idle = told(200, |_| (SpillMode::Everything, 0));
        assert_eq!(idle, [(0, Line::Begins)]);
    }

    #[test]
    fn rows_that_only_come_behind_spilled_ones_are_told_as_such() {
        let sum = |rows, seconds| Sum { rows, lasts: Duration::from_secs(seconds) };
        let behind = told(200, |second| match second {
            0..5 => (SpillMode::Off, 7),
            5..9 => (SpillMode::Everything, 7),
            _ => (SpillMode::Off, 0),
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
            // Twenty seconds of an outage, then thirty without. Rows follow spilled ones all the
            // time.
            let (spill, stored_at) = match second % 50 < 20 {
                true => (SpillMode::Everything, None),
                false => (SpillMode::Off, Some(after(second))),
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
