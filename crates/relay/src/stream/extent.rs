//! How far a stream is taken in.

use pgoutput_parser::Lsn;

use crate::settings::Until;

/// How far a stream is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// As far as it goes.
    Open,
    /// What is committed before this position; the rest is somebody else's.
    Before(Lsn),
    /// The first transaction has come that is somebody else's.
    Reached,
}

impl Extent {
    /// Of a run that ends so.
    #[must_use]
    pub const fn of(until: Until) -> Self {
        match until {
            Until::Stopped | Until::CaughtUp => Self::Open,
            Until::Position(end) => Self::Before(end),
        }
    }

    /// Whether nothing is taken in any more of a transaction that is committed there.
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
        let ends = |extent: Extent| [19, 20, 21].map(|at| extent.ends_at(Lsn::new(at)));
        assert_eq!(ends(Extent::of(Until::Position(Lsn::new(20)))), [false, true, true]);
        assert_eq!(ends(Extent::of(Until::CaughtUp)), [false; 3]);
        assert_eq!(ends(Extent::Reached), [true; 3]);
    }
}
