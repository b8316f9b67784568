//! A place that runs relay processes one after the other, and the faults that can be injected into
//! them.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, ready};

use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};
use walrelay_relay::shutdown::Shutdown;

/// A place that runs processes one after the other.
#[derive(Default)]
pub(crate) struct Instance {
    /// Asks the running process to stop.
    pub(crate) shutdown: Mutex<Shutdown>,
    pub(crate) crash: Notify,
    frozen_until: Mutex<Option<Instant>>,
}

impl Instance {
    /// Freezes the process as SIGSTOP does. After `until` the process continues.
    pub(crate) fn freeze(&self, until: Option<Instant>) {
        *self.frozen() = until;
    }

    fn frozen_until(&self) -> Option<Instant> {
        self.frozen().filter(|until| *until > Instant::now())
    }

    /// Runs a process, and suspends it while it is frozen.
    pub(crate) async fn freezable<T>(&self, process: impl Future<Output = T>) -> T {
        let mut process = pin!(process);
        let mut thaw: Option<Pin<Box<Sleep>>> = None;
        let poll = |context: &mut Context<'_>| {
            let Some(until) = self.frozen_until() else { return process.as_mut().poll(context) };
            ready!(thaw.insert(Box::pin(sleep_until(until))).as_mut().poll(context));
            process.as_mut().poll(context)
        };
        poll_fn(poll).await
    }

    fn frozen(&self) -> MutexGuard<'_, Option<Instant>> {
        self.frozen_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
