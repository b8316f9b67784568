//! Notices that a statement has no answer although the server has finished it.
//!
//! TCP keeps a connection alive whose other end is a proxy, also when the proxy passes nothing on
//! any more. A long statement looks the same from here. So after a while without bytes another
//! connection asks whether our server process still works.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::PgError;
use crate::stream::Stream;

/// The time without bytes after which another connection asks.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The time limit of that other connection.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The type of ReadyForQuery, the last message of an answer.
const READY_FOR_QUERY: &[u8] = b"Z";

/// The types of the messages that the server answers with ReadyForQuery: Query and Sync.
const ASKING: &[u8] = b"QS";

#[derive(Debug)]
struct Traffic {
    /// Answers that are due. Closing a statement is a question of its own, whose answer comes while
    /// that of the next statement is due.
    due: usize,
    /// The last time at which bytes were written or read.
    last: Instant,
    /// Whether the last read found nothing. Otherwise we do not read, and the silence is ours.
    is_reading: bool,
    written: Messages,
    read: Messages,
}

/// Follows the messages of one direction: one byte of type, four of length, and the rest.
#[derive(Debug, Default)]
struct Messages {
    header: [u8; 5],
    header_len: usize,
    /// Bytes of the current message that are still missing.
    rest: usize,
}

impl Messages {
    /// The messages of a client. The first one has no type.
    fn of_client() -> Self {
        Self { header_len: 1, ..Self::default() }
    }

    /// Takes the next bytes. Returns how many messages of these types begin in them.
    fn take(&mut self, mut bytes: &[u8], wanted: &[u8]) -> usize {
        let mut found = 0;
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            bytes = &bytes[skipped..];
            self.rest -= skipped;
            let taken = bytes.len().min(self.header.len() - self.header_len);
            self.header[self.header_len..][..taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            bytes = &bytes[taken..];
            let [tag, length @ ..] = self.header;
            if self.header_len == self.header.len() {
                found += usize::from(wanted.contains(&tag));
                self.header_len = 0;
                self.rest = (u32::from_be_bytes(length) as usize).saturating_sub(length.len());
            }
        }
        found
    }
}

impl Traffic {
    /// A connection that is about to start, whose start is answered.
    fn new() -> Self {
        let (written, read) = (Messages::of_client(), Messages::default());
        Self { due: 1, last: Instant::now(), is_reading: false, written, read }
    }

    fn wrote(&mut self, bytes: &[u8]) {
        self.due += self.written.take(bytes, ASKING);
        self.last = Instant::now();
    }

    fn read(&mut self, bytes: &[u8]) {
        self.is_reading = false;
        self.due = self.due.saturating_sub(self.read.take(bytes, READY_FOR_QUERY));
        self.last = Instant::now();
    }

    fn silent_since(&self) -> Option<Instant> {
        (self.due > 0 && self.is_reading).then_some(self.last)
    }
}

/// A view of the traffic of one connection.
#[derive(Debug, Clone)]
pub(crate) struct AnswerWatch(Arc<Mutex<Traffic>>);

impl AnswerWatch {
    /// Wraps a stream whose traffic the returned watch sees.
    pub(crate) fn over(stream: Stream) -> (WatchedStream, Self) {
        let watch = Self(Arc::new(Mutex::new(Traffic::new())));
        (WatchedStream { stream, watch: watch.clone() }, watch)
    }

