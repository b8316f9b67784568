//! Rebuilds a read model in tables of another schema: fills the next generation from the
//! rows of the outbox, while the consumer keeps running. One transaction then makes the tables
//! live.
//!
//! ```text
//! rows checked ──▶ rows applied in the schema ──▶ compared ──▶ the last rows, tables and generation in one transaction
//! ```
//!
//! Until that transaction commits, the live read model is untouched, however the command ends.
//! Run again, the command continues: the inbox lists the rows that were applied.

use crate::admin::registered;
use crate::live_foreign_keys::conflicting_foreign_keys;
use crate::side_by_side_rebuild::GenerationDifference;
use crate::side_by_side_rebuild::SideBySideRebuild;
use crate::side_by_side_rebuild::StagedTable;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{GenericClient, Transaction};
use walrelay_core::Routed;
use walrelay_envelope::Lsn;
use walrelay_inbox::{Event, InboxError, OutboxApplier, UnfinishedRebuild};
use walrelay_outbox_replay::SettledRows;
use walrelay_pg_client::{SqlClient, SqlError, connect_outbox};
use walrelay_relay::failpoint;

use crate::rebuild::event_batch::EventBatch;
use crate::rebuild::lock_retry::when_free;
use crate::rebuild::orders::SchemaRebuild;
use crate::rebuild::outbox_row_check::{self, RowsReader, RowsToApply, Wanted};
use crate::rebuild::rebuild_error::{RebuildError, TableMismatch};
use crate::rebuild::rebuild_step::{RebuildChange, RebuildStep};
use crate::rebuild::session::{RebuildOperator, RebuildSession};

