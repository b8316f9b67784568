//! The session of a rebuild: its database, its operator, and its stop request.

use std::fmt;

use walrelay_outbox_replay::operator::{Consent, StepSink};
use walrelay_pg_client::{ConnectConfig, run_cancellable};
use walrelay_relay::shutdown::Shutdown;

use crate::rebuild::rebuild_error::RebuildError;
use crate::rebuild::rebuild_step::{RebuildChange, RebuildStep};

pub trait RebuildOperator: StepSink<RebuildStep> + Consent<RebuildChange> {}

impl<T: StepSink<RebuildStep> + Consent<RebuildChange>> RebuildOperator for T {}

pub struct RebuildSession<'a, O> {
    /// Opens connections to the consumer's database.
    pub connect: &'a ConnectConfig,
    pub operator: &'a O,
    pub stop: &'a Shutdown,
}

impl<O> fmt::Debug for RebuildSession<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RebuildSession").finish_non_exhaustive()
    }
}

impl<O: RebuildOperator> RebuildSession<'_, O> {
    pub(crate) fn report(&self, step: impl Into<RebuildStep>) -> Result<(), RebuildError> {
        self.operator.report(&step.into()).map_err(RebuildError::Operator)
    }

    pub(crate) async fn may_change(&self, change: &RebuildChange) -> Result<bool, RebuildError> {
        self.operator.may_change(change).await.map_err(RebuildError::Operator)
    }

    /// Runs `work` until a stop is requested.
    pub(crate) async fn until_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, RebuildError>>,
    ) -> Result<T, RebuildError> {
        tokio::select! {
            done = work => done,
            () = self.stop.requested() => Err(RebuildError::Interrupted),
        }
    }

    /// Runs `work`, whose session has this server process, and cancels its statement at a stop
    /// request.
    pub(crate) async fn cancellable<T>(
        &self,
        pid: i32,
        work: impl Future<Output = Result<T, RebuildError>>,
    ) -> Result<T, RebuildError> {
        let done = run_cancellable(self.connect, pid, work, self.stop.requested());
        Box::pin(done).await.unwrap_or(Err(RebuildError::Interrupted))
    }
}
