//! Sets up the slot of an outbox: finishes or cancels earlier operations, converts the slot, and
//! creates the missing objects.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_core::ColumnNames;
use walrelay_outbox_replay::operation_resumer::outcome::{Outcome, mark_failover};
use walrelay_outbox_replay::{
    AdminError, ReleaseStage, SettledBound, SlotOperation, SlotRecovery, SlotRelease,
    finish_recovery, read_slot_holder, read_unchecked_database, recovery, release_operation,
    take_operation,
};
use walrelay_outbox_store::{Outbox, delete_relay_row, read_recorded_system_identifier};
use walrelay_pg_client::{QualifiedName, ServerErrorKind, SqlClient, SqlError, read_columns};
use walrelay_pg_replication::{Failover, read_slot};

pub use self::unpublished_rows::{AnsweredRows, Unpublished};
use self::unpublished_rows::{columns_of_failures, count_answers};
use super::operator::{AdminSession, Change, Operator, Step};
use super::preconditions::{
    count_earlier_rows, count_unpublished_rows, is_new_slot, may_read_rows, refuse_other_wal_level,
    unfinished_operation,
};
use super::protocol_error::ProtocolError;
use super::table_rows::TableRows;
use crate::init::{
    EarlierRows, InitOptions, InitReport, SlotCreation, define, init, refuse_other_number,
};
use crate::preflight::time_warnings;

mod unpublished_rows;

/// The treatment of rows that are in the table before the slot exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExistingRows {
    /// The relay does not publish them. Without consent to that, the set-up refuses. Rows that
    /// commit while the slot is created need no consent: without it, the relay publishes them.
    Left,
    /// The relay publishes them before every row that the slot streams.
    Published,
    /// The relay publishes those that another publisher has not published yet.
    Unpublished(Unpublished),
}

/// Sets up the outbox: each shard, or the unsharded outbox. Reports each object once.
///
/// # Errors
///
/// An operation is unfinished, or the slot is lost or unusable. Earlier steps have taken effect,
/// and a second run continues after them.
pub async fn set_up<O: Operator>(
    session: &AdminSession<'_, O>,
    shards: &[InitOptions],
    existing_rows: &ExistingRows,
    columns: &ColumnNames,
) -> Result<Option<InitReport>, ProtocolError> {
    refuse_other_wal_level(session.client).await?;
    lock_set_up(session).await?;
    let outboxes: Vec<Outbox> = shards.iter().map(|options| options.outbox.clone()).collect();
    if let Some(first) = outboxes.first() {
        refuse_missing_columns(session.client, &first.tables, columns).await?;
    }
    define(session.client, &outboxes, columns).await?;
    if let Some(first) = outboxes.first() {
        refuse_other_number(session.client, first).await?;
    }
    let mut condition = None;
    match existing_rows {
        ExistingRows::Left => refuse_undecided_rows(session, shards).await?,
        ExistingRows::Published => {}
        ExistingRows::Unpublished(unpublished) => {
            condition = agreed_condition(session, shards, unpublished).await?;
            if condition.is_none() {
                return Ok(None);
            }
        }
    }
    let mut done = InitReport::default();
    for options in shards {
        let mut set_up = SlotSetUp { session, options, done };
        set_up.run((existing_rows, condition.as_deref()), columns).await?;
        done = set_up.done;
    }
    if let Some(database) = read_unchecked_database(session.client).await? {
        session.report(&Step::EncodingUnchecked { database })?;
    }
    if let Some(InitOptions { outbox, .. }) = shards.first() {
        for warning in time_warnings(session.client, outbox, columns.occurred_at.as_ref()).await? {
            session.report(&Step::TimeColumn(warning))?;
        }
    }
    Ok(Some(done))
}

/// Returns the condition for rows that another publisher has not published, once the operator has
/// seen the numbers of rows and agreed. Does not ask again once the backfill has begun.
async fn agreed_condition<O: Operator>(
    session: &AdminSession<'_, O>,
    shards: &[InitOptions],
    unpublished: &Unpublished,
) -> Result<Option<String>, ProtocolError> {
    let client = session.client;
    // All shards share the tables.
    let tables = shards.first().map_or(&[][..], |options| &options.outbox.tables);
    let condition = unpublished.condition(client, tables).await?;
    for outbox in shards.iter().map(|options| &options.outbox) {
        let slot = &outbox.slot;
        if begun_backfill(client, slot).await?.is_some() || read_slot(client, slot).await?.is_some()
        {
            continue;
        }
        if let Unpublished::Column(column) = unpublished {
            warn_of_failures(session, tables, column).await?;
        }
        let rows = count_answers(client, outbox, &condition).await?;
        if rows.iter().all(AnsweredRows::is_empty) {
            return Ok(Some(condition));
        }
        let change = Change::TakeAsPublished { condition: condition.clone(), rows };
        let is_agreed = session.agree(async || Ok(change)).await?;
        return Ok(is_agreed.then_some(condition));
    }
    Ok(Some(condition))
}

