//! `walrelay consumer rebuild --into`: fills the next generation in tables of another schema, from
//! the rows of the outbox, while the consumer keeps running. One transaction then puts the tables
//! in use.
//!
//! ```text
//! rows checked ──▶ rows applied in the schema ──▶ compared ──▶ the last rows, tables and generation in one transaction
//! ```
//!
//! Until that transaction commits, the read model in use is untouched, however the command ends.
//! Run again, the command continues: the inbox lists the rows that were applied.

use std::time::Duration;
use walrelay_pg_client::SqlError;

use tokio::time::sleep;
use walrelay_core::Routed;
use walrelay_inbox::operator::admin::{self, registered};
use walrelay_inbox::{
    Beside, Event, GenerationDifference, InboxError, OutboxApplier, StagedTable, UnfinishedRebuild,
};
use walrelay_outbox_replay::SettledRows;
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_relay::failpoint;
use walrelay_relay::shutdown::Shutdown;

use super::super::dispatch::edit::read;
use super::super::shared::cancellable::run_until_shutdown;
use super::super::shared::consent::may_change;
use super::outbox_row_check::{self, RowsToApply, Wanted};
use super::usual;
use crate::config::{ChangeMode, Rebuild, RebuildIntoConfig};
use crate::error::Error;
use crate::output::print;

/// Most events in one transaction.
const BATCH_EVENTS: usize = 500;
/// Most bytes of events in one transaction, which takes at least one event.
const BATCH_BYTES: usize = 8 << 20;
/// Pause between lock attempts, so that sessions queued behind ours can proceed.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Fills the schema and puts it in use.
pub(in crate::commands) async fn rebuild(
    client: &mut SqlClient,
    (order, config): (&Rebuild, &RebuildIntoConfig),
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let switch_sql = config.switch_sql.as_ref().map(|path| read(path)).transpose()?;
    let switch_sql = switch_sql.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let work = async {
        let place = Beside { consumer: &order.name, schema: &config.schema };
        let tables = staged(client, place).await?;
        let rows = Box::pin(outbox_row_check::check(&config.rows, &Wanted::all())).await?;
        if order.mode == ChangeMode::DryRun {
            let (rows, schema) = (rows.rows, &config.schema);
            return print(&format!(
                "would apply {rows} row(s) in schema {schema} and put it in use\n"
            ));
        }
        let generation = begin(client, place, &tables).await?;
        print(&format!(
            "filling generation {} in schema {}: {} row(s); generation {generation} stays in use meanwhile\n",
            generation + 1,
            config.schema,
            rows.rows
        ))?;
        failpoint::hit("beside-begun");
        let schema = Some(config.schema.as_str());
        let fill = OutboxApplier::new(client, &order.name, generation + 1, &config.handler, schema)
            .await?;
        let mut filling =
            Filling { place, fill, rows: &rows, settled: SettledRows::None, round: 0 };
        filling.catch_up(client).await?;
        failpoint::hit("beside-filled");
        let moment = place.moment(client).await?;
        filling.catch_up(client).await?;
        let difference = place.compare(client, generation, moment).await?;
        refuse_less(order, generation, difference)?;
        while !filling.switch(client, &tables, switch_sql.as_deref()).await? {
            sleep(AGAIN_AFTER).await;
        }
        failpoint::hit("beside-switched");
        print(&format!(
            "in use: generation {}; running instances follow within seconds\n",
            generation + 1
        ))
    };
    Box::pin(run_until_shutdown(work, shutdown)).await
}

/// Returns the tables of the schema, each with the table in use that it replaces.
async fn staged(client: &SqlClient, place: Beside<'_>) -> Result<Vec<StagedTable>, Error> {
    let tables = place.tables(client).await?;
    if tables.is_empty() {
        return Err(Error::Unfinished {
            what: format!("schema {:?} has no tables to fill", place.schema),
            hint: format!(
                "create it with one table for each that the handler writes: CREATE SCHEMA {0}; CREATE TABLE \
                 {0}.balances (LIKE balances INCLUDING ALL)",
                place.schema
            ),
        });
    }
    for table in &tables {
        let StagedTable { name, staged, live, columns, live_columns, .. } = table;
        let what = match live {
            None => {
                format!("no table {name} is on the search path, for which {staged} could stand in")
            }
            Some(live) if live == staged => format!("{staged} is itself on the search path"),
            Some(live) if columns != live_columns => {
                format!("{staged} has other columns than {live}")
            }
            Some(_) => continue,
        };
        let hint = "make it like the table in use: CREATE TABLE SCHEMA.balances (LIKE balances INCLUDING ALL)";
        return Err(Error::Unfit { what, hint });
    }
    Ok(tables)
}

