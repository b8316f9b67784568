//! Checks, before a rebuild from the outbox changes anything, that every row can be applied again
//! as it was published.
//!
//! The outbox has the rows as producers wrote them, and dispatch state has the changes since. The
//! rebuild applies an edited row as edited, and leaves out a discarded row. A dead row stops the
//! rebuild.

use crate::admin;
use crate::event_commands::{ConsumerGeneration, EarlierEvents};
use walrelay_core::{EditedMessages, Routed, Template};
use walrelay_envelope::attribute::POSITION_NAMES;
use walrelay_envelope::{Lsn, SubscriptionFilter};
use walrelay_outbox_replay::recovery::table_of_all_shards;
use walrelay_outbox_replay::replay::{DeadRows, RoutedRows};
use walrelay_outbox_replay::{
    LeftOutRows, OutboxSlots, Scope, SettledRows, TopicRows, UnsettledRows,
};
use walrelay_outbox_store::DispatchStatus;
use walrelay_pg_client::{
    SqlClient, SqlError, TableAccess, connect_outbox, own_table, refuse_hidden_rows,
};
use walrelay_pubsub::Subscriber;

use crate::rebuild::from_topic::described;
use crate::rebuild::orders::OutboxRows;
use crate::rebuild::rebuild_error::RebuildError;
use crate::rebuild::rebuild_step::RebuildNote;
use crate::rebuild::session::{RebuildOperator, RebuildSession};

/// Most rows that an error names.
const NAMED_MAX: usize = 20;

/// The rows of an outbox that a rebuild applies, as they were published.
#[derive(Debug, Clone)]
pub(crate) struct RowsToApply {
    /// The order. Its router has the consumer's topic, and the messages that users have edited.
    pub(crate) order: OutboxRows,
    /// Rows that are not applied.
    left_out: LeftOutRows,
    pub(crate) rows: u64,
    /// Rows whose attributes do not pass are not applied either.
    filter: Option<SubscriptionFilter>,
}

/// The messages that a subscription delivers.
#[derive(Debug)]
pub(crate) struct Delivered {
    /// Full name of the topic.
    topic: String,
    /// `None` if the subscription delivers all messages of the topic.
    filter: Option<SubscriptionFilter>,
}

#[derive(Debug)]
pub(crate) struct RowsReader {
    rows: RoutedRows,
    filter: Option<SubscriptionFilter>,
}

impl RowsReader {
    /// Calls `visit` with each row that the subscription delivers. See [`RoutedRows::each`].
    pub(crate) async fn each(
        &self,
        commit_lsn: Lsn,
        mut visit: impl AsyncFnMut(Routed) -> Result<(), RebuildError>,
    ) -> Result<(), RebuildError> {
        let passing = async |routed: Routed| {
            let is_delivered = self.filter.as_ref().is_none_or(|filter| {
                filter.matches(&routed.message.attributes().collect::<Vec<_>>())
            });
            if is_delivered { visit(routed).await } else { Ok(()) }
        };
        self.rows.each(commit_lsn, passing).await
    }
}

/// The rows to read.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// Limits the rows of the table.
    pub(crate) scope: Scope,
    /// Rows that an earlier pass has read.
    pub(crate) settled: SettledRows,
}

impl Wanted {
    pub(crate) fn all() -> Self {
        Self { scope: Scope::default(), settled: SettledRows::None }
    }
}

