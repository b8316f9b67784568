//! How large batches are and how many may be out: less after conflicts, one by one in an outage.

use std::time::{Duration, Instant};

use walrelay_core::Random;

use crate::backoff::Backoff;
use crate::failure::Failure;

/// Long enough for the other transaction to be over.
const CONFLICT_WAIT_FIRST: Duration = Duration::from_millis(10);
const CONFLICT_WAIT_LONGEST: Duration = Duration::from_secs(1);
/// A failover takes seconds; a second more hurts nobody, and a server that starts is not flooded.
const OUTAGE_WAIT_FIRST: Duration = Duration::from_millis(100);
const OUTAGE_WAIT_LONGEST: Duration = Duration::from_secs(5);
/// Messages of a batch that looks whether it is over, one after the other: few, and sooner or later one alone,
/// which tells whether it is that one's own trouble.
const PROBES: [usize; 4] = [10, 5, 2, 1];
/// After so many conflicts in a row the workers are in each other's way.
const CONFLICTS_MAX: u32 = 3;

/// How long a culprit is looked for in a batch, once something is known, before the rest of it is put off; as
/// `app_inbox_run` has it. What is not done by then was too much at once.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How much is tried at once: half of what has failed, and twice as much after each success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion {
    most: usize,
    size: usize,
}

impl Portion {
    /// So much, at first and at most.
    #[must_use]
    pub const fn of(most: usize) -> Self {
        Self { most, size: most }
    }

    /// So much now; never nothing.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// So much was too much.
    pub fn failed(&mut self, size: usize) {
        self.size = self.size.min((size / 2).max(1));
    }

    /// It was not too much.
    pub fn worked(&mut self) {
        self.size = (self.size * 2).min(self.most);
    }

    /// So much has taken so long: what takes longer than [`PATIENCE`] was too much.
    pub fn took(&mut self, size: usize, time: Duration) {
        match time > PATIENCE {
            true => self.size = self.size.min(in_patience(size, time)),
            false => self.worked(),
        }
    }
}

/// How much of what has taken so long would have been done in time; never nothing.
fn in_patience(size: usize, time: Duration) -> usize {
    let times = time.as_nanos().div_ceil(PATIENCE.as_nanos());
    usize::try_from(times).map_or(1, |times| (size / times).max(1))
}

#[derive(Debug)]
pub(crate) struct Pace {
    workers: usize,
    limit: Portion,
    conflict: Backoff,
    outage: Backoff,
    /// What the outage is, while there is one.
    last: Failure,
    not_before: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(batch_max: usize, workers: usize) -> Self {
        Self {
            workers,
            limit: Portion::of(batch_max),
            conflict: Backoff::new(CONFLICT_WAIT_FIRST, CONFLICT_WAIT_LONGEST),
            outage: Backoff::new(OUTAGE_WAIT_FIRST, OUTAGE_WAIT_LONGEST),
            last: Failure::Outage,
            not_before: None,
        }
    }

    /// Whether one more batch may go while so many are out.
    pub(crate) fn may_begin(&self, now: Instant, out: usize) -> bool {
        let workers = match self.is_outage() || self.conflict.tries() >= CONFLICTS_MAX {
            true => 1,
            false => self.workers,
        };
        out < workers && self.not_before.is_none_or(|at| at <= now)
    }

    /// Messages of the next batch, at most.
    pub(crate) fn batch_size(&self) -> usize {
        match self.outage.tries().checked_sub(1).filter(|_| self.is_away()) {
            None => self.limit.size(),
            Some(tries) => self.limit.size().min(PROBES[tries as usize % PROBES.len()]),
        }
    }

    pub(crate) fn is_outage(&self) -> bool {
        self.outage.tries() > 0
    }

    /// Nothing passes because the database is not there; not because it refuses what the handler does.
    pub(crate) fn is_away(&self) -> bool {
        self.is_outage() && matches!(self.last, Failure::Outage | Failure::Unregistered)
    }

    /// When the next batch may go, if that is not now.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// The database has taken something down, and nothing was applied: that it refuses what the handler
    /// does may be so still.
    pub(crate) fn recorded(&mut self) {
        match self.is_outage() && self.last == Failure::Operator {
            true => self.conflict.worked(),
            false => self.worked(),
        }
    }

    pub(crate) fn worked(&mut self) {
        self.outage.worked();
        self.conflict.worked();
        self.not_before = None;
        self.limit.worked();
    }

    /// A batch of this size was not done with all of its messages after this time.
    pub(crate) fn was_cut(&mut self, size: usize, time: Duration) {
        if time > PATIENCE {
            self.limit.took(size, time);
        }
    }

    /// A batch of this size met others.
    pub(crate) fn conflicted(&mut self, size: usize, now: Instant, random: &mut Random) {
        self.limit.failed(size);
        let wait = self.conflict.failed(random);
        self.wait_until(now + wait);
    }

    /// The database was not there, or refuses what the handler does. Batches that fail while this is waited
    /// out tell nothing new. A server that refuses answers at once, and what is tried next is something else: it
    /// is not waited for longer each time.
    pub(crate) fn failed(&mut self, failure: Failure, now: Instant, random: &mut Random) {
        self.last = failure;
        if self.is_outage() && self.not_before.is_some_and(|at| at > now) {
            return;
        }
        let wait = self.outage.failed(random);
        let is_refused = failure == Failure::Operator;
        self.wait_until(now + if is_refused { wait.min(OUTAGE_WAIT_FIRST) } else { wait });
    }

    /// Where the server refuses, or others are in the way, it is there, whatever was before.
    pub(crate) fn answered(&mut self, failure: Failure) {
        if failure != Failure::Outage {
            self.last = failure;
        }
        if failure.may_be_an_accident() {
            self.outage.worked();
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
        let later = now + CONFLICT_WAIT_LONGEST;
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
        let soon = now + OUTAGE_WAIT_FIRST;
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
            now += OUTAGE_WAIT_LONGEST;
        }
        assert_eq!(sizes, [10, 5, 2, 1, 10]);
        assert!(pace.is_outage() && pace.is_away());
    }

    #[test]
    fn where_the_server_refuses_the_next_full_batch_goes_soon() {
        let (mut pace, mut random, mut now) = (Pace::new(200, 4), Random::new(1), Instant::now());
        for _ in 0..5 {
            pace.failed(Failure::Operator, now, &mut random);
            now += OUTAGE_WAIT_FIRST;
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
