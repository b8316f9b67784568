//! Transactions that run beside the loop, each on a connection of its own.

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;
use walrelay_inbox_core::BatchId;

use crate::apply::apply_batch::{Applied, Connection, Found};
use crate::apply::apply_error::ApplyError;
use crate::apply::prune_step::PruneStepEnd;
use crate::event::Event;
use crate::trace::TraceEnd;

/// A transaction with its connection, which the loop uses again.
pub(crate) type Job = Pin<Box<dyn Future<Output = (Connection, JobResult)> + Send>>;

pub(crate) enum JobResult {
    Batch {
        id: BatchId,
        began: Instant,
        events: Vec<Arc<Event>>,
        traced: Option<TraceEnd>,
        ended: Result<Vec<Applied>, ApplyError>,
    },
    Redelivered(Instant, Result<Vec<Applied>, ApplyError>),
    Looked(Result<Found, ApplyError>),
    Pruned(PruneStepEnd),
}
