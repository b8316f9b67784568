//! The writing half of a stream: sends status updates when they are due.
//!
//! Owns the socket's writing side and all timers of I5. Enforces I1 at the last possible place: a
//! position that this connection has not received stops the process. Learns the server's
//! positions from [`Feedback::note`] and [`Feedback::received`], and knows nothing about rows.
//!
//! ```text
//! due at once                            if the watermark has moved by megabytes of WAL, or has
//!                                        moved for the first time
//!        last update + confirm_interval  if the watermark has moved
//!        last update + status_interval   otherwise
//!        at once                         if the server requests it (paced if it repeats that)
//! ```

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::ready;
use std::time::{Duration, SystemTime};

use pgoutput_parser::{Keepalive, Lsn, PgTimestamp, StandbyStatusUpdate};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, Sleep, sleep, timeout};
use walrelay_core::Watermark;

use crate::frames::Frames;
use crate::stream_settings::StreamSettings;
use walrelay_pg_client::PgError;

/// Interval of answers to a server that shuts down. The server asks again as soon as it is
/// answered.
const REPEATED_REQUEST_PACE: Duration = Duration::from_millis(200);

/// A request later than this after the previous one does not belong to the same shutdown.
const REPEATED_REQUEST_GAP_MAX: Duration = Duration::from_secs(2);

/// Number of requests at one position that mean a shutdown. In normal operation there is no
/// request, because the server asks after half of its timeout and we send after a third.
const SHUTDOWN_REQUESTS: u32 = 4;

/// Maximum WAL that stays unconfirmed until the interval ends. On a busy server, the WAL of one
/// interval may exceed the WAL budget (I10).
const UNCONFIRMED_MAX: u64 = 4 << 20;

/// CopyDone and Terminate: a tag and a length that includes itself.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// Confirms positions to the server, and shows that the connection is alive.
#[derive(Debug)]
pub struct Feedback<W> {
    writer: W,
    settings: StreamSettings,
    /// Bytes of messages to write. The bytes before `written` are sent.
    outgoing: Vec<u8>,
    written: usize,
    /// The highest position that the server has sent, or the slot's position at the start.
    received: Lsn,
    /// The last position sent.
    confirmed: Lsn,
    confirmed_at: Instant,
    requests: Requests,
    timer: Pin<Box<Sleep>>,
}

/// The server's requests for a status update at one position.
#[derive(Debug)]
struct Requests {
    wal_end: Lsn,
    count: u32,
    last_at: Instant,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Owed,
    Given,
}

impl<W: AsyncWrite + Unpin> Feedback<W> {
    pub(crate) fn new(writer: W, settings: StreamSettings) -> Self {
        let now = Instant::now();
        let requests =
            Requests { wal_end: Lsn::ZERO, count: 0, last_at: now, answer: Answer::Given };
        Self {
            writer,
            timer: Box::pin(sleep(settings.status_interval)),
            settings,
            outgoing: Vec::new(),
            written: 0,
            received: Lsn::ZERO,
            confirmed: Lsn::ZERO,
            confirmed_at: now,
            requests,
        }
    }

    /// Records a position that the server has sent: a commit's `end_lsn`, or at the start the
    /// slot's `confirmed_flush`. Positions in XLogData headers do not count.
    pub fn received(&mut self, lsn: Lsn) {
        self.received = self.received.max(lsn);
    }

    #[must_use]
    pub const fn received_to(&self) -> Lsn {
        self.received
    }

    /// Records a keepalive: its position, and whether it requests an answer.
    pub fn note_keepalive(&mut self, keepalive: &Keepalive) {
        self.received(keepalive.wal_end);
        if !keepalive.reply_requested {
            return;
        }
        let now = Instant::now();
        let requests = &mut self.requests;
        let is_repeated = requests.wal_end == keepalive.wal_end
            && now.duration_since(requests.last_at) <= REPEATED_REQUEST_GAP_MAX;
        requests.count = if is_repeated { requests.count.saturating_add(1) } else { 1 };
        requests.wal_end = keepalive.wal_end;
        requests.last_at = now;
        requests.answer = Answer::Owed;
    }

    /// Returns whether the server waits for our confirmation in order to shut down.
    ///
    /// The server requests an answer repeatedly at the same position (walsender.c, `WalSndDone`).
    /// Only a confirmation of that position, or the end of the connection, lets it stop.
    #[must_use]
    pub fn server_wants_to_stop(&self) -> bool {
        self.requests.count >= SHUTDOWN_REQUESTS
            && self.confirmed < self.requests.wal_end
            && self.requests.last_at.elapsed() <= REPEATED_REQUEST_GAP_MAX
    }

