//! The reading half of a stream.
//!
//! Owns the socket's reading side and its buffer. Returns every frame in order, or an error. A
//! message that is not a frame either does not affect the rows or ends the stream. A frame that is
//! too large for memory is [condensed](Condenser) while it arrives. Fails when the server ends or
//! breaks the stream, warns that rows are missing, or has been silent for too long.

use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use walrelay_pg_client::PgError;
use walrelay_pg_client::ServerError;

use bytes::BytesMut;
use pgoutput_parser::{CondenseLimits, Condenser, Frame};
use postgres_protocol::message::backend;
use tokio::io::AsyncRead;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::receive_buffer::{LocatedMessage, ReceiveBuffer};
use crate::stream_settings::StreamSettings;

/// The longest search for the server's last error.
const PARTING_TIMEOUT: Duration = Duration::from_secs(1);

/// The frames of a stream, in order.
#[derive(Debug)]
pub struct Frames<R> {
    reader: R,
    incoming: ReceiveBuffer,
    large: LargeFrame,
    limits: CondenseLimits,
    silence_limit: Duration,
    last_notice: Option<ServerError>,
    /// The number of frames with WAL so far, and of parts of large ones.
    wal_count: u64,
    read_at: Instant,
    /// Fires when the silence may have lasted too long, and is reset only then.
    silence: Pin<Box<Sleep>>,
}

/// The state of a frame that is too large for the buffer.
enum LargeFrame {
    None,
    /// A large frame that has not arrived completely.
    Arriving(Condenser),
    /// The condensed frame that was taken last.
    Condensed(Vec<u8>),
}

impl fmt::Debug for LargeFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the frame, because its column values must not reach logs.
        match self {
            Self::None => f.write_str("None"),
            Self::Arriving(condenser) => f.debug_tuple("Arriving").field(condenser).finish(),
            Self::Condensed(frame) => f.debug_tuple("Condensed").field(&frame.len()).finish(),
        }
    }
}

enum LargeFrameProgress {
    Nothing,
    Arriving,
    Complete,
}