    fn change<T>(&self, how: impl FnOnce(&mut Traffic) -> T) -> T {
        how(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns once an answer is lost: `is_working` denies that the server works on it, or the
    /// server cannot be asked.
    pub(crate) async fn lost<F>(&self, is_working: impl Fn() -> F)
    where
        F: Future<Output = Result<bool, PgError>>,
    {
        let mut ask_at = Instant::now() + SILENCE_MAX;
        loop {
            sleep_until(ask_at).await;
            let now = Instant::now();
            let silent_since = self.change(|traffic| traffic.silent_since());
            let Some(since) = silent_since.filter(|since| *since + SILENCE_MAX <= now) else {
                ask_at = silent_since.unwrap_or(now) + SILENCE_MAX;
                continue;
            };
            let is_lost = match timeout(ASK_TIMEOUT, is_working()).await {
                Ok(Ok(is_working)) => !is_working,
                // A server that refuses the other connection lives, and may still answer.
                Ok(Err(error)) => error.server().is_none(),
                Err(_) => true,
            };
            if is_lost && self.change(|traffic| traffic.silent_since()) == Some(since) {
                return;
            }
            ask_at = Instant::now() + SILENCE_MAX;
        }
    }
}

/// A stream whose traffic is watched.
#[derive(Debug)]
pub(crate) struct WatchedStream {
    stream: Stream,
    watch: AnswerWatch,
}

impl WatchedStream {
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.watch.change(|traffic| match polled {
            Poll::Ready(_) => traffic.read(&buf.filled()[before..]),
            Poll::Pending => traffic.is_reading = true,
        });
        polled
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written @ 1..)) = polled {
            this.watch.change(|traffic| traffic.wrote(&buf[..written]));
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: &[u8] = b"S\0\0\0\x04";
    const READY: &[u8] = b"Z\0\0\0\x05I";

    /// A session that was started, and reads.
    fn started() -> Traffic {
        let mut traffic = Traffic::new();
        traffic.wrote(b"\0\0\0\x0dQSQSQ\0\0\0\0");
        read(&mut traffic, b"R\0\0\0\x08\0\0\0\0");
        assert!(traffic.silent_since().is_some(), "the start is not complete");
        read(&mut traffic, READY);
        assert_eq!(traffic.silent_since(), None, "nothing was asked");
        traffic
    }

    fn read(traffic: &mut Traffic, bytes: &[u8]) {
        traffic.read(bytes);
        assert_eq!(traffic.silent_since(), None, "it was just read, and not asked for more");
        traffic.is_reading = true;
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_missing_answer_that_somebody_reads_for_is_silence() {
        let mut traffic = started();
        traffic.wrote(b"Q\0\0\0\x06S\0");
        assert!(traffic.silent_since().is_some());
        read(&mut traffic, b"T\0\0\0\x05xD\0");
        assert!(traffic.silent_since().is_some(), "the rest of the answer is missing");
        read(&mut traffic, b"\0\0\x04Z\0\0");
        read(&mut traffic, b"\0\x05I");
        assert_eq!(traffic.silent_since(), None);
        read(&mut traffic, b"A\0\0\0\x08note");
        assert_eq!(traffic.silent_since(), None, "a notification is no answer");
        traffic.wrote(b"X\0\0\0\x04");
        assert_eq!(traffic.silent_since(), None, "an end has no answer");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_complete_although_a_notification_follows_in_the_same_packet() {
        let mut traffic = started();
        traffic.wrote(SYNC);
        read(&mut traffic, b"C\0\0\0\x05\0Z\0\0\0\x05IA\0\0\0\x08Z\0\0");
        read(&mut traffic, b"\0");
        assert_eq!(traffic.silent_since(), None);
        traffic.wrote(SYNC);
        read(&mut traffic, b"D\0\0\0\x0aZ\0\0\0\x05I");
        assert!(traffic.silent_since().is_some(), "a value that looks like the end is none");
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_to_a_closed_statement_is_not_that_of_the_next_one() {
        let mut traffic = started();
        traffic.wrote(&[b"C\0\0\0\x06S\0", SYNC].concat());
        traffic.wrote(b"Q\0\0\0\x05\0");
        read(&mut traffic, &[b"3\0\0\0\x04", READY].concat());
        assert!(traffic.silent_since().is_some());
        read(&mut traffic, READY);
        assert_eq!(traffic.silent_since(), None);
    }
}