/// Records the start of the rebuild, or finds an earlier record. Returns the generation in use.
async fn begin(
    client: &mut SqlClient,
    place: Beside<'_>,
    tables: &[StagedTable],
) -> Result<i32, Error> {
    let consumer = place.consumer;
    let unfit = |what, hint| Err(Error::Unfit { what, hint });
    if !place.claim(client).await? {
        let what = format!("another process rebuilds consumer {consumer:?}");
        return unfit(what, "wait for it, or end it");
    }
    let found = registered(client, Some(consumer)).await?.pop();
    let unknown = || InboxError::Unregistered { consumer: consumer.to_owned() };
    match found.ok_or_else(unknown)?.rebuild {
        Some(UnfinishedRebuild { generation, schema: Some(schema), .. })
            if schema == place.schema =>
        {
            print("continuing: rows that were applied are skipped\n")?;
            return Ok(generation - 1);
        }
        Some(other) => {
            let what = other.report(consumer);
            return unfit(what, "finish that one first, or cancel it with --cancel");
        }
        None => {}
    }
    for table in tables {
        if place.has_rows(client, table).await? {
            let what =
                format!("{} is not empty, and its rows would count as rebuilt", table.staged);
            return unfit(what, "empty it: TRUNCATE");
        }
    }
    Ok(place.begin(client).await?)
}

/// Refuses to switch without `--yes` if the new generation lacks events. The command does not
/// prompt, because it may have run unattended for hours. With `--yes`, a second run only has to
/// switch.
fn refuse_less(order: &Rebuild, generation: i32, found: GenerationDifference) -> Result<(), Error> {
    let GenerationDifference { missing, unfinished } = found;
    if found == GenerationDifference::default() || order.mode == ChangeMode::Agreed {
        return Ok(());
    }
    Err(Error::Unfinished {
        what: format!(
            "filled, and not put in use: {missing} event(s) that generation {generation} has applied are not among the rows \
             of the outbox, and {unfinished} event(s) wait or are dead in generation {}",
            generation + 1
        ),
        hint: format!(
            "run the same command again with --yes to put it in use without them, or cancel it: walrelay consumer rebuild \
             {} --cancel",
            order.name
        ),
    })
}

/// A schema that is being filled.
struct Filling<'a> {
    place: Beside<'a>,
    fill: OutboxApplier,
    rows: &'a RowsToApply,
    /// The rows that are already applied.
    settled: SettledRows,
    round: u64,
}

