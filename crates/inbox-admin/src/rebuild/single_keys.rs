//! Rebuilds single ordering keys: resets them and applies their outbox rows
//! again, in one transaction. New events of these keys wait for the transaction, and then find
//! themselves in the inbox.

use crate::event_commands::{ConsumerGeneration, OperatorDecisions};
use crate::key_rebuild::Keys;
use crate::key_rebuild::LostEvents;
use walrelay_core::Routed;
use walrelay_envelope::Lsn;
use walrelay_inbox::{InboxError, OutboxApplier};
use walrelay_outbox_replay::{Scope, SettledRows};
use walrelay_pg_client::{SqlClient, SqlError, connect_outbox};
use walrelay_relay::failpoint;

use crate::rebuild::event_batch::EventBatch;
use crate::rebuild::lock_retry::when_free;
use crate::rebuild::orders::KeyRebuild;
use crate::rebuild::outbox_row_check::{self, RowsReader, RowsToApply, Wanted};
use crate::rebuild::rebuild_error::RebuildError;
use crate::rebuild::rebuild_step::RebuildStep;
use crate::rebuild::session::{RebuildOperator, RebuildSession};

impl<O: RebuildOperator> RebuildSession<'_, O> {
    /// Rebuilds all keys or none.
    ///
    /// # Errors
    ///
    /// No row has the keys, decisions or events would be lost, or a stop was requested.
    pub async fn rebuild_keys(
        &self,
        client: &mut SqlClient,
        consumer: &str,
        order: &KeyRebuild,
    ) -> Result<(), RebuildError> {
        Box::pin(self.until_stopped(self.rebuild_keys_at_once(client, consumer, order))).await
    }

    async fn rebuild_keys_at_once(
        &self,
        client: &mut SqlClient,
        consumer: &str,
        order: &KeyRebuild,
    ) -> Result<(), RebuildError> {
        Keys::refuse_hidden(client).await?;
        let wanted = wanted(order);
        self.refuse_pruned(client, consumer).await?;
        let delivered = self.delivered(client, consumer, &order.rows).await?;
        let rows = Box::pin(self.check_rows(&order.rows, (&wanted, delivered))).await?;
        let generation = ConsumerGeneration::find(client, Some(consumer)).await?.generation();
        let fill = OutboxApplier::new(client, consumer, generation, &order.handler, None).await?;
        let keys = Keys { consumer, generation, keys: &order.keys };
        let losses = match self.operator.has_agreed() {
            true => Losses::Accepted,
            false => Losses::Refused,
        };
        let attempt = Attempt { order, losses, keys, fill: &fill, rows: &rows, wanted: &wanted };
        let is_dry_run = self.operator.is_dry_run();
        let events = match is_dry_run {
            true => attempt.count(client).await?,
            false => attempt.rebuild_when_free(client).await?,
        };
        self.report(RebuildStep::KeysRebuilt {
            events,
            keys: order.keys.len(),
            generation,
            is_dry_run,
        })
    }
}

/// What happens to a rebuild that would lose decisions or events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Losses {
    /// The operator has agreed to every loss.
    Accepted,
    /// The rebuild fails.
    Refused,
}

/// Returns the filter for rows of these keys. If the ordering key is the aggregate id, Postgres
/// filters the rows. Otherwise the command reads all rows.
fn wanted(order: &KeyRebuild) -> Wanted {
    let is_aggregate = order.rows.router.ordering_key.to_string() == "{aggregateid}";
    let aggregate_ids = if is_aggregate { order.keys.clone() } else { Vec::new() };
    Wanted { scope: Scope { aggregate_ids, ..Scope::default() }, settled: SettledRows::None }
}

/// One attempt to rebuild the keys.
struct Attempt<'a> {
    order: &'a KeyRebuild,
    losses: Losses,
    keys: Keys<'a>,
    fill: &'a OutboxApplier,
    rows: &'a RowsToApply,
    wanted: &'a Wanted,
}

