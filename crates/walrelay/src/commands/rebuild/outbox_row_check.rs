//! Checks, before a rebuild from the outbox empties anything, that every row can be applied again
//! as it was published.
//!
//! The outbox has the rows as producers wrote them, and dispatch state has the changes since. The
//! rebuild applies an edited row as edited, and leaves out a discarded row. A dead row stops the
//! rebuild.

use walrelay_core::EditedMessages;
use walrelay_outbox_replay::recovery::table;
use walrelay_outbox_replay::replay::{DeadRows, RoutedRows};
use walrelay_outbox_replay::{
    LeftOutRows, OutboxSlots, Scope, SettledRows, SourceTable, UnsettledRows,
};
use walrelay_outbox_store::DispatchStatus;
use walrelay_pg_client::SqlError;
use walrelay_pg_client::{QualifiedName, SqlClient, TableAccess, connect_sql, refuse_hidden_rows};

use crate::config::OutboxRowsConfig;
use crate::error::Error;
use walrelay_outbox_admin::protocols::routes;

/// Most rows that an error names.
const NAMED_MAX: usize = 20;

/// The rows of an outbox that a rebuild applies, as they were published.
#[derive(Debug, Clone)]
pub(in crate::commands) struct RowsToApply {
    /// The checked configuration, with the messages that users have edited.
    pub(in crate::commands) refill: OutboxRowsConfig,
    /// Rows that are not applied.
    pub(in crate::commands) left_out: LeftOutRows,
    /// Number of rows found.
    pub(in crate::commands) rows: u64,
}

/// The rows to read.
#[derive(Debug, Clone)]
pub(in crate::commands) struct Wanted {
    /// Limits the rows of the table.
    pub(in crate::commands) scope: Scope,
    /// Rows that an earlier pass has read.
    pub(in crate::commands) settled: SettledRows,
}

impl Wanted {
    /// Selects all rows.
    pub(in crate::commands) fn all() -> Self {
        Self { scope: Scope::default(), settled: SettledRows::None }
    }
}

/// Reads every row once, and refuses if a row cannot be applied again. Writes nothing.
///
/// # Errors
///
/// Rows are dead or can never be published, or a table cannot be read.
pub(in crate::commands) async fn check(
    order: &OutboxRowsConfig,
    wanted: &Wanted,
) -> Result<RowsToApply, Error> {
    let client = connect_sql(&order.settings.connect).await?;
    let checked = Box::pin(check_with(&client, order, wanted)).await;
    client.close().await;
    checked
}

async fn check_with(
    client: &SqlClient,
    order: &OutboxRowsConfig,
    wanted: &Wanted,
) -> Result<RowsToApply, Error> {
    // If row level security hid these rows, edited and dead rows would go unnoticed.
    let tables = ["app_outbox_dispatch", "app_outbox_relay"];
    let tables = tables.map(|table| QualifiedName::new("public", table));
    refuse_hidden_rows(client, &tables, TableAccess::Read).await?;
    let slots = OutboxSlots::read(client, &order.settings.relay.outbox).await?;
    let mut refill = order.clone();
    refill.settings.relay.router.edited = EditedMessages::new(slots.edited(client).await?);
    let mut problems = Problems::default();
    match order.dead_rows {
        DeadRows::Stop => problems.dead(client, (order, wanted), &slots).await?,
        DeadRows::LeaveOut => {}
    }
    // Dead rows were counted above, or `--skip-dead` leaves them out.
    let statuses = vec![DispatchStatus::Discarded, DispatchStatus::Dead];
    let left_out = LeftOutRows { slots, statuses };
    let mut rows = 0;
    let found = (now(client).await?, wanted);
    let reader = reader(client, (&refill, &left_out), found);
    let visit = async |routed: walrelay_core::Routed| {
        match routed.fault {
            None => rows += 1,
            Some(fault) => problems.add(routed.message.event_id(), &fault.to_string()),
        }
        Ok::<(), Error>(())
    };
    Box::pin(reader.await?.each(1, visit)).await?;
    match (order.dead_rows, problems.refusal()) {
        (DeadRows::Stop, Some(error)) => return Err(error),
        (DeadRows::LeaveOut, Some(_)) => problems.warn(),
        (DeadRows::Stop | DeadRows::LeaveOut, None) => {}
    }
    // A row that is written from now on and can never be published is also dead for the relay, and
    // reaches no consumer.
    refill.dead_rows = DeadRows::LeaveOut;
    Ok(RowsToApply { refill, left_out, rows })
}

