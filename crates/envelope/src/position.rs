//! WAL positions and their text form: `16/B374D848`, `16/B374D848#3`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// A WAL position, counted in bytes.
///
/// Printed as Postgres prints `pg_lsn`: two hexadecimal halves, `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// The lowest position. In `START_REPLICATION` it means "from `confirmed_flush_lsn`".
    pub const ZERO: Self = Self(0);

    /// Creates a position from the number of bytes since the start of the WAL.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes since the start of the WAL.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number of WAL bytes between `earlier` and this position, or 0 if `earlier` is not
    /// earlier.
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

/// The text is not an LSN such as `16/B374D848`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLsnError(String);

impl fmt::Display for ParseLsnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an LSN; one looks like 16/B374D848", self.0)
    }
}

impl Error for ParseLsnError {}

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

/// The position of a row, equal on every delivery: its transaction's commit and its index there.
///
/// `commit_lsn` is Begin's `final_lsn`, so it is known before the first row. The relay confirms the
/// commit's `end_lsn` instead. Positions compare in commit order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The start of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// The index of the row among the transaction's inserts, from 0.
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

/// The text is not a position such as `16/B374D848#3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsePositionError(String);

impl fmt::Display for ParsePositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a position; one looks like 16/B374D848#3", self.0)
    }
}

impl Error for ParsePositionError {}

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The ids of recorded rows have a second slash before the index.
        let parts = text.split_once('#').or_else(|| text.rsplit_once('/'));
        let parsed = parts.and_then(|(commit_lsn, index)| {
            // `parse` alone would accept a sign.
            let is_number = index.bytes().all(|byte| byte.is_ascii_digit());
            let tx_index = index.parse().ok().filter(|_| is_number)?;
            Some(Self { commit_lsn: commit_lsn.parse().ok()?, tx_index })
        });
        parsed.ok_or_else(|| ParsePositionError(text.to_owned()))
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

    #[test]
    fn a_position_reads_back_as_it_is_printed() {
        let position = Position { commit_lsn: Lsn::new(0x16_B374_D848), tx_index: 3 };
        assert_eq!(position.to_string(), "16/B374D848#3");
        assert_eq!("16/B374D848#3".parse(), Ok(position));
        assert_eq!("16/B374D848/3".parse(), Ok(position), "as it stands in event ids");
    }

    #[test]
    fn what_is_not_a_position_is_refused() {
        for text in ["", "#", "1/2", "1/2#", "#3", "1/2#-1", "1/2#+1", "1/2#3#4", "1/2#4294967296"]
        {
            assert!(text.parse::<Position>().is_err(), "{text:?} was accepted");
        }
    }
}
