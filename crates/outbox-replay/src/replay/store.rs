//! The store of a replay, in place of dispatch state: it parks nothing, and records progress.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use walrelay_core::{
    ClaimAnswer, ClaimKey, Finished, PublishFailure, RecordReason, RowToRecord, Topic,
};
use walrelay_outbox_store::{
    Due, Head, ParkedKey, PublicationCheck, RecordedPage, SlotFigures, Store, StoreFailure,
};
use walrelay_pg_client::{ConnectConfig, SqlClient, connect_sql};
use walrelay_pg_replication::{ServerIdentity, read_server_identity};

use super::in_place::HistoryWriter;
use super::record::{ReplayProgress, advance_replay};
use super::replay_progress::Tally;
use super::request::DeadRows;
use crate::recovery::ResumePoints;

/// Whether the progress of a replay is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// In `app_outbox_replay`.
    OnRecord,
    /// Not recorded, in a dry run.
    Nothing,
}

pub trait Progress: Send + 'static {
    /// Records the progress. `resume_at` is `None` unless it has moved.
    fn note(
        &mut self,
        progress: ReplayProgress,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Records a row that can never be published. Returns whether it is on record now. A replay to
    /// a topic records none.
    fn note_dead(
        &mut self,
        _row: &RowToRecord,
        _failure: &PublishFailure,
    ) -> impl Future<Output = Result<bool, StoreFailure>> + Send {
        std::future::ready(Ok(false))
    }
}

#[derive(Debug)]
pub struct ReplayStore<P> {
    /// `None` in a dry run.
    pub progress: Option<P>,
    pub dead_rows: DeadRows,
    pub tally: Tally,
    /// In a replay of the table: the aggregates to resume at.
    pub marks: Option<ResumePoints>,
}

/// Stores progress in `app_outbox_replay`.
#[derive(Debug)]
pub(super) struct ProgressTable {
    pub(super) connect: ConnectConfig,
    /// A session proven to be on `server` (I11).
    pub(super) client: Option<SqlClient>,
    pub(super) server: ServerIdentity,
    pub(super) id: String,
    /// Records dead rows of a replay in place. `None` while it only counts, and to a topic.
    pub(super) history: Option<HistoryWriter>,
}

impl Progress for ProgressTable {
    async fn note_dead(
        &mut self,
        row: &RowToRecord,
        failure: &PublishFailure,
    ) -> Result<bool, StoreFailure> {
        let Some(history) = &self.history else { return Ok(false) };
        let added = history.add_dead(&row.message, failure).await;
        added.map_err(|refused| StoreFailure::Unavailable(Box::new(refused)))
    }

    async fn note(&mut self, progress: ReplayProgress) -> Result<(), StoreFailure> {
        let id = self.id.clone();
        let noted = advance_replay(self.client().await?, &id, &progress).await;
        noted.map_err(|error| StoreFailure::Unavailable(Box::new(error)))
    }
}

impl ProgressTable {
    async fn client(&mut self) -> Result<&SqlClient, StoreFailure> {
        if self.client.as_ref().is_none_or(|client| client.is_closed()) {
            let unavailable = |error| StoreFailure::Unavailable(Box::new(error));
            let client = connect_sql(&self.connect).await.map_err(unavailable)?;
            let here = read_server_identity(&client).await;
            let here = here.map_err(|error| StoreFailure::Unavailable(Box::new(error)))?;
            if !here.is_same(&self.server) {
                return Err(StoreFailure::OtherHistory(
                    "the connection leads to another server than the replay's, or it was restarted",
                ));
            }
            self.client = Some(client);
        }
        self.client.as_ref().ok_or(StoreFailure::ShuttingDown)
    }
}

fn not_recorded(row: &RowToRecord) -> StoreFailure {
    let (event_id, position) = (row.message.event_id(), row.message.position());
    StoreFailure::NotRecorded(match &row.reason {
        RecordReason::Dead { failure } => {
            format!(
                "the replay stops at {position}: row {event_id} can never be published: {failure}"
            )
        }
        RecordReason::Stuck { .. } | RecordReason::Spilled { .. } | RecordReason::Queued => {
            format!("the replay stops at {position}: row {event_id} was to be parked")
        }
    })
}

impl<P: Progress> ReplayStore<P> {
    /// Continues without a row that can never be published. A replay in place records it as dead.
    async fn leave_out(
        &mut self,
        row: &RowToRecord,
        failure: &PublishFailure,
    ) -> Result<(), StoreFailure> {
        let is_dead = match &mut self.progress {
            Some(progress) => progress.note_dead(row, failure).await?,
            None => false,
        };
        let (event_id, position) = (row.message.event_id(), row.message.position());
        match is_dead {
            true => tracing::warn!(event_id, %position, error = %failure, "row is dead"),
            false => tracing::warn!(event_id, %position, error = %failure, "row is left out"),
        }
        self.tally.add_skipped(1);
        Ok(())
    }
}

impl<P: Progress> Store for ReplayStore<P> {
    async fn parked_keys(
        &mut self,
        _: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreFailure> {
        Ok(0)
    }

    async fn recorded_from(&mut self, _: Position, _: u32) -> Result<RecordedPage, StoreFailure> {
        Ok(RecordedPage::default())
    }

    async fn park(&mut self, rows_to_record: &[RowToRecord]) -> Result<(), StoreFailure> {
        for row in rows_to_record {
            match (&row.reason, self.dead_rows) {
                (RecordReason::Dead { failure }, DeadRows::LeaveOut) => {
                    self.leave_out(row, failure).await?;
                }
                (_, DeadRows::Stop | DeadRows::LeaveOut) => return Err(not_recorded(row)),
            }
        }
        Ok(())
    }

    async fn finish(&mut self, _: &[Finished]) -> Result<(), StoreFailure> {
        Ok(())
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        _: usize,
        _: Position,
    ) -> Result<Vec<ClaimAnswer>, StoreFailure> {
        Ok(keys.iter().map(|_| ClaimAnswer { rows: Vec::new(), held_for: None }).collect())
    }

    async fn due_keys(&mut self, _: &[Topic]) -> Result<Due, StoreFailure> {
        Ok(Due::default())
    }

    async fn has_spilled_before(&mut self, _: Lsn) -> Result<bool, StoreFailure> {
        Ok(false)
    }

    async fn heads_after(&mut self, _: Option<&Head>) -> Result<Vec<Head>, StoreFailure> {
        Ok(Vec::new())
    }

    async fn notice(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn note_settled(&mut self, settled: Lsn, _: u64) -> Result<(), StoreFailure> {
        self.tally.settled_to(settled);
        let resume_at = self.marks.as_ref().and_then(|marks| marks.settled_to(settled));
        let rows = self.tally.published();
        match &mut self.progress {
            Some(progress) => progress.note(ReplayProgress { settled, rows, resume_at }).await,
            None => Ok(()),
        }
    }

    async fn survey(&mut self) -> Result<SlotFigures, StoreFailure> {
        Ok(SlotFigures::default())
    }

    /// The live relay watches the publication. An anchor is no younger than its slot.
    async fn watch(&mut self) -> Result<PublicationCheck, StoreFailure> {
        Ok(PublicationCheck::Intact { up_to: Lsn::new(u64::MAX), unpublished: None })
    }

    async fn prune(&mut self, _: Duration) -> Result<u64, StoreFailure> {
        Ok(0)
    }
}
