//! The one buffer between the socket and everything that reads messages from it.
//!
//! ```text
//!        start            end             buffer.len()
//! ───────┬────────────────┬───────────────┬
//!  taken │ read, not taken│ free          │
//! ```
//!
//! A read takes all bytes of the socket that fit into the free space. Messages are taken as ranges
//! and borrowed from the buffer, so only the kernel copies a row. The buffer doubles while a large
//! message arrives. It never grows because of a length field alone, and it shrinks later.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use walrelay_pg_client::PgError;

/// Initial size. It is large enough that a read under load returns hundreds of rows, and small
/// enough for every connection.
const BUFFER_BYTES: usize = 256 * 1024;

/// A grown buffer shrinks after this many reads without a large message. Shrinking at once would
/// allocate memory for each row of a table with large rows.
const SHRINK_AFTER_READS: u32 = 8;

/// Length of the tag and the length field at the start of every message.
const HEADER_BYTES: usize = 5;

/// Postgres builds no message above 1 GiB (`MaxAllocSize`). The frame around it takes a little
/// more.
const PROTOCOL_BYTES_MAX: usize = (1 << 30) + (64 << 10);

#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    message_bytes_max: usize,
    small_reads: u32,
}

/// The location of a complete message in the buffer, until the next read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocatedMessage {
    pub(crate) tag: u8,
    /// The message with its tag and length.
    pub(crate) whole: Range<usize>,
}

impl LocatedMessage {
    pub(crate) fn body(&self) -> Range<usize> {
        self.whole.start + HEADER_BYTES..self.whole.end
    }
}