impl<O: RebuildOperator> RebuildSession<'_, O> {
    /// Returns the messages that the consumer's subscription delivers.
    ///
    /// # Errors
    ///
    /// The consumer is not set up, or its subscription does not exist.
    pub(crate) async fn delivered(
        &self,
        client: &SqlClient,
        consumer: &str,
        order: &OutboxRows,
    ) -> Result<Delivered, RebuildError> {
        let subscription = admin::subscription(client, consumer).await?;
        let subscriber = Subscriber::connect(&order.endpoint)?;
        let found = described(&subscriber, &subscription).await?;
        let filter = SubscriptionFilter::parse(&found.filter);
        let filter = match filter {
            Ok(filter) => filter,
            Err(source) => return Err(RebuildError::FilterUnreadable { subscription, source }),
        };
        let is_needed =
            |attribute: &&str| filter.as_ref().is_some_and(|filter| filter.depends_on(attribute));
        if let Some(attribute) = POSITION_NAMES.into_iter().find(is_needed) {
            return Err(RebuildError::FilterOnPosition { subscription, attribute });
        }
        Ok(Delivered { topic: found.topic, filter })
    }

    /// Refuses, without consent, to rebuild a consumer whose inbox does not list all applied events
    /// any more: nothing could show that the outbox lacks some of them.
    ///
    /// # Errors
    ///
    /// Events were pruned, or the consumer is not set up.
    pub(crate) async fn refuse_pruned(
        &self,
        client: &SqlClient,
        consumer: &str,
    ) -> Result<(), RebuildError> {
        let place = ConsumerGeneration::find(client, Some(consumer)).await?;
        let (Some(before), _) = place.begin(client).await? else { return Ok(()) };
        if !self.operator.has_agreed() {
            return Err(RebuildError::HistoryPruned { consumer: consumer.to_owned(), before });
        }
        let earlier = EarlierEvents { pruned_before: Some(before), ..EarlierEvents::default() };
        self.report(RebuildNote::EventsOutOfReach { earlier, generation: place.generation() })
    }

    /// Reads every row once, and refuses if a row cannot be applied again. Writes nothing.
    ///
    /// # Errors
    ///
    /// Rows are dead or can never be published.
    pub(crate) async fn check_rows(
        &self,
        order: &OutboxRows,
        (wanted, delivered): (&Wanted, Delivered),
    ) -> Result<RowsToApply, RebuildError> {
        let client = connect_outbox(&order.connect).await?;
        let checked = Box::pin(check_with(&client, order, (wanted, delivered))).await;
        client.close().await;
        let (rows, problems) = checked?;
        match (order.dead_rows, problems.is_empty()) {
            (DeadRows::Stop | DeadRows::LeaveOut, true) => {}
            (DeadRows::Stop, false) => return Err(problems.refusal()),
            (DeadRows::LeaveOut, false) => self.report(problems.left_out())?,
        }
        Ok(rows)
    }
}

async fn check_with(
    client: &SqlClient,
    order: &OutboxRows,
    (wanted, delivered): (&Wanted, Delivered),
) -> Result<(RowsToApply, Problems), RebuildError> {
    // If row level security hid these rows, edited and dead rows would go unnoticed.
    let tables = ["app_outbox_dispatch", "app_outbox_relay"];
    let tables = tables.map(own_table);
    refuse_hidden_rows(client, &tables, TableAccess::Read).await?;
    let slots = OutboxSlots::read(client, &order.outbox).await?;
    let Delivered { topic, filter } = delivered;
    let mut edited = order.clone();
    edited.router.edited = EditedMessages::new(slots.edited(client).await?);
    edited.router.topic = Template::literal(&topic);
    let topic = TopicRows::new(topic, &order.router);
    let mut problems = Problems::default();
    match order.dead_rows {
        DeadRows::Stop => problems.add_dead(client, order, wanted, (&topic, &slots)).await?,
        DeadRows::LeaveOut => {}
    }
    // Dead rows were counted above, or the operator has left them out.
    let statuses = vec![DispatchStatus::Discarded, DispatchStatus::Dead];
    let left_out = LeftOutRows { topic, slots, statuses };
    let mut found = RowsToApply { order: edited, left_out, rows: 0, filter };
    let reader = found.reader(client, now(client).await?, wanted).await?;
    let visit = async |routed: Routed| {
        match routed.fault {
            None => found.rows += 1,
            Some(fault) => problems.add(routed.message.event_id(), &fault.to_string()),
        }
        Ok(())
    };
    Box::pin(reader.each(Lsn::ZERO, visit)).await?;
    Ok((found, problems))
}

