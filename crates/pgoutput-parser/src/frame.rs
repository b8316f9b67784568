//! The outer layer: what CopyData carries while a slot streams.
//!
//! ```text
//! XLogData            'w' │ wal_start 8 │ wal_end 8 │ sent_at 8 │ data …
//! Keepalive           'k' │ wal_end 8 │ sent_at 8 │ reply_requested 1
//! StandbyStatusUpdate 'r' │ write 8 │ flush 8 │ apply 8 │ sent_at 8 │ reply_requested 1   (to the server)
//! ```
//!
//! Integers are big-endian; times count microseconds since 2000-01-01 UTC. The manual: "Streaming
//! Replication Protocol".

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
    /// A sign of life, and how far the server has read.
    Keepalive(Keepalive),
}

impl<'a> Frame<'a> {
    /// The frame in a CopyData payload, borrowing its data.
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

/// One message of the output plugin, and where it lies in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct XLogData<'a> {
    /// Where the change lies. Not a position of the row: rows share it, and between transactions it
    /// goes backwards. Zero for Relation messages.
    pub wal_start: Lsn,
    /// The same as `wal_start` for logical replication; the server's end of log is in keepalives.
    pub wal_end: Lsn,
    /// The server's clock when it sent the frame.
    pub sent_at: PgTimestamp,
    /// One pgoutput message, for [`Decoder::decode`](crate::Decoder::decode).
    pub data: &'a [u8],
}

impl fmt::Debug for XLogData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The data holds column values, which must not reach logs.
        f.debug_struct("XLogData")
            .field("wal_start", &self.wal_start)
            .field("wal_end", &self.wal_end)
            .field("sent_at", &self.sent_at)
            .field("data_bytes", &self.data.len())
            .finish()
    }
}

/// A sign of life from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Everything before this was sent or is not for us. Only [`Decoder::boundary`] knows whether it
    /// may be confirmed.
    ///
    /// [`Decoder::boundary`]: crate::Decoder::boundary
    pub wal_end: Lsn,
    /// The server's clock when it sent the frame.
    pub sent_at: PgTimestamp,
    /// The server ends the connection unless a status update comes soon.
    pub reply_requested: bool,
}

/// What we tell the server: how far it may forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatusUpdate {
    /// Shown in `pg_stat_replication`, nothing else.
    pub write: Lsn,
    /// The promise: the slot never delivers again what lies before it. The server believes any value.
    pub flush: Lsn,
    /// Shown in `pg_stat_replication`, nothing else.
    pub apply: Lsn,
    /// Our clock, for the server's statistics.
    pub sent_at: PgTimestamp,
    /// Asks the server for a keepalive.
    pub reply_requested: bool,
}

impl StandbyStatusUpdate {
    const TAG: u8 = b'r';

    /// The CopyData payload.
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

    /// The update in a CopyData payload, as a server reads it; for test servers.
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
