//! The writing half of a stream: when a status update is due, and sending it.
//!
//! Owns the socket's writing side and all timers of I5. Promises I1 at the last possible place: a
//! position beyond what this connection has received stops the process. Knows the server's positions
//! from what it is told with [`Feedback::note`] and [`Feedback::received`], and nothing of rows.
//!
//! ```text
//! due at   once                            when the watermark has moved by megabytes of log, or at all
//!                                          for the first time
//!          last update + confirm_interval   when the watermark has moved
//!          last update + status_interval    otherwise
//!          at once                          when the server asks; paced when it asks again and again
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

/// A server that shuts down asks again as soon as it is answered; it gets an answer this often.
const REPEATED_REQUEST_PACE: Duration = Duration::from_millis(200);

/// A request later than this after the one before does not belong to the same shutdown.
const REPEATED_REQUEST_GAP_MAX: Duration = Duration::from_secs(2);

/// Requests at one position that make a shutdown. In normal life there is none at all: the server
/// asks after half of its timeout, and we speak after a third.
const SHUTDOWN_REQUESTS: u32 = 4;

/// So much log is not left unconfirmed for the sake of an interval: a busy server writes more in it
/// than the WAL budget may be (I10).
const UNCONFIRMED_MAX: u64 = 4 << 20;

/// CopyDone and Terminate: a tag and a length that counts itself.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// Tells the server how far it may forget, and that we are alive.
#[derive(Debug)]
pub struct Feedback<W> {
    writer: W,
    settings: StreamSettings,
    /// Bytes of messages that are to be written; those before `written` are.
    outgoing: Vec<u8>,
    written: usize,
    /// The highest position this connection has been told, or the slot had before it.
    received: Lsn,
    /// The last position sent.
    confirmed: Lsn,
    confirmed_at: Instant,
    requests: Requests,
    timer: Pin<Box<Sleep>>,
}

/// The server's requests for an answer at one position.
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

    /// Learns a position the server has told: a commit's `end_lsn`, or at the start the slot's
    /// `confirmed_flush`. Positions in XLogData headers do not count.
    pub fn received(&mut self, lsn: Lsn) {
        self.received = self.received.max(lsn);
    }

    /// Learns a keepalive: its position, and whether it wants an answer.
    pub fn note(&mut self, keepalive: &Keepalive) {
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

    /// Whether the server waits for our confirmation in order to shut down, and does not get it.
    ///
    /// It asks again and again at a position that does not move (walsender.c, `WalSndDone`). Nothing
    /// but confirming it or letting go of the connection ends that.
    #[must_use]
    pub fn server_wants_to_stop(&self) -> bool {
        self.requests.count >= SHUTDOWN_REQUESTS
            && self.confirmed < self.requests.wal_end
            && self.requests.last_at.elapsed() <= REPEATED_REQUEST_GAP_MAX
    }

    /// Waits until the server is owed a status update; the watermark says whether there is news.
    ///
    /// # Cancel safety
    ///
    /// It only waits: dropping it changes nothing, and a new one waits for the same moment.
    pub async fn due(&mut self, watermark: Watermark) {
        let at = self.due_at(watermark.lsn());
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().await;
    }

    /// Tells the server that everything before the watermark is settled, and asks for an answer, so
    /// that an idle stream proves it is alive.
    ///
    /// # Errors
    ///
    /// The connection is broken, or the server takes nothing in.
    ///
    /// # Panics
    ///
    /// The watermark is beyond what this connection has received (I1). The server would believe it,
    /// and the slot would skip rows for ever; stopping only delays them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest of the message for the next call: never half a message.
    pub async fn confirm(&mut self, watermark: Watermark) -> Result<(), PgError> {
        self.queue_update(watermark.lsn());
        self.flush().await
    }

    /// Ends the stream so that nothing confirmed is lost: last update, CopyDone, the server's
    /// answer to it, Terminate. Frames still arriving are dropped; the slot keeps them.
    ///
    /// # Errors
    ///
    /// The server did not answer in time or broke off; then the last update may not have been seen.
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
            // The server handles our messages in order: its answer to CopyDone proves that the
            // update before it has reached the slot. Mid-transaction it looks at what we wrote only
            // while it cannot write, so its rows must be read until then.
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
        // Sessions may be short, one after the other: if each waited first, the slot would never move.
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
        // Flush is the promise; write and apply follow it, because we keep no WAL of our own.
        let update = StandbyStatusUpdate {
            write: watermark,
            flush: watermark,
            apply: watermark,
            sent_at: PgTimestamp::from_system_time(SystemTime::now()),
            reply_requested: true,
        }
        .encode();
        // CopyData: the length counts itself and the payload.
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
