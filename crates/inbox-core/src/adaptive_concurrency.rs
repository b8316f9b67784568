//! The batch size and the number of concurrent batches: smaller after conflicts, one at a time in
//! an outage.

use std::time::{Duration, Instant};

use walrelay_core::{Backoff, Random};

use crate::failure::Failure;

/// The wait after a conflict, long enough for the other transaction to end.
const CONFLICT_WAIT: Backoff =
    Backoff { base: Duration::from_millis(10), cap: Duration::from_secs(1) };
/// The wait in an outage. A failover takes seconds, so one more second costs little, and a server
/// that starts is not flooded.
const OUTAGE_WAIT: Backoff =
    Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(5) };
/// Batch sizes of successive probes in an outage. The last is 1, which separates a poison event
/// from a dead database.
const PROBES: [usize; 4] = [10, 5, 2, 1];
/// After so many conflicts in a row, the workers conflict with each other, and one worker
/// continues.
const CONFLICTS_MAX: u32 = 3;

/// The time for which `app_inbox_run` searches a batch for failing events before it defers the
/// rest. A batch that needs longer was too large.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// An adaptive batch size: halved after a failure, doubled after each success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdaptiveBatchSize {
    most: usize,
    size: usize,
}

impl AdaptiveBatchSize {
    /// Creates a size that starts at its maximum.
    #[must_use]
    pub const fn of(most: usize) -> Self {
        Self { most, size: most }
    }

    /// Returns the current size, at least 1.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Halves the size, because a batch of this size failed.
    pub fn failed(&mut self, size: usize) {
        self.size = self.size.min((size / 2).max(1));
    }

    /// Doubles the size, up to the maximum.
    pub fn worked(&mut self) {
        self.size = (self.size * 2).min(self.most);
    }

    /// Adapts the size to the time that a batch took. A batch that takes longer than [`PATIENCE`]
    /// was too large.
    pub fn took(&mut self, size: usize, time: Duration) {
        match time > PATIENCE {
            true => self.size = self.size.min(in_patience(size, time)),
            false => self.worked(),
        }
    }
}

/// Returns the share of a batch that would have been done within [`PATIENCE`], at least 1.
fn in_patience(size: usize, time: Duration) -> usize {
    let times = time.as_nanos().div_ceil(PATIENCE.as_nanos());
    usize::try_from(times).map_or(1, |times| (size / times).max(1))
}

#[derive(Debug)]
pub(crate) struct Pace {
    workers: usize,
    limit: AdaptiveBatchSize,
    conflicts: u32,
    /// Consecutive failed attempts to reach the database, or refusals.
    outages: u32,
    /// The failure that caused the outage, or the last known failure.
    last: Failure,
    not_before: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(batch_max: usize, workers: usize) -> Self {
        Self {
            workers,
            limit: AdaptiveBatchSize::of(batch_max),
            conflicts: 0,
            outages: 0,
            last: Failure::Outage,
            not_before: None,
        }
    }

    /// Returns whether one more batch may start while `out` batches are in flight.
    pub(crate) fn may_begin(&self, now: Instant, out: usize) -> bool {
        let workers = match self.is_outage() || self.conflicts >= CONFLICTS_MAX {
            true => 1,
            false => self.workers,
        };
        out < workers && self.not_before.is_none_or(|at| at <= now)
    }

    pub(crate) fn batch_size(&self) -> usize {
        match self.outages.checked_sub(1).filter(|_| self.is_away()) {
            None => self.limit.size(),
            Some(tries) => self.limit.size().min(PROBES[tries as usize % PROBES.len()]),
        }
    }

    pub(crate) fn is_outage(&self) -> bool {
        self.outages > 0
    }

    /// Returns whether no event passes because the database is unreachable. Refusing the handler's
    /// actions does not count as unreachable.
    pub(crate) fn is_away(&self) -> bool {
        self.is_outage() && matches!(self.last, Failure::Outage | Failure::Unregistered)
    }

    /// Returns the time at which the next batch may start, if that is not now.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// Notes that the database recorded an event but applied none. The database may still refuse
    /// the handler's actions.
    pub(crate) fn recorded(&mut self) {
        match self.is_outage() && self.last == Failure::Operator {
            true => self.conflicts = 0,
            false => self.worked(),
        }
    }

    pub(crate) fn worked(&mut self) {
        (self.outages, self.conflicts) = (0, 0);
        self.not_before = None;
        self.limit.worked();
    }

