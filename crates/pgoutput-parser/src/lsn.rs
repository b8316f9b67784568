//! Positions from which the stream may resume.
//!
//! Two types, because mixing them up loses rows: an [`Lsn`] is any position, a [`Boundary`] is one
//! from which streaming may resume without losing anything. Only the decoder makes boundaries.

pub use walrelay_envelope::{Lsn, ParseLsnError, Position};

/// An [`Lsn`] from which the stream can be resumed without losing a row.
///
/// Only the decoder makes these: from a commit's `end_lsn`, from a keepalive outside a transaction, or from
/// where the commit of a transaction lies of which nothing is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boundary(Lsn);

impl Boundary {
    pub(crate) const fn new(lsn: Lsn) -> Self {
        Self(lsn)
    }

    /// The position itself.
    #[must_use]
    pub const fn lsn(self) -> Lsn {
        self.0
    }
}