/// Returns a reader of the rows that a snapshot sees.
pub(in crate::commands) async fn reader(
    client: &SqlClient,
    (refill, left_out): (&OutboxRowsConfig, &LeftOutRows),
    (snapshot, wanted): (String, &Wanted),
) -> Result<RoutedRows, Error> {
    let relay = &refill.settings.relay;
    let mut tables = Vec::new();
    for name in &relay.outbox.tables {
        tables.push(left_out.of(table(client, name, &relay.router.columns).await?));
    }
    let mut router = relay.router.clone();
    router.topic = routes::template(&refill.topic)?;
    let reader = RoutedRows::connect(
        &refill.settings.connect,
        router,
        (gap(refill, (snapshot, wanted)), tables),
    );
    reader.await.map_err(Error::Relay)
}

fn gap(refill: &OutboxRowsConfig, (snapshot, wanted): (String, &Wanted)) -> UnsettledRows {
    let aggregate_types = refill.aggregate_types.clone();
    let Wanted { scope, settled } = wanted.clone();
    UnsettledRows { snapshot, settled, scope: Scope { aggregate_types, ..scope } }
}

/// Returns a snapshot of the outbox's database.
pub(in crate::commands) async fn now(client: &SqlClient) -> Result<String, Error> {
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
    async fn dead(
        &mut self,
        client: &SqlClient,
        (order, wanted): (&OutboxRowsConfig, &Wanted),
        slots: &OutboxSlots,
    ) -> Result<(), Error> {
        let relay = &order.settings.relay;
        for name in &relay.outbox.tables {
            let found = table(client, name, &relay.router.columns).await?;
            let filter = slots.having(&found, &[DispatchStatus::Dead]);
            let dead = SourceTable { row_filter: Some(filter), ..found };
            let gap = gap(order, (now(client).await?, wanted));
            self.rows += gap.count(client, &dead).await?;
            for event_id in gap.ids(client, &dead, NAMED_MAX).await? {
                self.named.push(format!("{event_id}: it is dead in dispatch state"));
            }
        }
        self.named.truncate(NAMED_MAX);
        Ok(())
    }

    fn refusal(&self) -> Option<Error> {
        let Self { rows, named } = self;
        (*rows > 0).then(|| Error::Unfit {
            what: format!(
                "{rows} row(s) of the outbox cannot be applied again; nothing has changed. {}",
                named.join("; ")
            ),
            hint: "publish each with `walrelay dispatch edit ID` or `dispatch retry ID`, or give it up with `dispatch discard \
                   ID`, and run this again; --skip-dead rebuilds without them",
        })
    }

    fn warn(&self) {
        let Self { rows, named } = self;
        let named = named.join("; ");
        tracing::warn!(rows, named, "rows that can never be published are left out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_first_rows_and_counts_all() {
        assert!(Problems::default().refusal().is_none());
        let mut problems = Problems::default();
        (0..30).for_each(|number| problems.add(&format!("e-{number}"), "too long"));
        let text = problems.refusal().expect("there are some").report();
        assert!(text.contains("30 row(s)") && text.contains("nothing has changed"), "{text}");
        assert!(text.contains("e-19: too long") && !text.contains("e-20:"), "{text}");
        assert!(text.contains("--skip-dead"), "{text}");
    }
}
