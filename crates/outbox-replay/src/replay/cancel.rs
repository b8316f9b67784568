//! Cancels an unfinished replay. Its keys continue without the unpublished rows, and published
//! rows stay published.

use walrelay_errors::Chain;
use walrelay_outbox_store::{DispatchStore, KeyPauseCounts, Outbox};
use walrelay_pg_client::{ServerErrorKind, SqlClient};
use walrelay_pg_replication::{drop_slot, read_slot};

use super::plan::take;
use super::record::{ReplayEnd, ReplayJob, end_replay};
use super::replay_error::{ReplayError, RowCount};
use super::replay_slot_name;
use super::request::Destination;
use crate::admin_error::AdminError;
use crate::slot_holder::end_session;

/// A replay that can be cancelled, locked by this session.
#[derive(Debug)]
pub struct CancellableReplay {
    id: String,
    store: DispatchStore,
    /// `None` if somebody deleted the record. The keys are paused all the same.
    job: Option<ReplayJob>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelledRows {
    /// These rows were published to another topic, and stay there.
    Published {
        /// The template of the topic.
        topic: String,
        rows: RowCount,
    },
    /// These rows were in dispatch state.
    InPlace {
        /// Number of rows that are not published any more.
        removed: u64,
        /// Number of rows that were published before.
        published: u64,
    },
}

impl CancellableReplay {
    /// Locks an unfinished replay of this outbox, even if its anchor is gone.
    ///
    /// # Errors
    ///
    /// No such replay is unfinished, or another process runs it.
    pub async fn find(client: &SqlClient, outbox: &Outbox, id: &str) -> Result<Self, ReplayError> {
        let job = take(client, id, &[outbox.base_slot(), &outbox.slot]).await?;
        let slot = job.as_ref().map_or(&outbox.slot, |job| &job.slot);
        let store = DispatchStore::new(slot.clone());
        match &job {
            Some(job) => job.refuse_ended()?,
            None => {
                let KeyPauseCounts { wanted, held, .. } = store.replay_holds(client, id).await?;
                if wanted + held == 0 {
                    return Err(ReplayError::Missing {
                        id: id.to_owned(),
                        slot: outbox.slot.clone(),
                    });
                }
            }
        }
        Ok(Self { id: id.to_owned(), store, job })
    }

    /// Returns the rows as they are before the cancellation.
    pub async fn rows(&self, client: &SqlClient) -> Result<CancelledRows, ReplayError> {
        if let Some(published) = self.published_to_topic() {
            return Ok(published);
        }
        let rows = self.store.replayed_rows(client, &self.id).await?;
        let removed = rows.retrying + rows.dead;
        Ok(CancelledRows::InPlace { removed, published: rows.finished })
    }

    fn published_to_topic(&self) -> Option<CancelledRows> {
        let job = self.job.as_ref()?;
        match &job.request.destination {
            Destination::Topic { template, .. } => {
                Some(CancelledRows::Published { topic: template.clone(), rows: job.rows() })
            }
            Destination::InPlace => None,
        }
    }

    pub async fn cancel(&self, client: &mut SqlClient) -> Result<CancelledRows, ReplayError> {
        let Self { id, store, job } = self;
        end_copy(client, &replay_slot_name(store.slot(), id)).await?;
        if let (Some(published), Some(job)) = (self.published_to_topic(), job) {
            end_replay(client, id, ReplayEnd::Cancelled, job.progress.rows).await?;
            return Ok(published);
        }
        let failed = || ReplayError::sql("cancel a replay");
        let transaction = client.transaction().await.map_err(failed())?;
        let removed = store.remove_replayed(&transaction, id).await?;
        store.lift_pauses(&transaction, id).await?;
        let published = store.replayed_rows(transaction.client(), id).await?.finished;
        end_replay(transaction.client(), id, ReplayEnd::Cancelled, published).await?;
        transaction.commit().await.map_err(failed())?;
        Ok(CancelledRows::InPlace { removed, published })
    }
}

/// Ends the session that holds the copy of the anchor. The copy is temporary, but the server may
/// not have noticed that its client is gone.
async fn end_copy(client: &SqlClient, slot: &str) -> Result<(), AdminError> {
    let Some(state) = read_slot(client, slot).await? else { return Ok(()) };
    let ended = match state.active_pid {
        Some(pid) => end_session(client, pid).await.map(drop),
        None => drop_slot(client, slot).await.map_err(AdminError::from),
    };
    match ended {
        Err(error) if error.server_kind() == Some(ServerErrorKind::Privilege) => {
            tracing::warn!(slot, error = %Chain(&error), "the slot goes once the server notices that its process is gone");
            Ok(())
        }
        ended => ended,
    }
}