impl<O: RebuildOperator> RebuildSession<'_, O> {
    /// Fills the schema and switches to it.
    ///
    /// # Errors
    ///
    /// The schema does not fit, the new generation would lack events, or a stop was requested.
    pub async fn rebuild_into_schema(
        &self,
        client: &mut SqlClient,
        consumer: &str,
        order: &SchemaRebuild,
    ) -> Result<(), RebuildError> {
        Box::pin(self.until_stopped(self.fill_and_switch(client, consumer, order))).await
    }

    async fn fill_and_switch(
        &self,
        client: &mut SqlClient,
        consumer: &str,
        order: &SchemaRebuild,
    ) -> Result<(), RebuildError> {
        let schema = &order.schema;
        let place = SideBySideRebuild { consumer, schema };
        let tables = staged(client, place).await?;
        if order.switch_sql.is_none() {
            refuse_foreign_keys(&**client, &tables).await?;
            place.refuse_hidden_rows(client, &tables).await?;
        }
        self.refuse_pruned(client, consumer).await?;
        let delivered = self.delivered(client, consumer, &order.rows).await?;
        let rows = Box::pin(self.check_rows(&order.rows, (&Wanted::all(), delivered))).await?;
        rows.refuse_none()?;
        let decisions = self.report_decisions(client, consumer).await?;
        if self.operator.is_dry_run() {
            let (rows, schema) = (rows.rows, schema.clone());
            return self.report(RebuildStep::WouldFill { rows, schema });
        }
        if decisions > 0 {
            let consumer = consumer.to_owned();
            let change = RebuildChange::WithoutDecisions { consumer, events: decisions };
            if !self.may_change(&change).await? {
                return Ok(());
            }
        }
        let generation = self.begin_beside(client, place, &tables).await?;
        let next = generation + 1;
        self.report(RebuildStep::FillingBegins {
            generation: next,
            schema: schema.clone(),
            rows: rows.rows,
        })?;
        failpoint::hit("side-by-side-begun");
        let fill = OutboxApplier::new(client, consumer, next, &order.handler, Some(schema)).await?;
        let position = Lsn::new(place.last_position(client, next).await?);
        let mut filling =
            Filling { place, fill, rows: &rows, settled: SettledRows::None, position };
        filling.catch_up(client).await?;
        failpoint::hit("side-by-side-filled");
        let moment = place.moment(client).await?;
        filling.catch_up(client).await?;
        let difference = place.compare(client, generation, moment).await?;
        self.refuse_less(consumer, generation, difference)?;
        self.refuse_emptied(client, place, &tables).await?;
        let switch_sql = order.switch_sql.as_deref();
        if switch_sql.is_none() {
            // Somebody may have added a policy during the fill.
            place.refuse_hidden_rows(client, &tables).await?;
        }
        when_free(async || filling.switch(client, &tables, switch_sql).await).await?;
        failpoint::hit("side-by-side-switched");
        self.report(RebuildStep::Switched { generation: next })
    }

    /// Records the start of the rebuild, or finds an earlier record. Returns the live generation.
    async fn begin_beside(
        &self,
        client: &mut SqlClient,
        place: SideBySideRebuild<'_>,
        tables: &[StagedTable],
    ) -> Result<i32, RebuildError> {
        let consumer = place.consumer.to_owned();
        if !place.claim(client).await? {
            let holder = place.holder(client).await?;
            return Err(RebuildError::RebuildRunning { consumer, holder });
        }
        let found = registered(client, Some(place.consumer)).await?.pop();
        let unknown = || InboxError::Unregistered { consumer: consumer.clone() };
        let earlier = found.ok_or_else(unknown)?.rebuild;
        // Read before the tables are checked: tables that are replaced later count as replaced.
        let files = place.files(&**client).await?;
        let with_rows = with_rows(client, place, tables).await?;
        match earlier {
            Some(UnfinishedRebuild { generation, schema, .. }) if schema == place.schema => {
                let has_applied = place.last_position(client, generation).await? > 0;
                let is_emptied = has_applied && with_rows.is_empty();
                if !is_emptied && place.has_its_tables(&**client).await? {
                    self.report(RebuildStep::Continues)?;
                    return Ok(generation - 1);
                }
                refuse_rows(&with_rows)?;
                self.report(RebuildStep::BeginsAgain { schema })?;
            }
            Some(rebuild) => return Err(RebuildError::RebuildUnfinished { consumer, rebuild }),
            None => refuse_rows(&with_rows)?,
        }
        Ok(place.begin(client, &files).await?)
    }

    /// Refuses to switch without consent if the new generation lacks events. The protocol does not
    /// ask, because it may have run unattended for hours. After the operator has agreed in advance,
    /// a second run only has to switch.
    fn refuse_less(
        &self,
        consumer: &str,
        generation: i32,
        found: GenerationDifference,
    ) -> Result<(), RebuildError> {
        let GenerationDifference { missing, unfinished } = found;
        if found == GenerationDifference::default() || self.operator.has_agreed() {
            return Ok(());
        }
        let consumer = consumer.to_owned();
        Err(RebuildError::EventsMissing { consumer, generation, missing, unfinished })
    }

    /// Refuses to switch without consent if a live table with rows would be empty afterwards: the
    /// handler may be another one than that of the consumer.
    async fn refuse_emptied(
        &self,
        client: &SqlClient,
        place: SideBySideRebuild<'_>,
        tables: &[StagedTable],
    ) -> Result<(), RebuildError> {
        if self.operator.has_agreed() {
            return Ok(());
        }
        let mut emptied = Vec::new();
        for StagedTable { staged, live, .. } in tables {
            let Some(live) = live.as_ref().map(ToString::to_string) else { continue };
            let is_empty = !place.has_rows(client, staged).await?;
            if is_empty && place.has_rows(client, &live).await? {
                emptied.push(live);
            }
        }
        if emptied.is_empty() {
            return Ok(());
        }
        let consumer = place.consumer.to_owned();
        Err(RebuildError::TablesEmptied { consumer, tables: emptied })
    }

    /// Cancels an unfinished rebuild, after a question.
    pub async fn cancel_rebuild(
        &self,
        client: &mut SqlClient,
        consumer: &str,
    ) -> Result<(), RebuildError> {
        let found = registered(client, Some(consumer)).await?.pop().and_then(|it| it.rebuild);
        let consumer = consumer.to_owned();
        let Some(rebuild) = found else {
            return self.report(RebuildStep::NoRebuild { consumer });
        };
        let generation = rebuild.generation.into();
        let change = RebuildChange::Cancel { consumer: consumer.clone(), generation };
        if !self.may_change(&change).await? {
            return Ok(());
        }
        crate::side_by_side_rebuild::abandon(client, &consumer).await?;
        self.report(RebuildStep::Cancelled { schema: rebuild.schema })
    }
}