impl RowsToApply {
    /// Returns a reader of the rows that a snapshot sees.
    pub(crate) async fn reader(
        &self,
        client: &SqlClient,
        snapshot: String,
        wanted: &Wanted,
    ) -> Result<RowsReader, RebuildError> {
        let Self { order, left_out, filter, .. } = self;
        let OutboxRows { connect, outbox, router, .. } = order;
        let mut tables = Vec::new();
        for name in &outbox.tables {
            let found = table_of_all_shards(client, (outbox, name), &router.columns).await?;
            tables.push(left_out.of(found));
        }
        let rows = (unsettled(order, snapshot, wanted), tables);
        let rows = RoutedRows::connect(connect, router.clone(), rows).await?;
        Ok(RowsReader { rows, filter: filter.clone() })
    }

    /// Returns the position of the rows that a later snapshot sees. A consumer may still receive
    /// events whose rows are gone from the outbox, because it has a backlog. They were published
    /// before this position, so they count as late.
    pub(crate) async fn position(&self, client: &SqlClient) -> Result<Lsn, RebuildError> {
        Ok(self.left_out.slots.settled_lsn(client).await?)
    }

    /// Refuses to fill a read model from nothing.
    pub(crate) fn refuse_none(&self) -> Result<(), RebuildError> {
        let topic = self.left_out.topic.topic().to_owned();
        let is_filtered = self.filter.is_some();
        match self.rows {
            0 => Err(RebuildError::TopicWithoutRows { topic, is_filtered }),
            _ => Ok(()),
        }
    }
}

fn unsettled(order: &OutboxRows, snapshot: String, wanted: &Wanted) -> UnsettledRows {
    let aggregate_types = order.aggregate_types.clone();
    let Wanted { scope, settled } = wanted.clone();
    UnsettledRows { snapshot, settled, scope: Scope { aggregate_types, ..scope } }
}

/// Returns a snapshot of the outbox's database.
pub(crate) async fn now(client: &SqlClient) -> Result<String, RebuildError> {
    let sql = "SELECT pg_current_snapshot()::text AS snapshot";
    let row = client.query_typed_one(sql, &[]).await;
    let failed = |source| SqlError::Sql { action: "take a snapshot".to_owned(), source };
    Ok(row.map_err(failed)?.get("snapshot"))
}

/// Rows that cannot be applied again as they were published.
#[derive(Debug, Default)]
struct Problems {
    rows: u64,
    named: Vec<String>,
}

impl Problems {
    fn add(&mut self, event_id: &str, problem: &str) {
        self.rows += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(format!("{event_id}: {problem}"));
        }
    }

    /// Adds the dead rows. Consumers never received them, so a rebuild must not apply them as
    /// written.
    async fn add_dead(
        &mut self,
        client: &SqlClient,
        order: &OutboxRows,
        wanted: &Wanted,
        (topic, slots): (&TopicRows, &OutboxSlots),
    ) -> Result<(), RebuildError> {
        let OutboxRows { outbox, router, .. } = order;
        for name in &outbox.tables {
            let found = table_of_all_shards(client, (outbox, name), &router.columns).await?;
            let having = slots.having(&found, &[DispatchStatus::Dead]);
            let condition = format!("{} AND {having}", topic.filter(&found, "t"));
            let dead = found.with_condition(&condition);
            let rows = unsettled(order, now(client).await?, wanted);
            self.rows += rows.count(client, &dead).await?;
            for event_id in rows.ids(client, &dead, NAMED_MAX).await? {
                self.named.push(format!("{event_id}: it is dead in dispatch state"));
            }
        }
        self.named.truncate(NAMED_MAX);
        Ok(())
    }

    const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn refusal(self) -> RebuildError {
        RebuildError::RowsUnusable { rows: self.rows, named: self.named }
    }

    fn left_out(self) -> RebuildNote {
        RebuildNote::RowsLeftOut { rows: self.rows, named: self.named }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_first_rows_and_counts_all() {
        assert!(Problems::default().is_empty());
        let mut problems = Problems::default();
        (0..30).for_each(|number| problems.add(&format!("e-{number}"), "too long"));
        let text = problems.refusal().to_string();
        assert!(text.contains("30 row(s)") && text.contains("nothing has changed"), "{text}");
        assert!(text.contains("e-19: too long") && !text.contains("e-20:"), "{text}");
    }
}