impl Attempt<'_> {
    /// Counts the events that the rebuild would apply. It takes no lock and calls neither the
    /// handler nor the reset function, because a rollback would not undo all of their effects.
    async fn count(&self, client: &SqlClient) -> Result<u64, RebuildError> {
        Keys::reset_call(&**client, &self.order.reset).await?;
        let decided = self.keys.decided(&**client).await?;
        let mut lost = self.keys.applied(client).await?;
        let mut events = 0_u64;
        let visit = async |routed: Routed| {
            if self.is_of_keys(&routed) && routed.fault.is_none() {
                events += 1;
                lost.remove(routed.message.event_id());
            }
            Ok(())
        };
        let (reader, position) = self.reader().await?;
        Box::pin(reader.each(position, visit)).await?;
        let lost = i64::try_from(lost.len()).unwrap_or(i64::MAX);
        self.refuse_less(events, decided, LostEvents { events: lost, failure: None })?;
        Ok(events)
    }

    /// Rebuilds the keys as soon as no other session holds a lock.
    async fn rebuild_when_free(&self, client: &mut SqlClient) -> Result<u64, RebuildError> {
        let events = when_free(async || self.rebuild(client).await).await?;
        failpoint::hit("keys-rebuilt");
        Ok(events)
    }

    fn is_of_keys(&self, routed: &Routed) -> bool {
        self.keys.keys.iter().any(|key| key == routed.message.ordering_key())
    }

    /// Returns a reader of the rows that are committed by now, and their position.
    async fn reader(&self) -> Result<(RowsReader, Lsn), RebuildError> {
        let outbox = connect_outbox(&self.rows.order.connect).await?;
        let position = self.rows.position(&outbox).await?;
        let snapshot = outbox_row_check::now(&outbox).await?;
        let reader = self.rows.reader(&outbox, snapshot, self.wanted).await;
        outbox.close().await;
        Ok((reader?, position))
    }

    /// Rebuilds the keys. Returns the number of applied events.
    async fn rebuild(&self, client: &mut SqlClient) -> Result<u64, RebuildError> {
        let transaction = self.fill.begin(client).await?;
        let decided = self.keys.set_aside(&transaction).await?;
        self.keys.reset(&transaction, &self.order.reset).await?;
        failpoint::hit("keys-reset");
        // Every applied event of these keys is committed in the outbox, and the transaction blocks
        // all other events of these keys.
        let (reader, position) = self.reader().await?;
        let (mut batch, mut events) = (EventBatch::default(), 0_u64);
        let visit = async |routed: Routed| {
            if !self.is_of_keys(&routed) {
                return Ok(());
            }
            events += u64::from(routed.fault.is_none());
            if batch.add(&routed) {
                self.fill.apply(&transaction, &batch.take()).await?;
            }
            Ok(())
        };
        Box::pin(reader.each(position, visit)).await?;
        self.fill.apply(&transaction, &batch.take()).await?;
        let lost = self.keys.forget(&transaction).await?;
        self.refuse_less(events, decided, lost)?;
        failpoint::hit("keys-applied");
        let committing = |source| SqlError::Sql { action: "commit".to_owned(), source };
        transaction.commit().await.map_err(committing).map_err(InboxError::Store)?;
        Ok(events)
    }

    /// Refuses a rebuild without rows, or one that would lose edits, discards or applied events
    /// without consent. The error rolls back the transaction.
    fn refuse_less(
        &self,
        events: u64,
        decided: OperatorDecisions,
        LostEvents { events: lost, failure }: LostEvents,
    ) -> Result<(), RebuildError> {
        let OperatorDecisions { edited, discarded, .. } = decided;
        if events == 0 {
            return Err(RebuildError::KeysWithoutRows);
        }
        if self.losses == Losses::Accepted || edited + discarded + lost == 0 {
            return Ok(());
        }
        Err(RebuildError::KeyEventsLost { edited, discarded, lost, failure })
    }
}
