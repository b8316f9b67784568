//! Positions from which the stream may resume.
//!
//! There are two types, because mixing them up loses rows. An [`Lsn`] is any position. A
//! [`Boundary`] is a position from which streaming may resume without losing rows. Only the decoder
//! creates boundaries.

pub use walrelay_envelope::{Lsn, ParseLsnError, Position};

/// An [`Lsn`] from which the stream can be resumed without losing a row.
///
/// Only the decoder creates boundaries, from one of these positions:
/// - a commit's `end_lsn`
/// - a keepalive's position outside a transaction
/// - the commit position of a transaction that the caller skips entirely
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
