//! The age of WAL that the server has and does not send, although the relay reads.
//!
//! The relay's own pauses are no such stall, nor is a server that decodes a large transaction. The
//! stream looks the same for a server that waits, for example for a standby that does not
//! exist. So the state of the server process that sends is measured with the end of WAL.

use std::time::{Duration, Instant};

use pgoutput_parser::Lsn;

use crate::stream::wal_end::{Measured, SenderState};

/// The age from which the relay is not ready. A healthy server reports its position at least every
/// ten seconds.
pub const UNSENT_AGE_MAX: Duration = Duration::from_secs(20);

/// What has arrived from the server so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// The position that the stream has reached.
    pub to: Lsn,
    /// A number that grows whenever a part of the WAL arrives. Rows of a long transaction do not
    /// move the position.
    pub wal_count: u64,
    pub is_reading: bool,
}

/// Follows the WAL that was measured and has not been sent.
#[derive(Debug, Default)]
pub struct UnsentWal {
    /// An end of WAL that the stream has not reached, and the time of its measurement.
    missing: Option<(Lsn, Instant)>,
    /// The last time at which the silence had another reason.
    excused_at: Option<Instant>,
    /// What had arrived at the last measurement.
    before: Option<Arrived>,
}

impl UnsentWal {
    /// Takes a measurement and returns the age.
    pub fn measured(&mut self, measured: &Measured, arrived: Arrived, now: Instant) -> Duration {
        if self.missing.is_some_and(|(end, _)| end <= arrived.to) {
            self.missing = None;
        }
        if arrived.to < measured.wal_end {
            self.missing.get_or_insert((measured.wal_end, now));
        }
        let is_silent = self.before.replace(arrived) == Some(arrived);
        if !is_silent || !arrived.is_reading || measured.sender == SenderState::Busy {
            self.excused_at = Some(now);
        }
        let Some((_, since)) = self.missing else { return Duration::ZERO };
        let since = self.excused_at.map_or(since, |excused_at| excused_at.max(since));
        now.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_core::WalRetentionLimit;

    use super::*;

    fn measured(wal_end: u64, sender: SenderState) -> Measured {
        let retention = WalRetentionLimit::Unlimited;
        Measured { wal_end: Lsn::new(wal_end), retention, sender, commit_wait: Duration::ZERO }
    }

    #[test]
    fn only_wal_that_a_waiting_server_keeps_from_a_reading_relay_has_an_age() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut wal = UnsentWal::default();
        let mut age = |end, (to, wal_count, is_reading), sender, seconds| {
            let arrived = Arrived { to: Lsn::new(to), wal_count, is_reading };
            wal.measured(&measured(end, sender), arrived, at(seconds)).as_secs()
        };
        let waiting = SenderState::Waiting;
        assert_eq!(age(100, (100, 1, true), waiting, 0), 0, "all was sent");
        assert_eq!(age(200, (100, 1, true), waiting, 1), 0);
        assert_eq!(age(300, (100, 1, true), waiting, 11), 10, "of the oldest end");
        assert_eq!(age(300, (250, 2, true), waiting, 12), 0, "the oldest end has arrived");
        assert_eq!(age(300, (250, 2, true), waiting, 40), 28);
        assert_eq!(age(300, (250, 2, false), waiting, 41), 0, "our own pause");
        assert_eq!(age(300, (250, 2, true), waiting, 42), 0, "we have just begun to read again");
        assert_eq!(age(300, (250, 2, true), waiting, 45), 3);
        assert_eq!(age(300, (250, 2, true), SenderState::Busy, 50), 0, "it decodes");
        assert_eq!(age(300, (250, 2, true), waiting, 53), 3);
        assert_eq!(age(300, (250, 3, true), waiting, 60), 0, "rows of an open transaction arrive");
    }
}
