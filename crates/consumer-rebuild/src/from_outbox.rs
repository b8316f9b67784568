//! Rebuilds a read model from the rows of the outbox.
//!
//! ```text
//! new subscription, to a topic of its own ──▶ reset, generation and subscription in one transaction
//!   ──▶ the rows to that topic ──▶ all of them in the inbox ──▶ the subscription that was read before
//! ```
//!
//! Running instances do the work. During the refill they read its subscription, and new events
//! queue in the usual subscription. Order holds, because no new event of a key is applied before
//! the key's rows. The inbox skips events that arrive from both subscriptions. If the refill is
//! interrupted, the operator starts it again from scratch with another generation and another
//! subscription. Otherwise the rest of the first refill would come before the beginning of the
//! second.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_core::ColumnFilter;
use walrelay_envelope::Lsn;
use walrelay_inbox::operator::admin::{self, Filling, NewGeneration, RefillEnd};
use walrelay_inbox::operator::consumer_status::consumer_status;
use walrelay_inbox::operator::event_commands::ConsumerGeneration;
use walrelay_outbox_admin::protocols::routes;
use walrelay_outbox_replay::replay::{
    Destination, OrderedSource, OrderedTable, ReplayDone, ReplayEnv, ReplayError, ReplayJob,
    ReplayOrder,
};
use walrelay_pg_client::{
    QualifiedName, SqlClient, SqlError, TableAccess, backend_pid, connect_outbox, connect_shared,
    connect_sql, in_schema, own_rows_sql, refuse_hidden_rows,
};
use walrelay_pubsub::Subscriber;
use walrelay_relay::failpoint;

use crate::from_topic::{begin, described, successor};
use crate::lock_retry::when_free;
use crate::orders::{ConsumerRebuild, OutboxRows};
use crate::outbox_row_check::{RowsToApply, Wanted};
use crate::rebuild_error::RebuildError;
use crate::rebuild_step::{RebuildNote, SubscriptionStep, UnreadRows};
use crate::session::{RebuildOperator, RebuildSession};
use crate::subscription_names::RefillNames;

/// Interval between progress queries. Such a query counts the rows of the inbox, so the interval is
/// at least ten times the duration of the last query.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After this time without progress, the command warns that perhaps no consumer is running.
const QUIET: Duration = Duration::from_secs(15);

