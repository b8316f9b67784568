//! The world of a run, without the relay.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::shutdown::Shutdown;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use crate::instance::Instance;
use crate::judge::{Judge, RowNumber};
use crate::plan::Plan;
use crate::pubsub::PubSub;
use crate::replayer::Replayer;
use crate::table::Table;

/// The world of a run, without the relay.
pub(crate) struct InboxDatabase<F> {
    pub(crate) fitting: F,
    pub(crate) plan: Plan,
    pub(crate) judge: Judge,
    pub(crate) server: ScriptedServer,
    pub(crate) pubsub: PubSub,
    pub(crate) table: Table,
    pub(crate) settings: SessionSettings,
    pub(crate) connections: Mutex<JoinSet<()>>,
    pub(crate) seed: Mutex<Seed>,
    pub(crate) instances: Vec<Instance>,
    /// The number of processes so far.
    pub(crate) processes: Mutex<u64>,
    /// The number of processes that ended because they had caught up.
    pub(crate) caught_up: Mutex<u64>,
    /// Requested at the end of the run: no further process starts.
    pub(crate) last: Shutdown,
    pub(crate) row_count: Mutex<RowNumber>,
    /// The number of reset steps after which all processes end.
    pub(crate) dies_after: Mutex<Option<u64>>,
    pub(crate) replayer: Replayer,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