/// Returns the tables of the schema, each with the live table that it replaces.
async fn staged(
    client: &SqlClient,
    place: SideBySideRebuild<'_>,
) -> Result<Vec<StagedTable>, RebuildError> {
    let tables = place.tables(client).await?;
    if tables.is_empty() {
        return Err(RebuildError::SchemaEmpty { schema: place.schema.to_owned() });
    }
    for table in &tables {
        let StagedTable { name, staged, live, columns, live_columns, .. } = table;
        let mismatch = match live {
            None => TableMismatch::NoLiveTable { name: name.clone() },
            Some(live) if live.to_string() == *staged => TableMismatch::IsLive,
            Some(live) if columns != live_columns => {
                TableMismatch::OtherColumns { live: live.to_string() }
            }
            Some(_) => continue,
        };
        return Err(RebuildError::TableUnsuitable { staged: staged.clone(), mismatch });
    }
    Ok(tables)
}

/// Returns the tables of the schema that have rows.
async fn with_rows(
    client: &SqlClient,
    place: SideBySideRebuild<'_>,
    tables: &[StagedTable],
) -> Result<Vec<String>, RebuildError> {
    let mut found = Vec::new();
    for table in tables {
        if place.has_rows(client, &table.staged).await? {
            found.push(table.staged.clone());
        }
    }
    Ok(found)
}

/// Refuses tables with rows that no event of the rebuild has written.
fn refuse_rows(with_rows: &[String]) -> Result<(), RebuildError> {
    match with_rows {
        [] => Ok(()),
        _ => Err(RebuildError::TablesNotEmpty { tables: with_rows.to_vec() }),
    }
}

/// Refuses foreign keys that would change other rows, or refuse, when the rows of the live tables
/// are replaced.
async fn refuse_foreign_keys(
    client: &impl GenericClient,
    tables: &[StagedTable],
) -> Result<(), RebuildError> {
    let keys = conflicting_foreign_keys(client, tables).await?;
    if keys.is_empty() { Ok(()) } else { Err(RebuildError::ForeignKeyConflicts { keys }) }
}

/// A schema that is being filled.
struct Filling<'a> {
    place: SideBySideRebuild<'a>,
    fill: OutboxApplier,
    rows: &'a RowsToApply,
    /// The rows that are already applied.
    settled: SettledRows,
    /// The position of the rows that the last pass has read, by this run or an earlier one.
    position: Lsn,
}

