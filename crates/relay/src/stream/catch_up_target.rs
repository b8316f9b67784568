//! The goal of a run with `--until-caught-up`: everything that existed at its start.

use std::collections::BTreeSet;

use pgoutput_parser::Lsn;
use walrelay_core::{Topic, Watermark};

/// The end of WAL at the start, the parked keys that were due then, and the spilled rows before
/// that end.
#[derive(Debug)]
pub struct CatchUpTarget {
    end: Lsn,
    due: BTreeSet<(Topic, String)>,
    spilled: Spilled,
}

/// Rows before the end that are pending in dispatch state only because of Pub/Sub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spilled {
    MayWait,
    NoneFound,
    /// Spilled rows are not part of the goal.
    NotWaitedFor,
}

impl CatchUpTarget {
    /// Creates the goal of everything committed before `end`, including spilled rows, and of these
    /// keys.
    #[must_use]
    pub fn new(end: Lsn, due: impl IntoIterator<Item = (Topic, String)>) -> Self {
        Self { end, due: due.into_iter().collect(), spilled: Spilled::MayWait }
    }

    /// Creates the goal that everything committed before `end` is stored or recorded.
    #[must_use]
    pub const fn settled(end: Lsn) -> Self {
        Self { end, due: BTreeSet::new(), spilled: Spilled::NotWaitedFor }
    }

    /// Records the due keys that dispatch state reported. A key that is neither due nor being
    /// delivered is finished: it was delivered, is dead, or waits for a later attempt.
    pub fn looked(&mut self, due: &[(Topic, String)], rests: impl Fn(&Topic, &str) -> bool) {
        self.due.retain(|key| due.contains(key) || !rests(&key.0, &key.1));
    }

    /// Returns the position before which spilled rows must be queried. `Some` only once all those
    /// rows are settled, because no further one can then be spilled.
    #[must_use]
    pub fn spilled_query_position(&self, watermark: Watermark) -> Option<Lsn> {
        let is_next = self.is_settled(watermark) && self.spilled == Spilled::MayWait;
        is_next.then_some(self.end)
    }

    /// Records that dispatch state has no spilled rows before the end.
    pub const fn no_spilled_rows(&mut self) {
        self.spilled = Spilled::NoneFound;
    }

    /// Records that a row of dispatch state is stored. A spilled row may now be the first of its
    /// key.
    pub fn redelivered(&mut self) {
        if self.spilled == Spilled::NoneFound {
            self.spilled = Spilled::MayWait;
        }
    }

    #[must_use]
    pub fn is_reached(&self, watermark: Watermark) -> bool {
        self.is_settled(watermark) && self.spilled != Spilled::MayWait
    }

    fn is_settled(&self, watermark: Watermark) -> bool {
        self.due.is_empty() && watermark.lsn() >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgoutput_parser::encode;
    use walrelay_core::Tracker;

    fn key(name: &str) -> (Topic, String) {
        (Topic::from("t"), name.to_owned())
    }

    #[test]
    fn only_keys_that_were_due_at_the_start_are_waited_for() {
        let mut goal = CatchUpTarget::new(Lsn::ZERO, [key("a"), key("b")]);
        goal.looked(&[key("a"), key("new")], |_, _| true);
        assert_eq!(goal.due.iter().collect::<Vec<_>>(), [&key("a")]);
        goal.looked(&[key("new")], |_, _| false);
        assert!(!goal.due.is_empty(), "it is being delivered");
        goal.looked(&[key("new")], |_, _| true);
        assert!(goal.due.is_empty());
    }

    fn watermark(lsn: u64) -> Watermark {
        let mut tracker = Tracker::new();
        tracker.observe(encode::boundary(Lsn::new(lsn)));
        tracker.intact(Lsn::new(lsn));
        tracker.watermark()
    }

    #[test]
    fn it_is_reached_when_the_log_of_the_start_is_settled_and_no_key_is_waited_for() {
        let mut goal = CatchUpTarget::new(Lsn::new(9), [key("a")]);
        goal.no_spilled_rows();
        assert!(!goal.is_reached(watermark(9)), "a key is waited for");
        goal.looked(&[], |_, _| true);
        assert!(!goal.is_reached(watermark(8)));
        assert!(goal.is_reached(watermark(9)) && goal.is_reached(watermark(10)));
        assert!(CatchUpTarget::settled(Lsn::new(9)).is_reached(watermark(9)));
    }

    #[test]
    fn what_was_spilled_of_the_log_of_the_start_is_waited_for_once_that_is_settled() {
        let mut goal = CatchUpTarget::new(Lsn::new(9), [key("a")]);
        assert_eq!(goal.spilled_query_position(watermark(9)), None, "a key is waited for");
        goal.looked(&[], |_, _| true);
        assert_eq!(goal.spilled_query_position(watermark(8)), None);
        assert_eq!(goal.spilled_query_position(watermark(10)), Some(Lsn::new(9)));
        assert!(!goal.is_reached(watermark(10)));
        assert_eq!(goal.spilled_query_position(watermark(10)), Some(Lsn::new(9)), "asked again");
        goal.no_spilled_rows();
        assert!(goal.is_reached(watermark(10)));
        assert_eq!(goal.spilled_query_position(watermark(10)), None);
        goal.redelivered();
        assert!(!goal.is_reached(watermark(10)), "what stood behind it is looked for");
        let mut settled = CatchUpTarget::settled(Lsn::new(9));
        settled.redelivered();
        assert!(settled.is_reached(watermark(9)));
    }
}
