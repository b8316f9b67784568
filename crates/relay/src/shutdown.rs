//! A request to stop: made once, remembered, awaitable by many.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Asks everything that holds a copy to finish what it has begun and to take nothing new.
#[derive(Debug, Clone)]
pub struct Shutdown {
    asked: watch::Sender<bool>,
}

impl Shutdown {
    /// A request that has not been made yet.
    #[must_use]
    pub fn new() -> Self {
        Self { asked: watch::Sender::new(false) }
    }

    /// Makes the request. Making it again changes nothing.
    pub fn request(&self) {
        self.asked.send_replace(true);
    }

    /// Whether the request has been made.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.asked.borrow()
    }

    /// Completes once the request is made; at once if it was made before the call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the request is state, not an event.
    pub async fn requested(&self) {
        let mut asked = self.asked.subscribe();
        // Cannot fail: `self` holds the sender that the wait depends on.
        let waited = asked.wait_for(|asked| *asked).await;
        debug_assert!(waited.is_ok());
    }

    /// Turns SIGTERM and SIGINT into a request, and completes at the second signal.
    ///
    /// The handlers are in place when this returns, before the future is polled.
    ///
    /// # Errors
    ///
    /// The handlers cannot be installed.
    pub fn on_signals(&self) -> io::Result<impl Future<Output = ()> + use<>> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = self.clone();
        Ok(async move {
            while !shutdown.is_requested() {
                let signal = next_signal(&mut terminate, &mut interrupt).await;
                tracing::info!(signal, "asked to stop; a second signal stops at once");
                shutdown.request();
            }
            let asked_at = Instant::now();
            while asked_at.elapsed() < ECHO {
                next_signal(&mut terminate, &mut interrupt).await;
            }
        })
    }
}

/// A signal this soon after the first is the same request: a shell or `timeout` sends it to the
/// process and to its group.
const ECHO: Duration = Duration::from_millis(500);

async fn next_signal(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_seen_by_those_who_wait_and_by_those_who_come_later() {
        let shutdown = Shutdown::new();
        let copy = shutdown.clone();
        let waiting = async {
            copy.requested().await;
            copy.is_requested()
        };
        let asking = async { shutdown.request() };
        let (seen, ()) = tokio::join!(waiting, asking);
        assert!(seen);
        shutdown.request();
        shutdown.requested().await;
    }

    #[tokio::test]
    async fn nothing_is_requested_until_somebody_asks() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.is_requested());
        let mut waiting = std::pin::pin!(shutdown.requested());
        assert!(futures_util::poll!(&mut waiting).is_pending());
    }
}
