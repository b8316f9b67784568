//! A place where processes of the relay run, one after the other, and what can be done to them.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, ready};

use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};
use walrelay_relay::shutdown::Shutdown;

/// A place where processes run, one after the other.
#[derive(Default)]
pub(crate) struct Instance {
    /// The running process is asked to stop with this.
    pub(crate) shutdown: Mutex<Shutdown>,
    pub(crate) crash: Notify,
    frozen_until: Mutex<Option<Instant>>,
}

impl Instance {
    /// The process stands still, as under SIGSTOP, and goes on as if nothing had been.
    pub(crate) fn freeze(&self, until: Option<Instant>) {
        *self.frozen() = until;
    }

    fn frozen_until(&self) -> Option<Instant> {
        self.frozen().filter(|until| *until > Instant::now())
    }

    /// Runs a process, and lets it stand still while it is frozen.
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
