//! Collects the writes of a connection, so that many small requests leave in one system call.
//!
//! `h2` flushes after each body of some size. A request with one message is a few hundred bytes, so
//! each would cost a system call and, under TLS, a record of its own. Here, a flush does nothing.
//! The driver drains once per poll, after `h2` has handed over all its bytes. This adds no delay,
//! because a poll does not wait.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes collected before a write: a hundred requests with one message. A larger
/// buffer saves nothing, because a system call of this size costs mostly its bytes.
const GATHERED_BYTES_MAX: usize = 64 * 1024;

/// A byte stream, plain or encrypted.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The stream as `h2` uses it.
pub(crate) struct BufferedWire {
    shared: Arc<Mutex<WriteBuffer>>,
}

/// The driver's handle of the same stream. Both live in one task, so the lock is never contended.
pub(crate) struct Drain {
    shared: Arc<Mutex<WriteBuffer>>,
}

struct WriteBuffer {
    wire: Box<dyn ByteStream>,
    bytes: BytesMut,
    /// Whether the wire may still buffer written bytes, as TLS does.
    is_flush_due: bool,
}

/// Corks a wire. The caller must call [`Drain::poll`] after each poll of the returned stream.
pub(crate) fn cork(wire: Box<dyn ByteStream>) -> (BufferedWire, Drain) {
    let gathered = WriteBuffer { wire, bytes: BytesMut::new(), is_flush_due: false };
    let shared = Arc::new(Mutex::new(gathered));
    (BufferedWire { shared: Arc::clone(&shared) }, Drain { shared })
}

impl Drain {
    /// Writes the collected bytes. Pending while the socket accepts no more.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.shared).poll_drain(cx)
    }
}

impl WriteBuffer {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            let written = ready!(Pin::new(&mut self.wire).poll_write(cx, &self.bytes))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.bytes.advance(written);
            self.is_flush_due = true;
        }
        if self.is_flush_due {
            ready!(Pin::new(&mut self.wire).poll_flush(cx))?;
            self.is_flush_due = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for BufferedWire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.shared).wire).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BufferedWire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut gathered = lock(&self.shared);
        if gathered.bytes.len() >= GATHERED_BYTES_MAX {
            ready!(gathered.poll_drain(cx))?;
        }
        let taken = bytes.len().min(GATHERED_BYTES_MAX - gathered.bytes.len());
        gathered.bytes.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = lock(&self.shared);
        ready!(gathered.poll_drain(cx))?;
        Pin::new(&mut gathered.wire).poll_shutdown(cx)
    }
}

fn lock(shared: &Mutex<WriteBuffer>) -> MutexGuard<'_, WriteBuffer> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
