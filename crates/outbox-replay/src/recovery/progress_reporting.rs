//! A publisher and a store that report settled rows to the progress of a recovery.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use walrelay_core::{Batch, ClaimAnswer, ClaimKey, Finished, PublishFailure, RowToRecord, Topic};
use walrelay_outbox_store::{
    Condition, Due, Head, ParkedKey, PublicationCheck, Reason, RecordedPage, SlotFigures, Store,
    StoreFailure,
};
use walrelay_relay::stream::publisher::Publisher;

use super::progress::Progress;

#[derive(Debug, Clone)]
pub struct ProgressReporting<T> {
    inner: T,
    progress: Progress,
}

impl<T> ProgressReporting<T> {
    #[must_use]
    pub const fn new(inner: T, progress: Progress) -> Self {
        Self { inner, progress }
    }
}

impl<P: Publisher> Publisher for ProgressReporting<P> {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let rows: Vec<(Position, String)> = batch
            .messages()
            .map(|message| (message.position(), message.event_id().to_owned()))
            .collect();
        let publish = self.inner.publish(batch);
        let progress = self.progress.clone();
        async move {
            let ids = publish.await?;
            // If the number of ids differs, it is unknown which rows are stored.
            if ids.len() == rows.len() {
                rows.iter().for_each(|(position, id)| progress.settled(*position, id));
            }
            Ok(ids)
        }
    }
}

impl<S: Store> Store for ProgressReporting<S> {
    async fn parked_keys(
        &mut self,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreFailure> {
        self.inner.parked_keys(each).await
    }

    /// Returns recorded rows of this stream. Dispatch state has them at positions of another
    /// stream.
    async fn recorded_from(
        &mut self,
        from: Position,
        rows_max: u32,
    ) -> Result<RecordedPage, StoreFailure> {
        Ok(RecordedPage::from_all(&self.progress.recorded(), from, rows_max))
    }

    async fn park(&mut self, rows_to_record: &[RowToRecord]) -> Result<(), StoreFailure> {
        self.progress.refuse_lost()?;
        self.inner.park(rows_to_record).await?;
        for RowToRecord { message, .. } in rows_to_record {
            self.progress.settled(message.position(), message.event_id());
        }
        Ok(())
    }

    async fn finish(&mut self, finished: &[Finished]) -> Result<(), StoreFailure> {
        self.progress.refuse_lost()?;
        self.inner.finish(finished).await
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
        through: Position,
    ) -> Result<Vec<ClaimAnswer>, StoreFailure> {
        self.progress.refuse_lost()?;
        self.inner.claim(keys, bytes_max, through).await
    }

    async fn due_keys(&mut self, except: &[Topic]) -> Result<Due, StoreFailure> {
        self.progress.refuse_lost()?;
        self.inner.due_keys(except).await
    }

    /// Positions in dispatch state are not comparable with positions of this stream.
    async fn has_spilled_before(&mut self, _: Lsn) -> Result<bool, StoreFailure> {
        Ok(false)
    }

    /// Each row that a recovery records has a due time, or is behind such a row.
    async fn heads_after(&mut self, _: Option<&Head>) -> Result<Vec<Head>, StoreFailure> {
        Ok(Vec::new())
    }

    async fn notice(&mut self) {
        self.inner.notice().await;
    }

    async fn note_settled(&mut self, settled: Lsn, published: u64) -> Result<(), StoreFailure> {
        self.progress.refuse_lost()?;
        self.inner.note_settled(settled, published).await
    }

    async fn survey(&mut self) -> Result<SlotFigures, StoreFailure> {
        self.inner.survey().await
    }

    async fn watch(&mut self) -> Result<PublicationCheck, StoreFailure> {
        self.inner.watch().await
    }

    async fn prune(&mut self, retention: Duration) -> Result<u64, StoreFailure> {
        self.inner.prune(retention).await
    }

    async fn note_condition(&mut self, condition: &Condition) -> Result<(), StoreFailure> {
        self.inner.note_condition(condition).await
    }

    fn failure_reason(&self, failure: &StoreFailure) -> Reason {
        self.inner.failure_reason(failure)
    }
}
