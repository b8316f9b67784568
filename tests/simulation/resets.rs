//! Resets: an operator begins one, and the next process to start runs it, with the steps of the
//! service.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_replay::operation_resumer::reset::{ResetSteps, run_reset};
use walrelay_relay::error::RelayError;

use crate::bugs::ResetBug;
use crate::database::gone;
use crate::harness::Harness;
use crate::judge::Event;
use crate::world::{InboxDatabase, locked};

/// How long the holder may take to release the slot, as in production.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(200);

impl<F: Harness> InboxDatabase<F> {
    /// Requests a reset to a position at this per mille between the anchor and the settled
    /// position. All processes end after `dies_after` steps.
    pub(crate) fn begin_reset(&self, per_mille: u64, dies_after: Option<u64>) {
        let (anchor, settled) = (self.server.anchor(), self.table.settled().as_u64());
        let target = anchor + settled.saturating_sub(anchor) * per_mille / 1_000;
        let is_begun = self.table.begin_reset(target);
        self.judge.note(Event::Chaos(format!("reset to {target:X}: {is_begun}")));
        if is_begun {
            *locked(&self.dies_after) = dies_after;
        }
    }

    /// Finishes the reset on record, if there is one.
    pub(crate) async fn finish_reset(&self, process: u64) -> Result<(), RelayError> {
        let bug = self.fitting.reset_bug();
        let slot = || "walrelay".to_owned();
        let taken = self.table.take_reset(process).map_err(|_| {
            let what = "a reset".to_owned();
            RelayError::survey(AdminError::OperationUnfinished { slot: slot(), what })
        })?;
        match taken {
            Some(taken) if bug != Some(ResetBug::IsForgotten) => {
                let mut steps = Steps { world: self, target: taken.target, bug, done: 0 };
                run_reset(&mut steps).await.map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }
}

struct Steps<'a, F> {
    world: &'a InboxDatabase<F>,
    target: u64,
    bug: Option<ResetBug>,
    done: u64,
}

impl<F: Harness> Steps<'_, F> {
    async fn command<T>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> T,
    ) -> Result<T, RelayError> {
        self.world.table.command(name, run).await.map_err(|_| gone())
    }

    /// Completes a step. All processes die here if this is the last step.
    async fn done(&mut self) -> Result<(), RelayError> {
        self.done += 1;
        let dies = locked(&self.world.dies_after).take_if(|after| *after == self.done);
        if dies.is_some() {
            self.world.judge.note(Event::Chaos(format!("killed after step {}", self.done)));
            self.world.instances.iter().for_each(|instance| instance.crash.notify_waiters());
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

impl<F: Harness> ResetSteps for Steps<'_, F> {
    async fn has_anchor(&mut self) -> Result<bool, RelayError> {
        self.command("look for the anchor", || ()).await?;
        self.done().await?;
        Ok(true)
    }

    async fn drop_live(&mut self) -> Result<(), RelayError> {
        let until = Instant::now() + RELEASE_TIMEOUT;
        let server = self.world.server.clone();
        while let Err(holder) = self.command("drop the slot", || server.drop_slot()).await? {
            if Instant::now() >= until {
                let (slot, holder) = ("walrelay".to_owned(), holder.application_name);
                return Err(RelayError::survey(AdminError::SlotHeld { slot, holder }));
            }
            sleep(PAUSE).await;
        }
        self.done().await
    }

    async fn copy_anchor(&mut self) -> Result<(), RelayError> {
        let server = self.world.server.clone();
        let at = match self.bug {
            Some(ResetBug::BeginsAtTheEnd) => server.wal_end(),
            _ => server.anchor(),
        };
        let made = self.command("copy the anchor", || server.make_slot(at)).await?;
        made.map_err(|_| gone())?;
        self.done().await
    }

    async fn restore_failover(&mut self) -> Result<(), RelayError> {
        self.done().await
    }

    async fn finish(&mut self) -> Result<(), RelayError> {
        let (table, target, bug) = (self.world.table.clone(), self.target, self.bug);
        self.command("finish the reset", || table.finish_reset(target, bug)).await?;
        self.done().await
    }

    async fn cancel(&mut self) -> Result<(), RelayError> {
        Err(gone())
    }
}
