//! The range of the stream that a run reads.

use pgoutput_parser::Lsn;

use crate::settings::Until;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopPosition {
    Open,
    /// Commits before this position. Another process publishes the rest.
    Before(Lsn),
    /// The first transaction of the rest has arrived.
    Reached,
}

impl StopPosition {
    /// Returns the extent of a run that ends like this.
    #[must_use]
    pub const fn of(until: Until) -> Self {
        match until {
            Until::Stopped | Until::CaughtUp => Self::Open,
            Until::Position(end) => Self::Before(end),
        }
    }

    /// Returns whether a transaction committed at `commit` is outside of the extent.
    #[must_use]
    pub fn ends_at(self, commit: Lsn) -> bool {
        match self {
            Self::Open => false,
            Self::Before(end) => commit >= end,
            Self::Reached => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_at_the_end_or_behind_it_is_not_taken_in() {
        let ends = |extent: StopPosition| [19, 20, 21].map(|at| extent.ends_at(Lsn::new(at)));
        assert_eq!(ends(StopPosition::of(Until::Position(Lsn::new(20)))), [false, true, true]);
        assert_eq!(ends(StopPosition::of(Until::CaughtUp)), [false; 3]);
        assert_eq!(ends(StopPosition::Reached), [true; 3]);
    }
}