impl ReceiveBuffer {
    pub(crate) fn new(message_bytes_max: usize) -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, message_bytes_max, small_reads: 0 }
    }

    pub(crate) fn set_message_bytes_max(&mut self, bytes: usize) {
        self.message_bytes_max = bytes;
    }

    /// Returns the memory of the buffer in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the next complete message, if it has been read.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<LocatedMessage>, PgError> {
        let Some((tag, len)) = self.header()? else { return Ok(None) };
        if self.end - self.start < len {
            return Ok(None);
        }
        let whole = self.start..self.start + len;
        self.start = whole.end;
        Ok(Some(LocatedMessage { tag, whole }))
    }

    /// Takes the tag and the length of the next message, if it has this tag and is too large for
    /// the buffer. Returns the number of bytes that follow, for [`ReceiveBuffer::take_part`].
    #[cold]
    pub(crate) fn take_head_of_large(&mut self, tag: u8) -> Option<usize> {
        let unread = self.buffer.get(self.start..self.end).unwrap_or_default();
        let (&[found, a, b, c, d], _) = unread.split_first_chunk()?;
        let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if found != tag || len > PROTOCOL_BYTES_MAX {
            return None;
        }
        self.start += HEADER_BYTES;
        // The length includes itself.
        len.checked_sub(HEADER_BYTES - 1)
    }

    /// Takes bytes that have been read, at most `bytes_max`.
    pub(crate) fn take_part(&mut self, bytes_max: usize) -> Range<usize> {
        let part = self.start..self.end.min(self.start.saturating_add(bytes_max));
        self.start = part.end;
        part
    }

    /// Returns the bytes of a message that was taken since the last read.
    #[inline]
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    /// Reads once, as much as is available. Returns the number of bytes, never zero.
    ///
    /// When this is ready, all bytes are in the buffer. When it is not, no byte was read, so a
    /// caller that stops polling loses nothing.
    pub(crate) fn poll_read<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.reserve_space();
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let mut room = ReadBuf::new(room);
        ready!(Pin::new(reader).poll_read(cx, &mut room))?;
        let count = room.filled().len();
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.end += count;
        Poll::Ready(Ok(count))
    }

    /// [`ReceiveBuffer::poll_read`] as a future, with the same cancel safety.
    pub(crate) async fn read<R: AsyncRead + Unpin>(&mut self, reader: &mut R) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(reader, cx)).await
    }

    /// Returns the tag and the whole length of the message at `start`.
    #[inline]
    fn header(&self) -> Result<Option<(u8, usize)>, PgError> {
        let unread = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((&[tag, a, b, c, d], _)) = unread.split_first_chunk() else { return Ok(None) };
        // The length includes itself but not the tag.
        let len = u32::from_be_bytes([a, b, c, d]);
        if len < 4 {
            return Err(PgError::protocol(format!("message {tag:#04x} has length {len}, below 4")));
        }
        let bytes = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1);
        if bytes > self.message_bytes_max {
            return Err(PgError::MessageTooLarge { bytes, limit: self.message_bytes_max });
        }
        Ok(Some((tag, bytes)))
    }

    /// Moves the unread bytes, at most one message's part, to the front. Ensures free space after
    /// them.
    fn reserve_space(&mut self) {
        let unread = self.end - self.start;
        if unread == 0 {
            self.shrink();
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, unread);
        if unread == self.buffer.len() {
            // Grow no further than the largest message, which always fits then.
            let (full, most) = (self.buffer.len(), self.message_bytes_max);
            self.buffer.resize(if full < most { most.min(full * 2) } else { full * 2 }, 0);
            self.small_reads = 0;
        }
    }

    fn shrink(&mut self) {
        if self.buffer.len() <= BUFFER_BYTES {
            return;
        }
        self.small_reads = if self.end > BUFFER_BYTES { 0 } else { self.small_reads + 1 };
        if self.small_reads >= SHRINK_AFTER_READS {
            self.buffer = vec![0; BUFFER_BYTES];
            self.small_reads = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: usize) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&u32::try_from(body + 4).unwrap().to_be_bytes());
        bytes.resize(body + HEADER_BYTES, b'x');
        bytes
    }

    /// Takes the next message, and reads as often as needed.
    async fn next(
        incoming: &mut ReceiveBuffer,
        reader: &mut &[u8],
    ) -> Result<LocatedMessage, PgError> {
        loop {
            if let Some(located) = incoming.take()? {
                return Ok(located);
            }
            incoming.read(reader).await.map_err(PgError::io("read"))?;
        }
    }

    #[tokio::test]
    async fn a_large_message_grows_the_buffer_and_small_ones_give_it_back() {
        let mut bytes = message(b'd', 3_000_000);
        let small = message(b'k', 10);
        bytes.extend_from_slice(&small);
        let mut incoming = ReceiveBuffer::new(4_000_000);
        let mut reader = bytes.as_slice();
        let large = next(&mut incoming, &mut reader).await.unwrap();
        assert_eq!((large.tag, large.body().len()), (b'd', 3_000_000));
        assert!(incoming.memory() >= 3_000_000);
        for _ in 0..2 * SHRINK_AFTER_READS {
            let located = next(&mut incoming, &mut reader).await.unwrap();
            assert_eq!(incoming.bytes(located.whole), small);
            reader = &small;
        }
        assert_eq!(incoming.memory(), BUFFER_BYTES);
    }

    #[tokio::test]
    async fn the_buffer_grows_with_what_arrives_not_with_what_is_announced() {
        let mut incoming = ReceiveBuffer::new(1 << 30);
        let mut reader: &[u8] = &[b'd', 0x3F, 0xFF, 0xFF, 0x00, 1, 2, 3];
        assert!(next(&mut incoming, &mut reader).await.is_err());
        assert_eq!(incoming.memory(), BUFFER_BYTES);
    }

    #[tokio::test]
    async fn a_message_above_the_limit_and_one_below_the_minimum_are_refused() {
        let mut incoming = ReceiveBuffer::new(1_000);
        let large = next(&mut incoming, &mut message(b'd', 1_000).as_slice()).await;
        assert!(matches!(large, Err(PgError::MessageTooLarge { bytes: 1_005, limit: 1_000 })));
        let mut fresh = ReceiveBuffer::new(1_000);
        let small = next(&mut fresh, &mut [b'd', 0, 0, 0, 3].as_slice()).await;
        assert!(matches!(small, Err(PgError::Protocol { .. })));
    }
}