/// Warns if another publisher may have set the column in rows that it failed to publish.
async fn warn_of_failures<O: Operator>(
    session: &AdminSession<'_, O>,
    tables: &[QualifiedName],
    column: &str,
) -> Result<(), ProtocolError> {
    for table in tables {
        let columns = columns_of_failures(session.client, table).await?;
        if !columns.is_empty() {
            let (table, column) = (table.to_string(), column.to_owned());
            session.report(&Step::MayHaveFailedRows { table, column, columns })?;
        }
    }
    Ok(())
}

/// Refuses columns that are to become attributes and that a table lacks: with them on record, no relay would
/// start. A table that does not exist yet gets them later.
async fn refuse_missing_columns(
    client: &SqlClient,
    tables: &[QualifiedName],
    columns: &ColumnNames,
) -> Result<(), ProtocolError> {
    let is_asked = columns.attributes.iter().next().is_some();
    for table in tables.iter().filter(|_| is_asked) {
        let found = match read_columns(client, table).await {
            Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => continue,
            found => found?.1,
        };
        let is_there = |column: &str| found.iter().any(|it| it.name == column);
        let missing = columns.attributes.iter().find(|(column, _)| !is_there(column));
        if let Some((column, _)) = missing {
            let (table, column) = (table.to_string(), column.to_owned());
            return Err(ProtocolError::AttributeColumnMissing { table, column });
        }
    }
    Ok(())
}

/// Locks the set-up against other processes until the session ends. A second process would take the
/// half-made slot of the first one for a lost slot.
async fn lock_set_up<O: Operator>(session: &AdminSession<'_, O>) -> Result<(), ProtocolError> {
    // not a command: the name of an advisory lock.
    let sql = "SELECT pg_try_advisory_lock(hashtextextended('walrelay set-up', 0)) AS is_locked";
    let mut is_reported = false;
    loop {
        let row = session.client.query_typed_one(sql, &[]).await;
        if row.map_err(SqlError::sql("lock the set-up"))?.get("is_locked") {
            return Ok(());
        }
        if !is_reported {
            session.report(&Step::OtherSetUp)?;
            is_reported = true;
        }
        sleep(OTHER_SET_UP_PAUSE).await;
    }
}

/// Refuses if the first slot would leave rows unpublished, and the operator has not agreed.
async fn refuse_undecided_rows<O: Operator>(
    session: &AdminSession<'_, O>,
    shards: &[InitOptions],
) -> Result<(), ProtocolError> {
    for options in shards.iter().filter(|options| options.earlier_rows == EarlierRows::Refuse) {
        let rows = count_earlier_rows(session.client, &options.outbox).await?;
        if !rows.is_empty() {
            return Err(ProtocolError::EarlierRows { slot: options.outbox.slot.clone(), rows });
        }
    }
    Ok(())
}

struct SlotSetUp<'a, O> {
    session: &'a AdminSession<'a, O>,
    options: &'a InitOptions,
    /// What is reported already. All shards share the tables.
    done: InitReport,
}

/// Longest wait for the conversion. Postgres waits if another session acquires the slot between our
/// check and our statement.
const CONVERTING_MAX: Duration = Duration::from_secs(10);

/// The interval at which a set-up looks whether another one has ended.
const OTHER_SET_UP_PAUSE: Duration = Duration::from_millis(200);