    /// Waits until a status update is due. The time depends on whether the watermark has moved.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. A new future waits for the same time.
    pub async fn due(&mut self, watermark: Watermark) {
        let at = self.due_at(watermark.lsn());
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().await;
    }

    /// Confirms everything before the watermark to the server. Requests an answer, so that an idle
    /// stream proves that it is alive.
    ///
    /// # Errors
    ///
    /// The connection is broken, or the server does not read.
    ///
    /// # Panics
    ///
    /// The watermark is beyond the positions that this connection has received (I1). The server
    /// would accept it, and the slot would skip rows for ever. Stopping the process only delays
    /// them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest of the message for the next call, so no message is cut.
    pub async fn confirm(&mut self, watermark: Watermark) -> Result<(), PgError> {
        self.queue_update(watermark.lsn());
        self.flush().await
    }

    /// Ends the stream without losing a confirmation: last update, CopyDone, the server's answer,
    /// Terminate. Frames that still arrive are dropped, because the slot retains them.
    ///
    /// # Errors
    ///
    /// The server did not answer in time or ended the connection. Then the last update may be lost.
    pub async fn finish<R: AsyncRead + Unpin>(
        mut self,
        mut frames: Frames<R>,
        watermark: Watermark,
    ) -> Result<(), PgError> {
        let limit = self.settings.finish_timeout;
        let ended = async {
            self.confirm(watermark).await?;
            self.outgoing.extend_from_slice(&COPY_DONE);
            self.flush().await?;
            // The server handles our messages in order, so its answer to CopyDone proves that it
            // has processed the last update. Inside a transaction the server reads our messages
            // only while it cannot write. Its rows must therefore be read until then.
            frames.discard().await
        };
        timeout(limit, ended).await.unwrap_or(Err(PgError::FinishTimeout { limit }))?;
        self.outgoing.extend_from_slice(&TERMINATE);
        self.flush().await?;
        self.writer.shutdown().await.map_err(PgError::io("close the connection"))
    }

    fn due_at(&self, watermark: Lsn) -> Instant {
        let has_moved = watermark > self.confirmed;
        let log = watermark.as_u64().saturating_sub(self.confirmed.as_u64());
        // Sessions may be short. If each waited for the interval first, the slot would never move.
        let is_first = has_moved && self.confirmed == Lsn::ZERO;
        if is_first || log >= UNCONFIRMED_MAX {
            return self.confirmed_at;
        }
        let owed = self.requests.answer == Answer::Owed;
        if owed && (has_moved || self.requests.count <= 1) {
            return self.requests.last_at;
        }
        let interval = match (owed, has_moved) {
            (true, _) => REPEATED_REQUEST_PACE,
            (false, true) => self.settings.confirm_interval,
            (false, false) => self.settings.status_interval,
        };
        self.confirmed_at + interval
    }

    fn queue_update(&mut self, watermark: Lsn) {
        assert!(
            watermark <= self.received,
            "I1: watermark {watermark} is beyond {}, the last position received",
            self.received
        );
        // Only the flush position is a promise. We keep no WAL, so write and apply equal it.
        let update = StandbyStatusUpdate {
            write: watermark,
            flush: watermark,
            apply: watermark,
            sent_at: PgTimestamp::from_system_time(SystemTime::now()),
            reply_requested: true,
        }
        .encode();
        // CopyData: the length includes itself and the payload.
        self.outgoing.push(b'd');
        self.outgoing.extend_from_slice(&[0, 0, 0, 4 + 34]);
        self.outgoing.extend_from_slice(&update);
        self.confirmed = watermark;
        self.confirmed_at = Instant::now();
        self.requests.answer = Answer::Given;
    }

    async fn flush(&mut self) -> Result<(), PgError> {
        let limit = self.settings.write_timeout;
        let Self { writer, outgoing, written, .. } = self;
        let write = poll_fn(|cx| {
            while let Some(rest) = outgoing.get(*written..).filter(|rest| !rest.is_empty()) {
                match ready!(Pin::new(&mut *writer).poll_write(cx, rest))? {
                    0 => return std::task::Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => *written += count,
                }
            }
            Pin::new(&mut *writer).poll_flush(cx)
        });
        timeout(limit, write)
            .await
            .map_err(|_| PgError::WriteTimeout { limit })?
            .map_err(PgError::io("write a status update"))?;
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
