//! The times at which lanes are checked again, soonest first.
//!
//! A lane with a new time gets a new entry, and its old entry becomes stale. A stale entry is
//! skipped when its time comes, and removed when stale entries outnumber the others. Otherwise
//! memory would follow the rows of parked keys, each of which postpones its key (I6).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::lanes::lane::LaneId;

#[derive(Debug)]
pub(super) struct DueLanes {
    heap: BinaryHeap<Reverse<(Instant, LaneId)>>,
    /// The number of entries at which stale ones are removed.
    sweep_at: usize,
}

impl DueLanes {
    /// The smallest number of entries that is worth a sweep.
    const SWEEP_MIN: usize = 1_024;

    pub(super) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), sweep_at: Self::SWEEP_MIN }
    }

    /// Schedules a lane. `is_current` returns whether the lane of an entry still waits for that
    /// time.
    pub(super) fn push(
        &mut self,
        at: Instant,
        id: LaneId,
        is_current: impl Fn(Instant, LaneId) -> bool,
    ) {
        self.heap.push(Reverse((at, id)));
        if self.heap.len() < self.sweep_at {
            return;
        }
        self.heap.retain(|Reverse((until, lane))| is_current(*until, *lane));
        // Twice the remaining entries, so that a sweep costs no more than the pushes since the last
        // one.
        self.sweep_at = Self::SWEEP_MIN.max(self.heap.len() * 2);
    }

    /// The next due lane and its time. The entry may be stale.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Instant, LaneId)> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lanes_that_are_put_off_again_and_again_take_no_more_memory() {
        let begin = Instant::now();
        let mut due = DueLanes::new();
        let mut waits = [begin; 100];
        for step in 0_u32..1_000_000 {
            let id = step % 100;
            let at = begin + Duration::from_millis(u64::from(step));
            waits[id as usize] = at;
            due.push(at, LaneId(id), |until, lane| waits[lane.0 as usize] == until);
        }
        assert!(due.heap.len() <= DueLanes::SWEEP_MIN, "{}", due.heap.len());
        let end = begin + Duration::from_secs(1_000_000);
        let last: Vec<_> = std::iter::from_fn(|| due.pop(end))
            .skip_while(|entry| waits[entry.1.0 as usize] != entry.0)
            .collect();
        assert_eq!(last.len(), 100, "every lane has the time it waits for");
    }

    #[test]
    fn as_many_lanes_as_wait_are_kept_and_come_when_they_are_due() {
        let begin = Instant::now();
        let at = |id: u32| begin + Duration::from_millis(u64::from(id));
        let mut due = DueLanes::new();
        for id in (0..5_000).rev() {
            due.push(at(id), LaneId(id), |until, lane| at(lane.0) == until);
        }
        assert_eq!(due.next(), Some(at(0)));
        let first: Vec<_> = std::iter::from_fn(|| due.pop(at(2))).collect();
        assert_eq!(first, [0, 1, 2].map(|id| (at(id), LaneId(id))));
        assert_eq!(due.next(), Some(at(3)));
        assert_eq!(std::iter::from_fn(|| due.pop(at(5_000))).count(), 4_997);
    }
}