impl<O: RebuildOperator> RebuildSession<'_, O> {
    /// Rebuilds the read model from the rows of the outbox.
    ///
    /// # Errors
    ///
    /// Rows cannot be applied again, the operator did not agree, Postgres or Pub/Sub refuses, or a
    /// stop was requested.
    pub async fn rebuild_from_outbox(
        &self,
        client: &mut SqlClient,
        order: &ConsumerRebuild,
        outbox: &OutboxRows,
    ) -> Result<(), RebuildError> {
        check_outbox(outbox).await?;
        self.refuse_pruned(client, &order.consumer).await?;
        let delivered = self.delivered(client, &order.consumer, outbox).await?;
        if delivered.filter.is_some() {
            return Err(RebuildError::SubscriptionFiltered { consumer: order.consumer.clone() });
        }
        let wanted = Wanted::all();
        let checking = self.check_rows(outbox, (&wanted, delivered));
        let rows = Box::pin(self.until_stopped(checking)).await?;
        rows.refuse_none()?;
        let unread = order.reset_sql.as_ref().map(|_| UnreadRows::Rows(rows.rows));
        if !self.agree(client, order, unread).await? {
            let (rows, topic) = (rows.rows, outbox.topic.clone());
            return self.report(SubscriptionStep::WouldPublish { rows, topic });
        }
        let names = Box::pin(self.until_stopped(self.prepare_refill(client, order, &rows))).await?;
        let settled = settled(&rows).await?;
        let generation = self.begin_refill(client, order, &names).await?;
        self.report(SubscriptionStep::BegunFromOutbox {
            generation,
            subscription: names.refill.clone(),
        })?;
        failpoint::hit("refill-begun");
        if let Err(error) = self.refill(client, order, generation, &rows).await {
            let (consumer, subscription) = (order.consumer.clone(), names.refill);
            self.report(RebuildNote::RefillInterrupted { consumer, subscription })?;
            return Err(error);
        }
        self.end_refill(client, &order.consumer, (names, settled)).await
    }

    /// Publishes the rows, and waits until the inbox has them.
    async fn refill(
        &self,
        client: &SqlClient,
        order: &ConsumerRebuild,
        generation: i32,
        rows: &RowsToApply,
    ) -> Result<(), RebuildError> {
        let rows = Box::pin(self.publish(rows)).await?;
        failpoint::hit("refill-published");
        self.until_stopped(self.applied(client, &order.consumer, generation, rows)).await
    }

    /// Lets the instances read the usual subscription again.
    async fn end_refill(
        &self,
        client: &mut SqlClient,
        consumer: &str,
        (RefillNames { usual, refill }, settled): (RefillNames, Lsn),
    ) -> Result<(), RebuildError> {
        let consumer = consumer.to_owned();
        let end = RefillEnd { former: &refill, next: &usual, settled };
        if !when_free(async || Ok(admin::end_refill(client, &consumer, end).await?)).await? {
            return Err(RebuildError::SubscriptionMoved { consumer, subscription: refill });
        }
        let place = ConsumerGeneration::find(client, Some(&consumer)).await?;
        let unfinished = place.decided(client).await?.unfinished;
        self.report(SubscriptionStep::RowsInInbox { consumer, unfinished, usual, refill })
    }

    /// Refuses a refill that would be incomplete, and creates the subscription.
    async fn prepare_refill(
        &self,
        client: &SqlClient,
        order: &ConsumerRebuild,
        rows: &RowsToApply,
    ) -> Result<RefillNames, RebuildError> {
        let ConsumerRebuild { consumer, endpoint, .. } = order;
        let status = consumer_status(client, consumer).await?;
        if status.paused {
            return Err(RebuildError::ConsumerPaused { consumer: consumer.clone() });
        }
        let generation = i64::from(status.generation);
        let reads = admin::subscription(client, consumer).await?;
        let names = RefillNames::of(&reads, generation);
        let subscriber = Subscriber::connect(endpoint)?;
        let found = described(&subscriber, &names.usual).await?;
        let mut wanted = successor(&found, &names.refill);
        wanted.topic.clone_from(&rows.refill.topic);
        wanted.dead_letter_policy = None;
        let is_new = subscriber.create_subscription(wanted).await?;
        let name = names.refill.clone();
        self.report(SubscriptionStep::SubscriptionReady { name, is_new })?;
        Ok(names)
    }

    async fn begin_refill(
        &self,
        client: &mut SqlClient,
        order: &ConsumerRebuild,
        names: &RefillNames,
    ) -> Result<i32, RebuildError> {
        let pid = backend_pid(client).await?;
        let reset = order.reset_sql.as_deref().unwrap_or_default();
        let filling = Filling::Unfinished;
        let new = NewGeneration { subscription: &names.refill, reset, filling };
        let beginning = begin(client, &order.consumer, new);
        let error = match self.cancellable(pid, beginning).await {
            Ok(generation) => return Ok(generation),
            Err(error) => error,
        };
        match self.is_moved(&order.consumer, &names.refill).await {
            // The transaction has committed, and its reply was lost.
            Ok(true) => self.generation(&order.consumer).await,
            Ok(false) | Err(_) => Err(error),
        }
    }

    async fn generation(&self, consumer: &str) -> Result<i32, RebuildError> {
        let now = connect_shared(self.connect).await?;
        let status = consumer_status(&now, consumer).await;
        now.close().await;
        Ok(status?.generation)
    }

    /// Waits until the inbox has this number of events.
    async fn applied(
        &self,
        client: &SqlClient,
        consumer: &str,
        generation: i32,
        rows: u64,
    ) -> Result<(), RebuildError> {
        let (mut seen, mut seen_at) = (0, Instant::now());
        loop {
            let began = Instant::now();
            let Some(count) = admin::received(client, consumer, generation).await? else {
                return Err(RebuildError::AnotherGeneration { consumer: consumer.to_owned() });
            };
            if count >= rows {
                return Ok(());
            }
            if count > seen {
                (seen, seen_at) = (count, Instant::now());
            } else if seen_at.elapsed() >= QUIET {
                self.report(RebuildNote::NothingApplied { count, rows })?;
                seen_at = Instant::now();
            }
            sleep(LOOK_EVERY.max(began.elapsed() * 10)).await;
        }
    }

    /// Publishes the rows of the outbox to the topic of the refill. Returns the number of rows that
    /// the topic received.
    async fn publish(&self, to_apply: &RowsToApply) -> Result<u64, RebuildError> {
        let OutboxRows { settings, topic, aggregate_types, dead_rows } = &to_apply.refill;
        let aggregate_types = aggregate_types.clone();
        let order = ReplayOrder {
            source: OrderedSource::Table(OrderedTable::default()),
            destination: Destination::Topic { template: topic.clone(), rate: None },
            matching: ColumnFilter { aggregate_types, ..Default::default() },
            dead_rows: *dead_rows,
        };
        let mut client = connect_outbox(&settings.connect).await?;
        let published = async {
            let mut job = ReplayJob::plan(&client, settings, order).await?;
            job.left_out = Some(to_apply.left_out.clone());
            routes::refuse_missing(&client, settings, topic).await?;
            let rows = job.count_table_rows(&client, settings).await?.unwrap_or_default();
            self.report(RebuildNote::PublishesRows { rows })?;
            let done = self.run_replay(&mut client, to_apply, &mut job).await?;
            // No consumer receives the rows that were left out.
            Ok::<_, RebuildError>((rows.saturating_sub(done.refused), done))
        };
        let published = Box::pin(published).await;
        client.close().await;
        let (received, done) = published?;
        let (rows, topic, left_out) = (done.published, topic.clone(), done.refused);
        self.report(SubscriptionStep::RowsPublished { rows, topic, left_out })?;
        Ok(received)
    }

    /// Runs the replay from its start. A replay that fails is cancelled, because the rebuild starts
    /// again from scratch.
    async fn run_replay(
        &self,
        client: &mut SqlClient,
        to_apply: &RowsToApply,
        job: &mut ReplayJob,
    ) -> Result<ReplayDone, RebuildError> {
        let settings = &to_apply.refill.settings;
        let env = ReplayEnv { settings, steps: self.replay_steps, shutdown: self.stop };
        job.begin(client, settings, &[], self.replay_steps).await?;
        let error = match Box::pin(job.run(client, env)).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if let Err(left) = job.abandon(settings).await {
            self.report(RebuildNote::ReplayLeft { id: job.id.clone(), error: left.to_string() })?;
        }
        Err(match matches!(error, ReplayError::Stopped { .. }) {
            true => RebuildError::Interrupted,
            false => error.into(),
        })
    }
}