    /// Notes that a batch of this size was cut short after this time, with messages left over.
    pub(crate) fn note_cut_short(&mut self, size: usize, time: Duration) {
        if time > PATIENCE {
            self.limit.took(size, time);
        }
    }

    /// Notes that a batch of this size conflicted with other transactions.
    pub(crate) fn conflicted(&mut self, size: usize, now: Instant, random: &mut Random) {
        self.limit.failed(size);
        self.conflicts = self.conflicts.saturating_add(1);
        let wait = CONFLICT_WAIT.delay(self.conflicts, random.next_u32());
        self.wait_until(now + wait);
    }

    /// Notes that the database was unreachable, or refuses the handler's actions. Failures during
    /// the wait add no information and are ignored. A server that refuses answers at once, and the
    /// next batch has other events. Therefore the wait after a refusal does not grow.
    pub(crate) fn failed(&mut self, failure: Failure, now: Instant, random: &mut Random) {
        self.last = failure;
        if self.is_outage() && self.not_before.is_some_and(|at| at > now) {
            return;
        }
        self.outages = self.outages.saturating_add(1);
        let wait = OUTAGE_WAIT.delay(self.outages, random.next_u32());
        let is_refused = failure == Failure::Operator;
        self.wait_until(now + if is_refused { wait.min(OUTAGE_WAIT.base) } else { wait });
    }

    /// Notes an answer of the server. A refusal or a conflict proves that the database is
    /// reachable.
    pub(crate) fn answered(&mut self, failure: Failure) {
        if failure != Failure::Outage {
            self.last = failure;
        }
        if failure.may_be_transient() {
            self.outages = 0;
        }
    }

    fn wait_until(&mut self, at: Instant) {
        self.not_before = self.not_before.max(Some(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_halves_the_batch_and_several_leave_one_worker() {
        let (mut pace, mut random, now) = (Pace::new(200, 4), Random::new(1), Instant::now());
        pace.conflicted(200, now, &mut random);
        assert_eq!(pace.batch_size(), 100);
        assert!(!pace.may_begin(now, 0), "it waits a moment");
        let later = now + CONFLICT_WAIT.cap;
        assert!(pace.may_begin(later, 3));
        pace.conflicted(100, now, &mut random);
        pace.conflicted(1, now, &mut random);
        assert_eq!(pace.batch_size(), 1);
        assert!(pace.may_begin(later, 0) && !pace.may_begin(later, 1));
        pace.worked();
        assert_eq!(pace.batch_size(), 2);
        assert!(pace.may_begin(now, 3));
    }

    #[test]
    fn in_an_outage_one_small_batch_looks_whether_it_is_over() {
        let (mut pace, mut random, now) = (Pace::new(200, 4), Random::new(1), Instant::now());
        for _ in 0..4 {
            pace.failed(Failure::Outage, now, &mut random);
        }
        let soon = now + OUTAGE_WAIT.base;
        assert!(pace.may_begin(soon, 0), "four workers that fail at once are one failure");
        assert!(!pace.may_begin(soon, 1));
        assert_eq!(pace.batch_size(), 10);
        pace.worked();
        assert_eq!(pace.batch_size(), 200);
    }

    #[test]
    fn in_an_outage_batches_become_small_and_then_begin_anew() {
        let (mut pace, mut random, mut now) = (Pace::new(200, 4), Random::new(1), Instant::now());
        let mut sizes = Vec::new();
        for _ in 0..5 {
            pace.failed(Failure::Outage, now, &mut random);
            sizes.push(pace.batch_size());
            now += OUTAGE_WAIT.cap;
        }
        assert_eq!(sizes, [10, 5, 2, 1, 10]);
        assert!(pace.is_outage() && pace.is_away());
    }

    #[test]
    fn where_the_server_refuses_the_next_full_batch_goes_soon() {
        let (mut pace, mut random, mut now) = (Pace::new(200, 4), Random::new(1), Instant::now());
        for _ in 0..5 {
            pace.failed(Failure::Operator, now, &mut random);
            now += OUTAGE_WAIT.base;
            assert!(pace.may_begin(now, 0) && !pace.may_begin(now, 1));
            assert_eq!(pace.batch_size(), 200);
        }
        assert!(pace.is_outage() && !pace.is_away(), "the database answers");
        pace.recorded();
        assert!(pace.is_outage(), "nothing was applied");
        pace.worked();
        assert!(!pace.is_outage());
    }
}
