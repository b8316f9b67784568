//! Positions in the write-ahead log.
//!
//! Two types, because mixing them up loses rows: an [`Lsn`] is any position, a [`Boundary`] is one
//! from which streaming may resume without losing anything. Only the decoder makes boundaries.

use std::fmt;
use std::str::FromStr;

/// A position in the write-ahead log, counted in bytes.
///
/// Printed as Postgres prints `pg_lsn`: two hexadecimal halves, `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// The position before everything; in `START_REPLICATION` it means "from `confirmed_flush_lsn`".
    pub const ZERO: Self = Self(0);

    /// The position at `bytes` from the start of the log.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes from the start of the log.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// How many bytes of log lie between `earlier` and this position; zero if it is not earlier.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an LSN; one looks like `16/B374D848`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an LSN; one looks like 16/B374D848")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            (1..=8)
                .contains(&digits.len())
                .then(|| digits.bytes().all(|b| b.is_ascii_hexdigit()))
                .filter(|all_hex| *all_hex)
                .and_then(|_| u32::from_str_radix(digits, 16).ok())
        };
        let parsed = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        let (high, low) = parsed.ok_or_else(|| ParseLsnError(text.to_owned()))?;
        Ok(Self(u64::from(high) << 32 | u64::from(low)))
    }
}

/// An [`Lsn`] from which the stream can be resumed without losing a row.
///
/// Only the decoder makes these: from a commit's `end_lsn`, or from a keepalive outside a transaction.
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

/// Where a row lies, the same on every delivery: its transaction's commit and its index there.
///
/// `commit_lsn` is Begin's `final_lsn`, so it is known before the first row. It is not what gets
/// confirmed: that is the commit's `end_lsn`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Start of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Index of the row among the transaction's inserts, from 0.
    pub tx_index: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.commit_lsn, self.tx_index)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lsn_prints_and_parses_as_postgres_does() {
        let lsn = Lsn::new(0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert_eq!("16/B374D848".parse(), Ok(lsn));
        assert_eq!("0/0".parse(), Ok(Lsn::ZERO));
    }

    #[test]
    fn what_is_not_an_lsn_is_refused() {
        for text in ["", "/", "1", "1/", "/1", "1/2/3", "g/1", "+1/2", "1/123456789", "-1/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?} was accepted");
        }
    }
}
