//! The connection pool: opens connections as demand grows, fills one at a time, replaces broken
//! ones.
//!
//! Requests that start together go to one connection until it is full, and then to the least loaded
//! one. They and their replies then share system calls. A distant service needs about thirty
//! connections. Spread evenly over them, each request would cost two system calls of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::{Live, STREAMS_PER_CONNECTION, drive};
use crate::dialer::{ConnectFailure, Dialer};

/// The time for which a failure to connect is cached. It limits 4,000 lanes that retry against a
/// dead endpoint to ten attempts a second.
const PAUSE_WHEN_DOWN: Duration = Duration::from_millis(100);
/// The same time while other connections work and can carry the requests.
const PAUSE_WHEN_UP: Duration = Duration::from_secs(5);

/// All connections to one endpoint. Dropping the pool closes them.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    connections_max: usize,
    waiting: AtomicUsize,
    /// One task per connection, from dialling to its end.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    dialer: Dialer,
    state: Mutex<State>,
    /// Notifies waiting requests that an attempt to connect has ended, successfully or not.
    attempt_ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    live: Vec<Arc<Live>>,
    /// The connection that new requests currently fill.
    filling: Option<Arc<Live>>,
    opening: usize,
    failure: Option<(Instant, ConnectFailure)>,
}

/// A request's place on a connection.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Live>);

impl Lease {
    pub(crate) fn connection(&self) -> &Live {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.end();
    }
}

enum LeaseAttempt {
    Place(Lease),
    Wait(watch::Receiver<()>),
    Down(ConnectFailure),
}

impl Pool {
    pub(crate) fn new(dialer: Dialer, connections_max: usize) -> Self {
        let shared =
            Shared { dialer, state: Mutex::default(), attempt_ended: watch::Sender::new(()) };
        Self {
            shared: Arc::new(shared),
            connections_max,
            waiting: AtomicUsize::new(0),
            tasks: Mutex::default(),
        }
    }

    /// Leases a place on the connection being filled or on the least loaded one. Opens a connection
    /// if needed.
    pub(crate) async fn lease(&self) -> Result<Lease, ConnectFailure> {
        let mut waiting = None;
        loop {
            let mut attempt_ended = match self.pick() {
                LeaseAttempt::Place(lease) => return Ok(lease),
                LeaseAttempt::Down(failure) => return Err(failure),
                LeaseAttempt::Wait(attempt_ended) => attempt_ended,
            };
            waiting.get_or_insert_with(|| Waiting::count(&self.waiting));
            // The sender lives in `self`, so this cannot fail.
            drop(attempt_ended.changed().await);
        }
    }

    fn pick(&self) -> LeaseAttempt {
        let mut state = self.shared.state();
        if let Some(live) = state.filling.as_ref().filter(|live| live.has_room()) {
            return place(live);
        }
        state.filling = None;
        state.live.retain(|live| !live.is_retired());
        let least = state.live.iter().min_by_key(|live| live.in_flight()).map(Arc::clone);
        if let Some(live) = least.as_ref().filter(|live| live.has_room()) {
            state.filling = Some(Arc::clone(live));
            return place(live);
        }
        self.grow(&mut state);
        if state.opening > 0 {
            // Subscribed under the lock, so that the end of the attempt is not missed.
            return LeaseAttempt::Wait(self.shared.attempt_ended.subscribe());
        }
        match (&least, &state.failure) {
            // At the connection limit, the request queues inside `h2`.
            (Some(live), _) => place(live),
            (None, Some((_, failure))) => LeaseAttempt::Down(failure.clone()),
            (None, None) => unreachable!("without a connection or a failure one is being opened"),
        }
    }

    /// Opens as many connections as the waiting requests need.
    fn grow(&self, state: &mut State) {
        let pause = if state.live.is_empty() { PAUSE_WHEN_DOWN } else { PAUSE_WHEN_UP };
        if state.failure.as_ref().is_some_and(|(at, _)| at.elapsed() < pause) {
            return;
        }
        let waiting = self.waiting.load(Ordering::Relaxed) + 1;
        let needed = waiting.div_ceil(STREAMS_PER_CONNECTION);
        let room = self.connections_max.saturating_sub(state.live.len());
        if state.opening >= needed.min(room) {
            return;
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        while state.opening < needed.min(room) {
            state.opening += 1;
            tasks.spawn(Arc::clone(&self.shared).connection());
        }
    }
}

fn place(live: &Arc<Live>) -> LeaseAttempt {
    live.begin();
    LeaseAttempt::Place(Lease(Arc::clone(live)))
}

impl Shared {
    /// Opens one connection and drives it to its end.
    async fn connection(self: Arc<Self>) {
        match self.dialer.open().await {
            Ok((sender, driver)) => {
                let live = self.opened(sender);
                drive(driver, &live, || self.close_if_idle(&live)).await;
                self.remove(&live);
            }
            Err(failure) => self.failed(failure),
        }
    }

    fn opened(&self, sender: SendRequest<Bytes>) -> Arc<Live> {
        let live = Arc::new(Live::new(sender));
        let mut state = self.state();
        state.opening -= 1;
        state.failure = None;
        state.live.push(Arc::clone(&live));
        drop(state);
        self.attempt_ended.send_replace(());
        live
    }

    fn failed(&self, failure: ConnectFailure) {
        tracing::debug!(error = %failure, "publish connection not opened");
        let mut state = self.state();
        state.opening -= 1;
        state.failure = Some((Instant::now(), failure));
        drop(state);
        self.attempt_ended.send_replace(());
    }

    fn remove(&self, live: &Arc<Live>) {
        live.retire();
        self.state().live.retain(|other| !Arc::ptr_eq(other, live));
    }

    /// Removes the connection if it has no request. Requests start under the same lock.
    fn close_if_idle(&self, live: &Arc<Live>) -> bool {
        let mut state = self.state();
        if live.in_flight() > 0 {
            return false;
        }
        state.filling = None;
        state.live.retain(|other| !Arc::ptr_eq(other, live));
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a request that waits for a connection, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn count(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