impl Filling<'_> {
    /// Applies every row that is committed by now, in transactions of some hundred events.
    async fn catch_up(&mut self, client: &mut SqlClient) -> Result<(), Error> {
        let mut batch = EventBatch::default();
        let (reader, settled) = self.reader().await?;
        let fill = &self.fill;
        let visit = async |routed: Routed| {
            if batch.add(&routed) {
                apply(client, fill, &batch.take()).await?;
            }
            Ok::<(), Error>(())
        };
        Box::pin(reader.each(self.round, visit)).await?;
        apply(client, &self.fill, &batch.take()).await?;
        loop {
            let transaction = self.fill.begin(client).await?;
            let has_moved = self.fill.redeliver(&transaction).await?;
            transaction.commit().await.map_err(committing)?;
            if !has_moved {
                break;
            }
        }
        self.settled = settled;
        Ok(())
    }

    /// Returns a reader of the rows committed since the last pass, and the rows that are settled
    /// after this pass.
    async fn reader(
        &mut self,
    ) -> Result<(walrelay_outbox_replay::replay::RoutedRows, SettledRows), Error> {
        self.round += 1;
        let RowsToApply { refill, left_out, .. } = self.rows;
        let client = connect_sql(&refill.settings.connect).await?;
        let snapshot = outbox_row_check::now(&client).await?;
        // The snapshot sees every transaction below the oldest running one.
        let oldest = snapshot.split(':').next().and_then(|xid| xid.parse().ok());
        let wanted = Wanted { settled: self.settled.clone(), ..Wanted::all() };
        let reader =
            outbox_row_check::reader(&client, (refill, left_out), (snapshot, &wanted)).await;
        client.close().await;
        Ok((reader?, oldest.map_or(SettledRows::None, SettledRows::Below)))
    }

    /// Applies the last rows and switches tables and generation, in one transaction that stops all
    /// other writes for the consumer. Returns false if another session holds a lock.
    async fn switch(
        &mut self,
        client: &mut SqlClient,
        tables: &[StagedTable],
        switch_sql: Option<&str>,
    ) -> Result<bool, Error> {
        let transaction = self.fill.begin(client).await?;
        match self.place.stop_others(&transaction).await {
            Ok(()) => {}
            Err(error) if error.is_in_the_way() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        // Every event that the consumer has applied up to now is committed in the outbox, so the
        // reader's snapshot sees its row.
        let (reader, _) = self.reader().await?;
        let mut batch = EventBatch::default();
        let fill = &self.fill;
        let visit = async |routed: Routed| {
            if batch.add(&routed) {
                fill.apply(&transaction, &batch.take()).await?;
            }
            Ok::<(), Error>(())
        };
        Box::pin(reader.each(self.round, visit)).await?;
        self.fill.apply(&transaction, &batch.take()).await?;
        match self.place.switch(&transaction, tables, switch_sql).await {
            Ok(()) => {}
            Err(error) if error.is_in_the_way() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        failpoint::hit("beside-switching");
        transaction.commit().await.map_err(committing)?;
        Ok(true)
    }
}

fn committing(source: tokio_postgres::Error) -> Error {
    let action = "commit".to_owned();
    SqlError::Sql { action, source }.into()
}

/// Applies events and commits. Retries while other sessions hold a lock.
async fn apply(
    client: &mut SqlClient,
    fill: &OutboxApplier,
    events: &[Event],
) -> Result<(), Error> {
    if events.is_empty() {
        return Ok(());
    }
    loop {
        let transaction = fill.begin(client).await?;
        match fill.apply(&transaction, events).await {
            Ok(()) => return transaction.commit().await.map_err(committing),
            Err(error) if error.is_in_the_way() => {
                tracing::debug!(%error, "trying again");
            }
            Err(error) => return Err(error.into()),
        }
        drop(transaction);
        sleep(AGAIN_AFTER).await;
    }
}

/// Events that one transaction applies.
#[derive(Debug, Default)]
pub(in crate::commands) struct EventBatch {
    events: Vec<Event>,
    bytes: usize,
}

impl EventBatch {
    /// Adds a row, unless the row can never be published. Returns whether the batch is full.
    pub(in crate::commands) fn add(&mut self, routed: &Routed) -> bool {
        if routed.fault.is_none() {
            let event = Event::of_row(&routed.message);
            self.bytes += event.bytes();
            self.events.push(event);
        }
        self.events.len() >= BATCH_EVENTS || self.bytes >= BATCH_BYTES
    }

    /// Removes and returns all events.
    pub(in crate::commands) fn take(&mut self) -> Vec<Event> {
        self.bytes = 0;
        std::mem::take(&mut self.events)
    }
}

/// Cancels an unfinished rebuild, after a question.
pub(in crate::commands) async fn cancel(
    client: &mut SqlClient,
    order: &Rebuild,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let name = order.name.as_str();
    let reads = admin::subscription(client, name).await?;
    let found = registered(client, Some(name)).await?.pop().and_then(|it| it.rebuild);
    let Some(rebuild) = found else {
        return print(&format!("no rebuild of consumer {name} is unfinished\n"));
    };
    let generation = rebuild.generation.into();
    let what = format!("cancel the rebuild of consumer {name} to generation {generation}");
    if !may_change((&what, order.mode), shutdown).await? {
        return Ok(());
    }
    walrelay_inbox::abandon(client, name, usual(&reads, generation)).await?;
    print(&match rebuild.schema {
        Some(schema) => format!("given up; the tables of schema {schema} stay as they are\n"),
        None => format!(
            "given up; consumer {name} reads {} again, and its read model has only a part of the events\n",
            usual(&reads, generation)
        ),
    })
}
