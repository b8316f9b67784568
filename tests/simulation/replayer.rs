//! The place that runs the processes of replays to a topic, and the record of the unfinished
//! replay.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use walrelay_relay::shutdown::Shutdown;

/// Runs the processes of replays, one after the other.
#[derive(Default)]
pub(crate) struct Replayer {
    pub(crate) begun: Notify,
    pub(crate) crash: Notify,
    /// Asks the running process to stop.
    pub(crate) shutdown: Mutex<Shutdown>,
    pub(crate) record: Arc<Mutex<Option<Record>>>,
    pub(crate) count: Mutex<u64>,
}

/// A replay on record.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The position before which everything is published, and the number of those rows.
    pub(crate) settled: (u64, u64),
}
