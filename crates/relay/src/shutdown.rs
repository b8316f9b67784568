//! A request to stop: made once, kept as state, awaitable by many tasks.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Asks every holder of a clone to finish its current work and to start no new work.
#[derive(Debug, Clone)]
pub struct Shutdown {
    asked: watch::Sender<bool>,
}

impl Shutdown {
    #[must_use]
    pub fn new() -> Self {
        Self { asked: watch::Sender::new(false) }
    }

    /// Makes the request. A second call changes nothing.
    pub fn request(&self) {
        self.asked.send_replace(true);
    }

    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.asked.borrow()
    }

    /// Completes once the request is made, or at once if it was made before the call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the request is state, not an event.
    pub async fn requested(&self) {
        let mut asked = self.asked.subscribe();
        // This cannot fail, because `self` holds the sender that the wait depends on.
        let waited = asked.wait_for(|asked| *asked).await;
        debug_assert!(waited.is_ok());
    }

    /// Turns SIGTERM and SIGINT into a request, and completes at the second signal. SIGHUP, SIGUSR1
    /// and SIGUSR2 are ignored, although their default action ends a process.
    ///
    /// The handlers are in place when this returns, before the future is polled.
    pub fn on_signals(&self, told: SignalLogging) -> io::Result<impl Future<Output = ()> + use<>> {
        let mut signals = Signals::listen()?;
        let shutdown = self.clone();
        Ok(async move {
            while !shutdown.is_requested() {
                let signal = signals.asked_to_stop().await;
                told.tell(signal);
                shutdown.request();
            }
            let asked_at = Instant::now();
            while asked_at.elapsed() < REPEAT_WINDOW {
                signals.asked_to_stop().await;
            }
        })
    }
}

/// Whether a stop by a signal is logged at level info.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalLogging {
    /// The process finishes its current work first.
    Yes,
    /// The process has no work to finish, and a signal is its normal end.
    No,
}

impl SignalLogging {
    fn tell(self, signal: &str) {
        match self {
            Self::Yes => tracing::info!(signal, "asked to stop; a second signal stops at once"),
            Self::No => tracing::debug!(signal, "asked to stop"),
        }
    }
}

/// A second signal this soon after the first is the same request: a shell or `timeout` signals the
/// process and also its group.
const REPEAT_WINDOW: Duration = Duration::from_millis(500);

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Returns the name of the next signal that asks to stop. Other signals are only logged. A
    /// supervisor's reload, or the end of the relay's terminal, must not stop the relay.
    async fn asked_to_stop(&mut self) -> &'static str {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => "SIGHUP",
                _ = self.user_1.recv() => "SIGUSR1",
                _ = self.user_2.recv() => "SIGUSR2",
            };
            tracing::info!(signal = ignored, "ignored: settings are read at the start only");
        }
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