/// The location of a frame's bytes, until the next frame is taken.
enum Place {
    Buffer(Range<usize>),
    Condensed,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R, incoming: ReceiveBuffer, settings: &StreamSettings) -> Self {
        Self {
            reader,
            incoming,
            large: LargeFrame::None,
            limits: settings.condense_limits(),
            silence_limit: settings.silence_limit,
            last_notice: None,
            wal_count: 0,
            read_at: Instant::now(),
            silence: Box::pin(sleep(settings.silence_limit)),
        }
    }

    /// Waits for the next frame and returns it.
    ///
    /// # Errors
    ///
    /// The stream has ended. See [`PgError`]. The caller must not read after an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing. Bytes that were read stay in the buffer, and a frame
    /// counts as taken only when it is returned.
    pub async fn next(&mut self) -> Result<Frame<'_>, PgError> {
        let place = loop {
            if let Some(place) = self.take_frame()? {
                break place;
            }
            poll_fn(|cx| self.poll_read(cx)).await?;
        };
        Frame::parse(self.bytes(place)).map_err(PgError::Frame)
    }

    /// Returns the next frame if it has already been read. Performs no I/O.
    pub fn buffered(&mut self) -> Result<Option<Frame<'_>>, PgError> {
        match self.take_frame()? {
            Some(place) => Frame::parse(self.bytes(place)).map(Some).map_err(PgError::Frame),
            None => Ok(None),
        }
    }

    /// Returns the error with which the server ended the stream, after a write has failed. The error
    /// may be behind frames that were not read, because of back-pressure. Drops these frames.
    pub async fn parting_error(&mut self) -> Option<PgError> {
        match timeout(PARTING_TIMEOUT, self.discard()).await {
            Ok(Err(error)) if error.server().is_some() => Some(error),
            Ok(_) | Err(_) => None,
        }
    }

    /// Returns a number that grows whenever a part of the WAL arrives.
    #[must_use]
    pub const fn wal_count(&self) -> u64 {
        self.wal_count
    }

    /// Returns the last notice of the server in this session.
    #[must_use]
    pub fn last_notice(&self) -> Option<&ServerError> {
        self.last_notice.as_ref()
    }

    /// Returns the memory of the buffer in bytes, for the byte budget (I6).
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        let large = match &self.large {
            LargeFrame::None => 0,
            LargeFrame::Arriving(condenser) => condenser.memory(),
            LargeFrame::Condensed(frame) => frame.capacity(),
        };
        self.incoming.memory() + large
    }

    /// Reads and drops everything up to the server's ReadyForQuery, after our CopyDone.
    pub(crate) async fn discard(&mut self) -> Result<(), PgError> {
        let mut left = match &self.large {
            LargeFrame::Arriving(condenser) => condenser.missing(),
            LargeFrame::None | LargeFrame::Condensed(_) => 0,
        };
        self.large = LargeFrame::None;
        loop {
            left -= self.incoming.take_part(left).len();
            if left > 0 {
                poll_fn(|cx| self.poll_read(cx)).await?;
                continue;
            }
            match self.incoming.take() {
                Ok(Some(LocatedMessage { tag: backend::READY_FOR_QUERY_TAG, .. })) => return Ok(()),
                Ok(Some(located)) if located.tag == backend::ERROR_RESPONSE_TAG => {
                    return Err(self.server_error(located));
                }
                Ok(Some(_)) => {}
                Ok(None) => poll_fn(|cx| self.poll_read(cx)).await?,
                Err(error) => {
                    left = self.incoming.take_head_of_large(backend::COPY_DATA_TAG).ok_or(error)?;
                }
            }
        }
    }

    /// Takes the next frame that has been read.
    #[inline]
    fn take_frame(&mut self) -> Result<Option<Place>, PgError> {
        loop {
            let large = match &self.large {
                LargeFrame::None => LargeFrameProgress::Nothing,
                LargeFrame::Arriving(_) | LargeFrame::Condensed(_) => self.take_large()?,
            };
            match large {
                LargeFrameProgress::Nothing => {}
                LargeFrameProgress::Arriving => {
                    self.wal_count += 1;
                    return Ok(None);
                }
                LargeFrameProgress::Complete => return Ok(Some(Place::Condensed)),
            }
            match self.incoming.take() {
                Ok(Some(located)) if located.tag == backend::COPY_DATA_TAG => {
                    let body = located.body();
                    let is_keepalive = self.incoming.bytes(body.clone()).starts_with(b"k");
                    self.wal_count += u64::from(!is_keepalive);
                    return Ok(Some(Place::Buffer(body)));
                }
                Ok(Some(located)) => self.take_other(located)?,
                Ok(None) => return Ok(None),
                Err(error) => {
                    let tag = backend::COPY_DATA_TAG;
                    let bytes = self.incoming.take_head_of_large(tag).ok_or(error)?;
                    self.large = LargeFrame::Arriving(Condenser::new(bytes, self.limits));
                }
            }
        }
    }

    /// Moves the bytes that were read of a large frame into the condenser. Drops the previous large
    /// frame.
    #[cold]
    fn take_large(&mut self) -> Result<LargeFrameProgress, PgError> {
        match std::mem::replace(&mut self.large, LargeFrame::None) {
            LargeFrame::None | LargeFrame::Condensed(_) => Ok(LargeFrameProgress::Nothing),
            LargeFrame::Arriving(mut condenser) => {
                let part = self.incoming.take_part(condenser.missing());
                condenser.push(self.incoming.bytes(part)).map_err(PgError::Frame)?;
                if condenser.missing() > 0 {
                    self.large = LargeFrame::Arriving(condenser);
                    return Ok(LargeFrameProgress::Arriving);
                }
                let frame = condenser.finish().map_err(PgError::Frame)?;
                self.large = LargeFrame::Condensed(frame);
                Ok(LargeFrameProgress::Complete)
            }
        }
    }

    #[inline]
    fn bytes(&self, place: Place) -> &[u8] {
        match (place, &self.large) {
            (Place::Buffer(range), _) => self.incoming.bytes(range),
            (Place::Condensed, LargeFrame::Condensed(frame)) => frame,
            (Place::Condensed, LargeFrame::None | LargeFrame::Arriving(_)) => &[],
        }
    }

    /// Handles messages between frames (manual: "Streaming Replication Protocol").
    #[cold]
    fn take_other(&mut self, located: LocatedMessage) -> Result<(), PgError> {
        match located.tag {
            backend::NOTICE_RESPONSE_TAG => self.take_notice(located),
            backend::ERROR_RESPONSE_TAG => Err(self.server_error(located)),
            // A shutdown sends CommandComplete without CopyDone (walsender.c, `WalSndDone`).
            backend::COPY_DONE_TAG | backend::COMMAND_COMPLETE_TAG => Err(PgError::EndedByServer),
            // The server reloaded its configuration and a setting changed.
            backend::PARAMETER_STATUS_TAG => Ok(()),
            tag => Err(PgError::protocol(format!("message {tag:#04x} within the stream"))),
        }
    }

    fn take_notice(&mut self, located: LocatedMessage) -> Result<(), PgError> {
        let notice = self.server_message(located)?;
        if notice.says_publication_skipped() {
            return Err(PgError::PublicationSkipped(Box::new(notice)));
        }
        // The server may repeat a notice every second.
        if self.last_notice.as_ref() != Some(&notice) {
            tracing::warn!(severity = notice.severity, %notice, "the server warns");
        }
        self.last_notice = Some(notice);
        Ok(())
    }

    fn server_error(&self, located: LocatedMessage) -> PgError {
        self.server_message(located)
            .map_or_else(|error| error, |error| PgError::Server(Box::new(error)))
    }

    fn server_message(&self, located: LocatedMessage) -> Result<ServerError, PgError> {
        let mut bytes = BytesMut::from(self.incoming.bytes(located.whole));
        let read = match backend::Message::parse(&mut bytes) {
            Ok(Some(backend::Message::ErrorResponse(body))) => {
                ServerError::from_fields(body.fields())
            }
            Ok(Some(backend::Message::NoticeResponse(body))) => {
                ServerError::from_fields(body.fields())
            }
            Ok(_) | Err(_) => {
                return Err(PgError::protocol("an error or notice cannot be read"));
            }
        };
        read.map_err(PgError::io("read an error of the server"))
    }

    /// Reads once, as much as is available. Returns an error if nothing arrived for too long.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PgError>> {
        if let Poll::Ready(read) = self.incoming.poll_read(&mut self.reader, cx) {
            self.read_at = Instant::now();
            return Poll::Ready(read.map(drop).map_err(PgError::io("read the stream")));
        }
        // The socket was polled first, because a long time without polling is not silence of the
        // server.
        while self.silence.as_mut().poll(cx).is_ready() {
            if self.read_at.elapsed() >= self.silence_limit {
                return Poll::Ready(Err(PgError::Silent { limit: self.silence_limit }));
            }
            self.silence.as_mut().reset(self.read_at + self.silence_limit);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
