//! The reading half of a stream.
//!
//! Owns the socket's reading side and its buffer. Promises every frame in order, or an error: a
//! message that is no frame either means nothing for the rows or ends the stream. Fails when the
//! server ends, breaks off, warns that rows are left out, or has been silent for too long.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use pgoutput_parser::Frame;
use postgres_protocol::message::backend;
use tokio::io::AsyncRead;
use tokio::time::{Instant, Sleep, sleep};

use crate::incoming::{Incoming, Located};
use walrelay_pg_client::{PgError, ServerError};

/// The frames of a stream, in order.
#[derive(Debug)]
pub struct Frames<R> {
    reader: R,
    incoming: Incoming,
    silence_limit: Duration,
    read_at: Instant,
    /// Fires at the earliest when the silence may have lasted too long; set anew only then.
    silence: Pin<Box<Sleep>>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R, incoming: Incoming, silence_limit: Duration) -> Self {
        Self {
            reader,
            incoming,
            silence_limit,
            read_at: Instant::now(),
            silence: Box::pin(sleep(silence_limit)),
        }
    }

    /// The next frame, waiting for it.
    ///
    /// # Errors
    ///
    /// The stream is over: see [`PgError`]. Nothing after an error is to be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: bytes already read stay in the buffer, and a frame counts as
    /// taken only when it is returned.
    pub async fn next(&mut self) -> Result<Frame<'_>, PgError> {
        let body = loop {
            if let Some(body) = self.take_frame()? {
                break body;
            }
            poll_fn(|cx| self.poll_read(cx)).await?;
        };
        Frame::parse(self.incoming.bytes(body)).map_err(PgError::Frame)
    }

    /// The next frame if it is already here; no I/O.
    ///
    /// # Errors
    ///
    /// As [`Frames::next`].
    pub fn buffered(&mut self) -> Result<Option<Frame<'_>>, PgError> {
        match self.take_frame()? {
            Some(body) => Frame::parse(self.incoming.bytes(body)).map(Some).map_err(PgError::Frame),
            None => Ok(None),
        }
    }

    /// Memory the buffer holds, for the byte budget (I6).
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.incoming.memory()
    }

    /// Reads and drops everything up to the server's ReadyForQuery, after a CopyDone of ours.
    pub(crate) async fn discard(&mut self) -> Result<(), PgError> {
        loop {
            match self.incoming.take()? {
                Some(Located { tag: backend::READY_FOR_QUERY_TAG, .. }) => return Ok(()),
                Some(located) if located.tag == backend::ERROR_RESPONSE_TAG => {
                    return Err(self.server_error(located));
                }
                Some(_) => {}
                None => poll_fn(|cx| self.poll_read(cx)).await?,
            }
        }
    }

    /// The payload of the next CopyData that has been read.
    #[inline]
    fn take_frame(&mut self) -> Result<Option<Range<usize>>, PgError> {
        while let Some(located) = self.incoming.take()? {
            if located.tag == backend::COPY_DATA_TAG {
                return Ok(Some(located.body()));
            }
            self.take_other(located)?;
        }
        Ok(None)
    }

    /// What may come between frames (the manual: "Streaming Replication Protocol").
    #[cold]
    fn take_other(&self, located: Located) -> Result<(), PgError> {
        match located.tag {
            backend::NOTICE_RESPONSE_TAG => self.take_notice(located),
            backend::ERROR_RESPONSE_TAG => Err(self.server_error(located)),
            // A shutdown sends CommandComplete without CopyDone (walsender.c, WalSndDone).
            backend::COPY_DONE_TAG | backend::COMMAND_COMPLETE_TAG => Err(PgError::EndedByServer),
            // A setting changed when the server reloaded its configuration.
            backend::PARAMETER_STATUS_TAG => Ok(()),
            tag => Err(PgError::protocol(format!("message {tag:#04x} within the stream"))),
        }
    }

    fn take_notice(&self, located: Located) -> Result<(), PgError> {
        let notice = self.server_message(located)?;
        if notice.says_publication_skipped() {
            return Err(PgError::PublicationSkipped(Box::new(notice)));
        }
        tracing::warn!(severity = notice.severity, %notice, "the server warns");
        Ok(())
    }

    fn server_error(&self, located: Located) -> PgError {
        self.server_message(located)
            .map_or_else(|error| error, |error| PgError::Server(Box::new(error)))
    }

    fn server_message(&self, located: Located) -> Result<ServerError, PgError> {
        let mut bytes = BytesMut::from(self.incoming.bytes(located.whole));
        match backend::Message::parse(&mut bytes) {
            Ok(Some(backend::Message::ErrorResponse(body))) => {
                ServerError::from_fields(body.fields())
            }
            Ok(Some(backend::Message::NoticeResponse(body))) => {
                ServerError::from_fields(body.fields())
            }
            Ok(_) | Err(_) => Err(PgError::protocol("an error or notice cannot be read")),
        }
    }

    /// One read, as much as there is. An error when nothing came for too long.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PgError>> {
        if let Poll::Ready(read) = self.incoming.poll_read(&mut self.reader, cx) {
            self.read_at = Instant::now();
            return Poll::Ready(read.map(drop).map_err(PgError::io("read the stream")));
        }
        // The socket was asked first: a long time without polling is no silence of the server.
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
