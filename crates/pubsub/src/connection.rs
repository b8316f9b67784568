//! One open connection: its load, and the reasons to close it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};
use tokio::time::{sleep, timeout};

use crate::buffered_wire::{BufferedWire, Drain};

/// The number of requests on a connection before another is opened: Google's limit of streams.
pub(crate) const STREAMS_PER_CONNECTION: usize = 100;
/// The interval between checks of a connection.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The longest time for the answer to a PING. Together with [`LOOK_EVERY`], a dead connection is
/// detected well before its requests reach their deadline.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of idle checks after which a connection is closed: 4 minutes. NAT gateways silently
/// forget a connection after a longer idle time.
const IDLE_CHECKS_MAX: u32 = 24;

/// An open connection as requests see it.
#[derive(Debug)]
pub(crate) struct Live {
    sender: SendRequest<Bytes>,
    /// Incremented under the pool's lock, decremented by any request.
    in_flight: AtomicUsize,
    /// Incremented by requests, read by the watchdog.
    answers: AtomicU64,
    is_retired: AtomicBool,
}

impl Live {
    pub(crate) fn new(sender: SendRequest<Bytes>) -> Self {
        Self {
            sender,
            in_flight: AtomicUsize::new(0),
            answers: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        }
    }

    pub(crate) fn sender(&self) -> SendRequest<Bytes> {
        self.sender.clone()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether a request may start on this connection at once.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_retired() && self.in_flight() < STREAMS_PER_CONNECTION
    }

    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops new requests on this connection. Outstanding requests may finish.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }
}

/// The future that transfers a connection's bytes. Ends with the connection.
pub(crate) struct Driver {
    connection: Connection<BufferedWire, Bytes>,
    drain: Drain,
}

impl Driver {
    pub(crate) fn new(connection: Connection<BufferedWire, Bytes>, drain: Drain) -> Self {
        Self { connection, drain }
    }
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.connection).poll(cx).map_err(io::Error::other);
        // Drains after every poll, because `h2` assumes that flushed bytes were sent.
        match self.drain.poll(cx) {
            Poll::Ready(Err(error)) if ended.is_pending() => Poll::Ready(Err(error)),
            Poll::Ready(_) | Poll::Pending => ended,
        }
    }
}

/// Drives a connection until it ends. Its requests receive the error from `h2`.
pub(crate) async fn drive(mut driver: Driver, live: &Live, close_if_idle: impl Fn() -> bool) {
    let Some(pings) = driver.connection.ping_pong() else {
        unreachable!("the ping handle of a connection is taken once, here")
    };
    tokio::select! {
        // The connection comes first. The watchdog only matters when there are no bytes to
        // transfer.
        biased;
        ended = &mut driver => match ended {
            Ok(()) => tracing::debug!("publish connection closed by the service"),
            Err(error) => tracing::debug!(%error, "publish connection lost"),
        },
        reason = watch(pings, live, close_if_idle) => {
            tracing::debug!(reason, "publish connection given up");
        }
    }
}

/// Returns the reason to close the connection.
async fn watch(mut pings: PingPong, live: &Live, close_if_idle: impl Fn() -> bool) -> &'static str {
    let mut answers = 0;
    let mut idle_looks = 0;
    loop {
        sleep(LOOK_EVERY).await;
        if live.in_flight() == 0 {
            idle_looks += 1;
            if (idle_looks >= IDLE_CHECKS_MAX || live.is_retired()) && close_if_idle() {
                return "idle";
            }
            continue;
        }
        idle_looks = 0;
        let now = live.answers.load(Ordering::Relaxed);
        if now != answers {
            answers = now;
            continue;
        }
        // Requests are waiting without an answer. A PING distinguishes a slow service from a dead
        // connection.
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return "silent",
        }
    }
}