impl Filling<'_> {
    /// Applies every row that is committed by now, in transactions of some hundred events.
    async fn catch_up(&mut self, client: &mut SqlClient) -> Result<(), RebuildError> {
        let mut batch = EventBatch::default();
        let (reader, settled) = self.reader().await?;
        let fill = &self.fill;
        let visit = async |routed: Routed| {
            if batch.add(&routed) {
                apply(client, fill, &batch.take()).await?;
            }
            Ok(())
        };
        Box::pin(reader.each(self.position, visit)).await?;
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
    async fn reader(&mut self) -> Result<(RowsReader, SettledRows), RebuildError> {
        let client = connect_outbox(&self.rows.order.connect).await?;
        // No commit begins at the next byte, so the rows of each pass are behind no row that is
        // still to be published.
        let next = Lsn::new(self.position.as_u64() + 1);
        self.position = self.rows.position(&client).await?.max(next);
        let snapshot = outbox_row_check::now(&client).await?;
        // The snapshot sees every transaction below the oldest running one.
        let oldest = snapshot.split(':').next().and_then(|xid| xid.parse().ok());
        let wanted = Wanted { settled: self.settled.clone(), ..Wanted::all() };
        let reader = self.rows.reader(&client, snapshot, &wanted).await;
        client.close().await;
        Ok((reader?, oldest.map_or(SettledRows::None, SettledRows::Below)))
    }

    /// Applies the last rows and switches tables and generation, in one transaction that stops all
    /// other writes for the consumer.
    async fn switch(
        &mut self,
        client: &mut SqlClient,
        tables: &[StagedTable],
        switch_sql: Option<&str>,
    ) -> Result<(), RebuildError> {
        let transaction = self.fill.begin(client).await?;
        self.place.stop_others(&transaction).await?;
        // Every event that the consumer has applied up to now is committed in the outbox, so the
        // reader's snapshot sees its row.
        let (reader, _) = self.reader().await?;
        let mut batch = EventBatch::default();
        let fill = &self.fill;
        let visit = async |routed: Routed| {
            if batch.add(&routed) {
                fill.apply(&transaction, &batch.take()).await?;
            }
            Ok(())
        };
        Box::pin(reader.each(self.position, visit)).await?;
        self.fill.apply(&transaction, &batch.take()).await?;
        self.make_live(&transaction, tables, switch_sql).await?;
        failpoint::hit("side-by-side-switching");
        transaction.commit().await.map_err(committing)
    }

    /// Makes the tables and the generation live. Somebody may have added a foreign key, or replaced a
    /// table, during the fill.
    async fn make_live(
        &self,
        transaction: &Transaction<'_>,
        tables: &[StagedTable],
        switch_sql: Option<&str>,
    ) -> Result<(), RebuildError> {
        self.place.lock_tables(transaction, tables).await?;
        if !self.place.has_its_tables(transaction).await? {
            return Err(RebuildError::TablesReplaced { schema: self.place.schema.to_owned() });
        }
        if switch_sql.is_none() {
            refuse_foreign_keys(transaction, tables).await?;
        }
        let switched = self.place.switch(transaction, tables, switch_sql).await;
        switched.map_err(|error| match switch_sql {
            Some(_) => error.into(),
            None => refused_move(error),
        })
    }
}

/// Names the problem if the live tables refuse the rows: by a constraint, or because a trigger, a
/// rule or a policy interferes.
fn refused_move(error: InboxError) -> RebuildError {
    const CONSTRAINT_VIOLATED: &str = "23";
    let is_refusal = |answer: &&DbError| {
        let code = answer.code();
        *code == SqlState::RAISE_EXCEPTION || code.code().starts_with(CONSTRAINT_VIOLATED)
    };
    let InboxError::Store(SqlError::Sql { source, .. }) = &error else { return error.into() };
    let Some(refusal) = source.as_db_error().filter(is_refusal) else { return error.into() };
    let detail = refusal.detail().map_or_else(String::new, |it| format!(" ({it})"));
    RebuildError::RowsRefused {
        problem: format!("{}{detail}", refusal.message()),
        hint: refusal.hint().map(str::to_owned),
    }
}

fn committing(source: tokio_postgres::Error) -> RebuildError {
    let action = "commit".to_owned();
    SqlError::Sql { action, source }.into()
}

/// Applies events and commits. Retries while other sessions hold a lock.
async fn apply(
    client: &mut SqlClient,
    fill: &OutboxApplier,
    events: &[Event],
) -> Result<(), RebuildError> {
    if events.is_empty() {
        return Ok(());
    }
    when_free(async || {
        let transaction = fill.begin(client).await?;
        fill.apply(&transaction, events).await?;
        transaction.commit().await.map_err(committing)
    })
    .await
}