/// Returns the position up to which the outbox is settled.
async fn settled(rows: &RowsToApply) -> Result<Lsn, RebuildError> {
    let client = connect_sql(&rows.refill.settings.connect).await?;
    let settled = rows.position(&client).await;
    client.close().await;
    settled
}

/// Checks that the outbox has rows and that the topic exists, before anything is emptied.
async fn check_outbox(config: &OutboxRows) -> Result<(), RebuildError> {
    let OutboxRows { settings, topic, .. } = config;
    let client = connect_outbox(&settings.connect).await?;
    let checked = async {
        refuse_without_rows(&client, &settings.relay.outbox.tables).await?;
        Ok(routes::refuse_missing(&client, settings, topic).await?)
    };
    let checked = checked.await;
    client.close().await;
    checked
}

/// Refuses a database without outbox rows: it may be the consumer's database, whose outbox is
/// missing or unused.
async fn refuse_without_rows(
    client: &SqlClient,
    tables: &[QualifiedName],
) -> Result<(), RebuildError> {
    let failed = |source| SqlError::Sql { action: "look for rows".to_owned(), source };
    let replays = in_schema!("SELECT to_regclass('public.app_outbox_replay') IS NOT NULL");
    let mut has_rows = false;
    refuse_hidden_rows(client, tables, TableAccess::Read).await?;
    if client.query_one(replays, &[]).await.map_err(failed)?.get(0) {
        for name in tables {
            let is_own = own_rows_sql(name, "t");
            let sql = format!("SELECT EXISTS (SELECT FROM {name} t WHERE {is_own})");
            has_rows |= client.query_one(&sql, &[]).await.map_err(failed)?.get::<_, bool>(0);
        }
    }
    match has_rows {
        true => Ok(()),
        false => Err(RebuildError::OutboxEmpty),
    }
}
