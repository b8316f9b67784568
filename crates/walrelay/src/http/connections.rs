//! Limits the number and the lifetime of HTTP connections.
//!
//! Every client is accepted at once. If [`CONNECTIONS_MAX`] connections are open, a new one
//! replaces the connection whose last answer is the oldest. So idle or slow clients never keep a
//! probe waiting. A request that is not complete within [`REQUEST_TIME`] ends its connection.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// Most open connections. Probes, one Prometheus and a person need only a few.
pub(super) const CONNECTIONS_MAX: usize = 32;

/// Longest lifetime of a connection. Longer than the usual scrape interval of 30 s, so that one
/// connection serves two scrapes.
const CONNECTION_LIFE: Duration = Duration::from_secs(65);

/// Longest time from the first byte of a request, or from the opening of the connection, to the
/// answer. Answers come from memory, so a longer time means that the request is never completed.
const REQUEST_TIME: Duration = Duration::from_millis(2500);

/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Opens a file descriptor that is used for nothing.
pub(super) fn spare_descriptor() -> io::Result<File> {
    File::open("/dev/null")
}

/// A listener that accepts every connection, and closes another one if too many are open.
pub(super) struct BoundedListener {
    listener: TcpListener,
    open: Arc<OpenConnections>,
    /// A file descriptor for the next client of a process that has no free one. A probe must learn
    /// that state.
    reserve: Option<File>,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, open: Arc::default(), reserve: None }
    }

    /// Accepts a client, with the reserve if no other descriptor is free.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        if self.reserve.is_none() {
            self.reserve = spare_descriptor().ok();
        }
        let first = self.listener.poll_accept(cx);
        let Poll::Ready(Err(error)) = &first else { return first };
        // Without a free descriptor the kernel refuses before it looks for a client.
        if self.reserve.take().is_none() {
            return first;
        }
        let second = self.listener.poll_accept(cx);
        match second {
            Poll::Ready(_) => tracing::warn!(%error, "accepting a client failed once"),
            Poll::Pending => self.reserve = spare_descriptor().ok(),
        }
        second
    }

    /// Waits after a failed accept. The client that has the reserve gets its answer meanwhile.
    async fn pause(&mut self) {
        tokio::time::sleep(ACCEPT_PAUSE).await;
        self.reserve = spare_descriptor().ok();
        if self.reserve.is_none() {
            self.open.close_oldest();
        }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match std::future::poll_fn(|cx| self.poll_accept(cx)).await {
                Ok((stream, address)) => {
                    return (BoundedConnection::begin(stream, Arc::clone(&self.open)), address);
                }
                Err(error) => {
                    // The process has no free descriptors, or the peer is already gone. Serving
                    // continues in both cases.
                    tracing::debug!(%error, "accept");
                    self.pause().await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// The open connections, in the order in which new ones replace them.
#[derive(Debug, Default)]
struct OpenConnections(Mutex<Order>);

#[derive(Debug, Default)]
struct Order {
    /// The number of the latest answer or opening. Numbers give the order, because two connections
    /// may have the same time.
    last: u64,
    /// Connections by the number of their last answer, or of their opening. Dropping a sender
    /// closes its connection.
    connections: BTreeMap<u64, oneshot::Sender<()>>,
}

impl OpenConnections {
    /// Adds a connection. Returns its number, and a receiver that ends when the connection must
    /// close.
    fn add(&self) -> (u64, oneshot::Receiver<()>) {
        let (sender, closing) = oneshot::channel();
        let mut order = self.order();
        while order.connections.len() >= CONNECTIONS_MAX {
            drop(order.connections.pop_first());
        }
        (order.put_last(sender), closing)
    }

    /// Records an answer, which makes the connection the last to be closed. Returns its new number.
    fn answered(&self, number: u64) -> u64 {
        let mut order = self.order();
        match order.connections.remove(&number) {
            Some(sender) => order.put_last(sender),
            // The connection is already being closed.
            None => number,
        }
    }

    fn close_oldest(&self) {
        drop(self.order().connections.pop_first());
    }

    fn remove(&self, number: u64) {
        drop(self.order().connections.remove(&number));
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn put_last(&mut self, sender: oneshot::Sender<()>) -> u64 {
        self.last += 1;
        self.connections.insert(self.last, sender);
        self.last
    }
}

/// The next event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextInput {
    /// The rest of a request. A new connection must send its first request at once.
    Request,
    /// The next request, after the last one was answered.
    NextRequest,
}

/// A connection that ends when its time is over, or when a new connection replaces it.
pub(super) struct BoundedConnection {
    stream: TcpStream,
    awaits: NextInput,
    /// Latest end of the connection.
    end: Instant,
    timer: Pin<Box<Sleep>>,
    /// None once another connection has replaced this one.
    closing: Option<oneshot::Receiver<()>>,
    number: u64,
    open: Arc<OpenConnections>,
}

impl BoundedConnection {
    fn begin(stream: TcpStream, open: Arc<OpenConnections>) -> Self {
        let now = Instant::now();
        let (number, closing) = open.add();
        Self {
            stream,
            awaits: NextInput::Request,
            end: now + CONNECTION_LIFE,
            timer: Box::pin(tokio::time::sleep_until(now + REQUEST_TIME)),
            closing: Some(closing),
            number,
            open,
        }
    }

    fn check_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_open =
            |closing: &mut oneshot::Receiver<()>| Pin::new(closing).poll(context).is_pending();
        if !self.closing.as_mut().is_some_and(is_open) {
            self.closing = None;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    fn has_read(&mut self) {
        if self.awaits == NextInput::NextRequest {
            self.awaits = NextInput::Request;
            self.timer.as_mut().reset((Instant::now() + REQUEST_TIME).min(self.end));
        }
    }

    fn has_written(&mut self) {
        if self.awaits == NextInput::Request {
            self.awaits = NextInput::NextRequest;
            self.timer.as_mut().reset(self.end);
            self.number = self.open.answered(self.number);
        }
    }
}

impl Drop for BoundedConnection {
    fn drop(&mut self) {
        self.open.remove(self.number);
    }
}

impl AsyncRead for BoundedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_end(context)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.has_read();
            // A timer that was reset wakes no task until it is polled again.
            self.check_end(context)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BoundedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_end(context)?;
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.has_written();
        self.check_end(context)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_whose_last_answer_is_oldest_is_closed_for_a_new_one() {
        let open = OpenConnections::default();
        let mut connections: Vec<_> = (0..CONNECTIONS_MAX).map(|_| open.add()).collect();
        connections[0].0 = open.answered(connections[0].0);
        let mut newest = open.add();
        let mut is_closed = |index: usize| {
            connections[index].1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        assert!(is_closed(1), "the oldest without an answer is closed");
        assert!(!is_closed(0), "an answer makes a connection the newest");
        assert!(!is_closed(2));
        assert_eq!(newest.1.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        open.remove(newest.0);
        assert_eq!(open.order().connections.len(), CONNECTIONS_MAX - 1);
    }
}
