//! Notices, without I/O, that the server was restored from a disk snapshot under a running relay.
//!
//! Such a snapshot keeps the system identifier and the timeline. Its WAL ends before positions that
//! the server has already sent, and new rows get those positions again. Only the memory of this
//! process can show that, because the relay's own row is part of the snapshot.

use pgoutput_parser::Lsn;

use crate::error::RelayError;

/// The positions that this process has read from a server.
#[derive(Debug, Default)]
pub struct ServerHistory(Option<ReadHistory>);

#[derive(Debug)]
struct ReadHistory {
    /// The identity of the WAL: system identifier and timeline.
    log: String,
    /// The last position that was read or settled.
    read_to: Lsn,
    /// The end of WAL before that position, once it was seen.
    restored_at: Option<Lsn>,
}

impl ServerHistory {
    /// Rejects a server whose WAL ends before a position that this process has read from the same
    /// WAL. `wal_end` is the end of the WAL on disk of a primary. A rejected server stays rejected
    /// until it has another timeline, because its WAL soon grows beyond that position.
    pub fn check(&mut self, log: Option<&str>, wal_end: Lsn) -> Result<(), RelayError> {
        if let Some(known) = self.0.as_mut().filter(|known| log == Some(&*known.log))
            && wal_end < known.read_to
        {
            known.restored_at.get_or_insert(wal_end);
        }
        self.reject_restored(log)
    }

    /// Rejects a server that an earlier [`check`](Self::check) has rejected.
    pub fn reject_restored(&self, log: Option<&str>) -> Result<(), RelayError> {
        let known = self.0.as_ref().filter(|known| log == Some(&*known.log));
        match known.and_then(|known| known.restored_at.zip(Some(known.read_to))) {
            Some((wal_end, read_to)) => Err(RelayError::ServerRestored { wal_end, read_to }),
            None => Ok(()),
        }
    }

    /// Records the last position that a session has read or settled. Rows of a table have no WAL.
    pub fn read(&mut self, log: Option<&str>, position: Lsn) {
        let Some(log) = log else { return };
        match &mut self.0 {
            Some(known) if known.log == log => known.read_to = known.read_to.max(position),
            Some(_) | None => {
                let log = log.to_owned();
                self.0 = Some(ReadHistory { log, read_to: position, restored_at: None });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_wal_ends_before_a_position_that_was_read_is_rejected_until_its_timeline_changes()
     {
        let mut history = ServerHistory::default();
        let is_rejected = |known: &mut ServerHistory, log, wal_end| {
            known.check(Some(log), Lsn::new(wal_end)).is_err()
        };
        assert!(!is_rejected(&mut history, "7/1", 5), "nothing was read yet");
        history.read(Some("7/1"), Lsn::new(100));
        history.read(Some("7/1"), Lsn::new(90));
        assert!(!is_rejected(&mut history, "7/1", 100), "a restart");
        assert!(!is_rejected(&mut history, "7/2", 50), "a promotion");
        assert!(is_rejected(&mut history, "7/1", 99));
        assert!(is_rejected(&mut history, "7/1", 200), "its WAL has grown beyond the position");
        history.read(Some("7/2"), Lsn::new(60));
        assert!(!is_rejected(&mut history, "7/2", 60));
    }

    #[test]
    fn rows_of_a_table_have_no_wal_to_compare() {
        let mut history = ServerHistory::default();
        history.read(None, Lsn::new(100));
        assert!(history.check(None, Lsn::new(1)).is_ok());
    }
}
