//! The outer layer: the CopyData payloads while a slot streams.
//!
//! ```text
//! XLogData            'w' │ wal_start 8 │ wal_end 8 │ sent_at 8 │ data …
//! Keepalive           'k' │ wal_end 8 │ sent_at 8 │ reply_requested 1
//! StandbyStatusUpdate 'r' │ write 8 │ flush 8 │ apply 8 │ sent_at 8 │ reply_requested 1   (to the server)
//! ```
//!
//! Integers are big-endian. Times count microseconds since 2000-01-01 UTC. See "Streaming
//! Replication Protocol" in the manual.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::{DecodeError, MessageKind};
use crate::lsn::Lsn;
use crate::time::PgTimestamp;

/// One CopyData payload from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// One message of the output plugin.
    XLogData(XLogData<'a>),
    /// A keepalive with the position that the server has read.
    Keepalive(Keepalive),
}

impl<'a> Frame<'a> {
    /// Parses the frame in a CopyData payload and borrows its data.
    ///
    /// # Errors
    ///
    /// The tag is neither `w` nor `k`, a field is missing, or bytes are left over.
    #[inline]
    pub fn parse(copy_data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(MessageKind::Frame, copy_data);
        match cursor.peek() {
            Some(b'w') => {
                cursor = cursor.named(MessageKind::XLogData);
                cursor.u8("tag")?;
                Ok(Self::XLogData(XLogData {
                    wal_start: cursor.lsn("wal_start")?,
                    wal_end: cursor.lsn("wal_end")?,
                    sent_at: cursor.timestamp("sent_at")?,
                    data: cursor.rest(),
                }))
            }
            Some(b'k') => {
                cursor = cursor.named(MessageKind::Keepalive);
                cursor.u8("tag")?;
                let keepalive = Keepalive {
                    wal_end: cursor.lsn("wal_end")?,
                    sent_at: cursor.timestamp("sent_at")?,
                    reply_requested: cursor.flag("reply_requested")?,
                };
                cursor.finish()?;
                Ok(Self::Keepalive(keepalive))
            }
            Some(_) | None => Err(cursor.wrong_byte("'w' (XLogData) or 'k' (Keepalive)")),
        }
    }
}

/// One message of the output plugin, and its WAL position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct XLogData<'a> {
    /// The WAL position of the change. This is not the position of a row: rows share it, and it
    /// goes backwards between transactions. Zero for Relation messages.
    pub wal_start: Lsn,
    /// Equal to `wal_start` for logical replication. Keepalives contain the server's WAL end.
    pub wal_end: Lsn,
    /// The server's clock when it sent the frame.
    pub sent_at: PgTimestamp,
    /// One pgoutput message, for [`Decoder::decode`](crate::Decoder::decode).
    pub data: &'a [u8],
}

impl fmt::Debug for XLogData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The data contains column values, which must not be logged.
        f.debug_struct("XLogData")
            .field("wal_start", &self.wal_start)
            .field("wal_end", &self.wal_end)
            .field("sent_at", &self.sent_at)
            .field("data_bytes", &self.data.len())
            .finish()
    }
}

/// A keepalive from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// The server has sent everything before this position, or skipped it because it is not
    /// published. Only [`Decoder::boundary`] knows whether the position may be confirmed.
    ///
    /// [`Decoder::boundary`]: crate::Decoder::boundary
    pub wal_end: Lsn,
    /// The server's clock when it sent the frame.
    pub sent_at: PgTimestamp,
    /// The server ends the connection unless a status update arrives soon.
    pub reply_requested: bool,
}

/// The client's report to the server: the positions up to which the server may forget WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatusUpdate {
    /// Only shown in `pg_stat_replication`.
    pub write: Lsn,
    /// The confirmed position: the slot never delivers anything before it again. The server
    /// believes any value.
    pub flush: Lsn,
    /// Only shown in `pg_stat_replication`.
    pub apply: Lsn,
    /// The client's clock, for the server's statistics.
    pub sent_at: PgTimestamp,
    /// Asks the server for a keepalive.
    pub reply_requested: bool,
}

impl StandbyStatusUpdate {
    const TAG: u8 = b'r';

    /// Encodes the CopyData payload.
    #[must_use]
    pub fn encode(&self) -> [u8; 34] {
        let mut bytes = [0; 34];
        let fields = [Self::TAG]
            .into_iter()
            .chain(self.write.as_u64().to_be_bytes())
            .chain(self.flush.as_u64().to_be_bytes())
            .chain(self.apply.as_u64().to_be_bytes())
            .chain(self.sent_at.as_micros().to_be_bytes())
            .chain([u8::from(self.reply_requested)]);
        for (byte, field) in bytes.iter_mut().zip(fields) {
            *byte = field;
        }
        bytes
    }

    /// Parses an update from a CopyData payload, as a server would. For test servers.
    ///
    /// # Errors
    ///
    /// The tag is not `r`, a field is missing, or bytes are left over.
    pub fn parse(copy_data: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(MessageKind::StandbyStatusUpdate, copy_data);
        if cursor.peek() != Some(Self::TAG) {
            return Err(cursor.wrong_byte("'r' (StandbyStatusUpdate)"));
        }
        cursor.u8("tag")?;
        let update = Self {
            write: cursor.lsn("write")?,
            flush: cursor.lsn("flush")?,
            apply: cursor.lsn("apply")?,
            sent_at: cursor.timestamp("sent_at")?,
            reply_requested: cursor.flag("reply_requested")?,
        };
        cursor.finish()?;
        Ok(update)
    }
}