impl<O: Operator> SlotSetUp<'_, O> {
    fn slot(&self) -> &str {
        &self.options.outbox.slot
    }

    async fn run(
        &mut self,
        (existing_rows, condition): (&ExistingRows, Option<&str>),
        columns: &ColumnNames,
    ) -> Result<(), ProtocolError> {
        self.end_operation().await?;
        self.convert().await?;
        match existing_rows {
            ExistingRows::Left if self.is_first().await? => self.create_first(columns).await,
            ExistingRows::Left => self.create_all(SlotCreation::Slot).await,
            ExistingRows::Published | ExistingRows::Unpublished(_) => {
                self.backfill(condition, columns).await
            }
        }
    }

    async fn end_operation(&self) -> Result<(), ProtocolError> {
        let Some(operation) = unfinished_operation(self.session.client, self.slot()).await? else {
            return Ok(());
        };
        match &operation {
            // An earlier run was interrupted before it created the slot. This run creates it.
            SlotOperation::Recovery(begun) if is_without_slot(begun) => Ok(()),
            // The release dropped the slot. Without a slot, `init` fails afterwards with
            // the right error.
            SlotOperation::Release(SlotRelease { stage: ReleaseStage::Released, .. }) => Ok(()),
            SlotOperation::Recovery(_)
            | SlotOperation::Reset(_)
            | SlotOperation::Release(_)
            | SlotOperation::Resharding(_) => self.finish().await,
        }
    }

    /// Finishes an operation that an operator began. In the middle of one the slot may be missing,
    /// and a new slot would undo the operation.
    async fn finish(&self) -> Result<(), ProtocolError> {
        let slot = self.slot().to_owned();
        let step = match self.session.finish_operation(&slot).await? {
            // After a cancelled operation, the caller checks the slot again.
            Outcome::Nothing | Outcome::ResetCancelled(_) => return Ok(()),
            Outcome::Finished(operation) => Step::OperationFinished { slot, operation },
            // The slot exists, and the relay does the remaining steps.
            Outcome::Pending(operation) => Step::OperationLeftToRelay { slot, operation },
            Outcome::ReleaseCancelled(operation) => Step::OperationCancelled { slot, operation },
            Outcome::Elsewhere { operation, what } => {
                return Err(operation.unfinished(&slot, what).into());
            }
        };
        self.session.report(&step)
    }

    /// Turns an existing slot into a failover slot if that was asked for. [`init`], which runs
    /// next, refuses a slot that cannot be used.
    async fn convert(&self) -> Result<(), ProtocolError> {
        let Self { session, options, .. } = self;
        let (slot, connect) = (self.slot().to_owned(), session.connect);
        let Some(state) = read_slot(session.client, &slot).await? else { return Ok(()) };
        let is_asked = options.failover == Failover::Yes && state.failover == Some(false);
        if !is_asked || state.is_lost() || state.mismatch(connect.database()).is_some() {
            return Ok(());
        }
        if let Some(pid) = state.active_pid {
            let holder = read_slot_holder(session.client, pid).await?.to_string();
            return Err(AdminError::SlotHeld { slot, holder }.into());
        }
        let Ok(converted) = timeout(CONVERTING_MAX, mark_failover(connect, &slot)).await else {
            let holder = "a process that has taken it since".to_owned();
            return Err(AdminError::SlotHeld { slot, holder }.into());
        };
        converted?;
        session.report(&Step::FailoverEnabled { slot })
    }

    /// Returns whether no slot has existed yet, and its existing rows can be counted.
    async fn is_first(&self) -> Result<bool, ProtocolError> {
        let (client, outbox) = (self.session.client, &self.options.outbox);
        if let Some(begun) = unfinished_operation(client, &outbox.slot).await? {
            return Ok(matches!(&begun, SlotOperation::Recovery(it) if is_without_slot(it)));
        }
        Ok(is_new_slot(client, outbox).await?
            && may_read_rows(client, outbox).await?
            // Without the identifier, the slot's record is left to the relay.
            && !read_recorded_system_identifier(client, &outbox.slot).await?.is_empty())
    }

    /// Creates the missing objects and reports them at once: they stay if a later step fails.
    async fn create_all(&mut self, making: SlotCreation) -> Result<(), ProtocolError> {
        // A slot that exists streams no row that an added table has already. Other rows are decided.
        let earlier_rows = match read_slot(self.session.client, self.slot()).await? {
            Some(_) => self.options.earlier_rows,
            None => EarlierRows::Leave,
        };
        let options = InitOptions { earlier_rows, making, ..(*self.options).clone() };
        let InitReport { created, already_there } = init(self.session.client, &options).await?;
        created.into_iter().try_for_each(|part| self.report_created(part))?;
        for part in already_there {
            if self.is_new(&part) {
                self.session.report(&Step::AlreadyThere(part.clone()))?;
                self.done.already_there.push(part);
            }
        }
        Ok(())
    }

    fn report_created(&mut self, part: String) -> Result<(), ProtocolError> {
        if self.is_new(&part) {
            self.session.report(&Step::Created(part.clone()))?;
            self.done.created.push(part);
        }
        Ok(())
    }

    fn is_new(&self, part: &String) -> bool {
        !self.done.created.contains(part) && !self.done.already_there.contains(part)
    }

    /// Creates the first slot together with a snapshot. The snapshot shows the rows that the slot
    /// does not stream, also those that committed while the slot was created.
    async fn create_first(&mut self, columns: &ColumnNames) -> Result<(), ProtocolError> {
        self.create_all(SlotCreation::AllButSlot).await?;
        let Self { session, options, .. } = *self;
        let (client, outbox) = (session.client, &options.outbox);
        let slot = outbox.slot.as_str();
        recovery::begin_first(client, outbox, options.failover, None).await?;
        let operation = match session.finish_operation(slot).await {
            Ok(Outcome::Pending(operation)) => operation,
            Ok(Outcome::Elsewhere { operation, what }) => {
                return Err(operation.unfinished(slot, what).into());
            }
            // A relay has published the rows meanwhile.
            Ok(_) => return Ok(()),
            Err(error) => {
                self.forget_begun().await?;
                return Err(error);
            }
        };
        self.report_created(format!("slot {slot}"))?;
        let rows = count_unpublished_rows(client, outbox, columns).await?;
        let rows: Vec<TableRows> = rows.into_iter().filter(|table| table.rows > 0).collect();
        let is_left = options.earlier_rows == EarlierRows::Leave || rows.is_empty();
        // A relay that has started meanwhile publishes the rows.
        if !is_left || !take_operation(client, slot).await? {
            let slot = slot.to_owned();
            let step = Step::RowsLeftToRelay { slot, operation, rows, is_earlier: false };
            return session.report(&step);
        }
        if !rows.is_empty() {
            session.report(&Step::EarlierRowsLeft { slot: slot.to_owned(), rows })?;
        }
        finish_recovery(client, slot).await?;
        release_operation(client, slot).await?;
        Ok(())
    }

    /// Deletes the record of a slot that could not be created. Otherwise, a relay would create it.
    async fn forget_begun(&self) -> Result<(), ProtocolError> {
        let (client, slot) = (self.session.client, self.slot());
        let begun = unfinished_operation(client, slot).await?;
        let is_begun = matches!(&begun, Some(SlotOperation::Recovery(it)) if is_without_slot(it));
        if is_begun && read_slot(client, slot).await?.is_none() {
            delete_relay_row(client, slot).await?;
        }
        Ok(())
    }

    /// Creates the slot together with a snapshot of the existing rows. If an earlier run began the
    /// backfill, this run only does the missing steps.
    async fn backfill(
        &mut self,
        unpublished_where: Option<&str>,
        columns: &ColumnNames,
    ) -> Result<(), ProtocolError> {
        let Self { session, options, .. } = *self;
        let (client, slot) = (session.client, options.outbox.slot.as_str());
        let begun = begun_backfill(client, slot).await?;
        if let Some(SlotRecovery { unpublished_where: recorded, .. }) = &begun
            && recorded.as_deref() != unpublished_where
        {
            let what = match recorded {
                Some(recorded) => format!("a backfill of the rows for which {recorded}"),
                None => "a backfill of all rows".to_owned(),
            };
            return Err(AdminError::OperationUnfinished { slot: slot.to_owned(), what }.into());
        }
        let is_begun = begun.is_some();
        if !is_begun && read_slot(client, slot).await?.is_some() {
            return Err(ProtocolError::SlotExists { slot: slot.to_owned() });
        }
        self.create_all(SlotCreation::AllButSlot).await?;
        if !is_begun {
            let condition = unpublished_where.map(ToOwned::to_owned);
            recovery::begin_first(client, &options.outbox, options.failover, condition).await?;
        }
        let Outcome::Pending(operation) = session.finish_operation(slot).await? else {
            return session.report(&Step::BackfillDone);
        };
        let rows = count_unpublished_rows(client, &options.outbox, columns).await?;
        let slot = slot.to_owned();
        session.report(&Step::RowsLeftToRelay { slot, operation, rows, is_earlier: is_begun })
    }
}

/// Returns whether this is the creation of a first slot that does not exist yet.
const fn is_without_slot(begun: &SlotRecovery) -> bool {
    matches!(begun.bound, SettledBound::Nothing) && begun.parts.is_empty()
}

/// Returns the unfinished backfill that an earlier run has begun.
async fn begun_backfill(
    client: &SqlClient,
    slot: &str,
) -> Result<Option<SlotRecovery>, ProtocolError> {
    Ok(match unfinished_operation(client, slot).await? {
        Some(SlotOperation::Recovery(begun)) if begun.bound == SettledBound::Nothing => Some(begun),
        Some(_) | None => None,
    })
}
