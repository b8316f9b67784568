//! When lanes are looked at again, soonest first.
//!
//! A lane that gets another time gets another entry, and the one before goes stale: it is passed over
//! when its time comes, and swept out when such entries outnumber the others. Without that, memory would
//! follow the rows of parked keys, each of which puts its key's time off (I6).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::lane::LaneId;

#[derive(Debug)]
pub(super) struct DueLanes {
    heap: BinaryHeap<Reverse<(Instant, LaneId)>>,
    /// So many entries, and the stale ones are swept out.
    sweep_at: usize,
}

impl DueLanes {
    /// Fewer entries than this are not worth a sweep.
    const SWEEP_MIN: usize = 1_024;

    pub(super) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), sweep_at: Self::SWEEP_MIN }
    }

    /// A lane is to be looked at then. `is_current` tells of an entry whether its lane still waits for
    /// that time.
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
        // Twice what is left: a sweep costs no more than the pushes since the last one.
        self.sweep_at = Self::SWEEP_MIN.max(self.heap.len() * 2);
    }

    /// The next lane whose time has come, and the time; it may wait for another one by now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Instant, LaneId)> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// When the next one is due.
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
