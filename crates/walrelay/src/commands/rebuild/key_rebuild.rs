//! `walrelay consumer rebuild --key`: resets single ordering keys and applies their outbox rows
//! again, in one transaction. New events of these keys wait for the transaction, and then find
//! themselves in the inbox.

use std::time::Duration;
use walrelay_pg_client::SqlError;

use tokio::time::sleep;
use walrelay_core::Routed;
use walrelay_inbox::operator::event_commands::{ConsumerGeneration, OperatorDecisions};
use walrelay_inbox::{InboxError, Keys, OutboxApplier};
use walrelay_outbox_replay::{Scope, SettledRows};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_relay::failpoint;
use walrelay_relay::shutdown::Shutdown;

use super::super::shared::cancellable::run_until_shutdown;
use super::outbox_row_check::{self, RowsToApply, Wanted};
use super::rebuild_into::EventBatch;
use crate::config::{ChangeMode, Rebuild, RebuildKeysConfig};
use crate::error::Error;
use crate::output::print;

/// Pause between lock attempts, so that sessions queued behind ours can proceed.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Rebuilds all keys or none.
pub(in crate::commands) async fn rebuild(
    client: &mut SqlClient,
    (order, config): (&Rebuild, &RebuildKeysConfig),
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let work = async {
        Keys::refuse_hidden(client).await?;
        let wanted = wanted(config);
        let rows = Box::pin(outbox_row_check::check(&config.rows, &wanted)).await?;
        let generation = ConsumerGeneration::find(client, Some(&order.name)).await?.generation();
        let fill =
            OutboxApplier::new(client, &order.name, generation, &config.handler, None).await?;
        let keys = Keys { consumer: &order.name, generation, keys: &config.keys };
        let once = Once { order, config, keys, fill: &fill, rows: &rows, wanted: &wanted };
        let events = loop {
            match once.rebuild(client).await {
                Ok(events) => break events,
                Err(Error::Inbox(error)) if error.is_in_the_way() => {
                    tracing::debug!(%error, "trying again");
                    sleep(AGAIN_AFTER).await;
                }
                Err(error) => return Err(error),
            }
        };
        failpoint::hit("keys-rebuilt");
        let count = config.keys.len();
        let done = match order.mode {
            ChangeMode::DryRun => "would be rebuilt",
            ChangeMode::Ask | ChangeMode::Agreed => "rebuilt",
        };
        print(&format!("{done}: {events} event(s) of {count} key(s), in generation {generation}\n"))
    };
    Box::pin(run_until_shutdown(work, shutdown)).await
}

/// Returns the filter for rows of these keys. If the ordering key is the aggregate id, Postgres
/// filters the rows. Otherwise the command reads all rows.
fn wanted(config: &RebuildKeysConfig) -> Wanted {
    let is_aggregate =
        config.rows.settings.relay.router.ordering_key.to_string() == "{aggregateid}";
    let aggregate_ids = if is_aggregate { config.keys.clone() } else { Vec::new() };
    Wanted { scope: Scope { aggregate_ids, ..Scope::default() }, settled: SettledRows::None }
}

/// One attempt to rebuild the keys.
struct Once<'a> {
    order: &'a Rebuild,
    config: &'a RebuildKeysConfig,
    keys: Keys<'a>,
    fill: &'a OutboxApplier,
    rows: &'a RowsToApply,
    wanted: &'a Wanted,
}

impl Once<'_> {
    /// Rebuilds the keys. Returns the number of applied events.
    async fn rebuild(&self, client: &mut SqlClient) -> Result<u64, Error> {
        let transaction = self.fill.begin(client).await?;
        let decided = self.keys.set_aside(&transaction).await?;
        self.keys.reset(&transaction, &self.config.reset).await?;
        failpoint::hit("keys-reset");
        // Every applied event of these keys is committed in the outbox, and the transaction blocks
        // all other events of these keys.
        let RowsToApply { refill, left_out, .. } = self.rows;
        let outbox = connect_sql(&refill.settings.connect).await?;
        let snapshot = outbox_row_check::now(&outbox).await?;
        let reader =
            outbox_row_check::reader(&outbox, (refill, left_out), (snapshot, self.wanted)).await;
        outbox.close().await;
        let (mut batch, mut events) = (EventBatch::default(), 0_u64);
        let visit = async |routed: Routed| {
            if !self.keys.keys.iter().any(|key| key == routed.message.ordering_key()) {
                return Ok(());
            }
            events += u64::from(routed.fault.is_none());
            if batch.add(&routed) {
                self.fill.apply(&transaction, &batch.take()).await?;
            }
            Ok::<(), Error>(())
        };
        Box::pin(reader?.each(1, visit)).await?;
        self.fill.apply(&transaction, &batch.take()).await?;
        let lost = self.keys.forget(&transaction).await?;
        self.refuse_less(events, (decided, lost))?;
        if self.order.mode == ChangeMode::DryRun {
            // The transaction is rolled back.
            return Ok(events);
        }
        failpoint::hit("keys-applied");
        let committing = |source| SqlError::Sql { action: "commit".to_owned(), source };
        transaction.commit().await.map_err(committing).map_err(InboxError::Store)?;
        Ok(events)
    }

    /// Refuses a rebuild without rows, or one that would lose edits, discards or applied events
    /// without `--yes`. The error rolls back the transaction.
    fn refuse_less(
        &self,
        events: u64,
        (decided, lost): (OperatorDecisions, i64),
    ) -> Result<(), Error> {
        let OperatorDecisions { edited, discarded, .. } = decided;
        if events == 0 {
            return Err(Error::Unfit {
                what: "the outbox has no published rows of these keys; nothing has changed"
                    .to_owned(),
                hint: "--key is the ordering key, as `walrelay inbox show` and `walrelay trace` show it; rows that are \
                       dead or discarded at the relay are not rebuilt: `walrelay dispatch list`",
            });
        }
        if self.order.mode == ChangeMode::Agreed || edited + discarded + lost == 0 {
            return Ok(());
        }
        Err(Error::Unfit {
            what: format!(
                "nothing has changed: {edited} edited and {discarded} discarded event(s) of these keys would be applied as they \
                 were published, and {lost} applied event(s) are not in the outbox any more"
            ),
            hint: "add --yes to rebuild all the same",
        })
    }
}
