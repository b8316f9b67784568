//! Recovery of a lost slot: creates a new slot, and publishes unsettled rows from the table before
//! the slot streams.
//!
//! ```text
//! on record ──▶ slot made, with a snapshot ──▶ snapshot on record ──▶ rows of the table published ──▶ stream
//!  creating       recovery-created              filling                 recovery-filled
//! ```
//!
//! The recorded snapshot fixes the rows to publish: the rows that it sees and the settled horizon
//! does not cover. The slot streams all other rows. After a crash before the snapshot is recorded,
//! the recovery starts again with another slot. After a later crash, it resumes with the first row
//! that is not recorded as settled.
//!
//! A second session holds the new slot meanwhile. Near the WAL budget it records the rows that
//! stream, and confirms the slot. If the slot is lost again, the rows that the lost slot would have
//! streamed are another part, which follows the first.

mod fill;
mod place_recording;
mod progress;
mod progress_reporting;
mod read_failures;
mod reader;
mod recovery_work;
mod resume_points;
mod source;
mod stream;
mod transaction_grouping;

use std::time::SystemTime;

use pgoutput_parser::PgTimestamp;
use walrelay_core::{ColumnAliases, ColumnNames};
use walrelay_outbox_store::{
    Outbox, PublicationWatch, is_same_origin, read_recorded_system_identifier, read_relay_row,
};
use walrelay_pg_client::{
    QualifiedName, SqlClient, TableAccess, TableColumn, quote_identifier, read_columns,
    refuse_hidden_rows,
};
use walrelay_pg_replication::{
    Failover, Operation, read_publication, read_server_identity, read_slot,
};

use crate::admin_error::AdminError;
use crate::lost_slot::{read_loss_with_wal, refuse_other_outbox, refuse_other_slot};
use crate::operation::{
    SettledBound, SlotOperation, SlotRecovery, begin_backfill, begin_recovery, read_operation,
};
use crate::pg_upgrade::move_recovery_to_server;
use crate::rows::row_filter::read_row_filter;
use crate::rows::unsettled_rows::{Scope, SettledRows, SourceTable, UnsettledRows};

pub use fill::{Fill, RecoveryEnd, hold_slot};
pub use place_recording::{PlaceStore, run_recording_place};
pub use progress::Progress;
pub use progress_reporting::ProgressReporting;
pub(crate) use reader::PostgresRowReader;
pub use reader::{RowReader, Rows};
pub use recovery_work::RecoveryWork;
pub use resume_points::{ResumePoint, ResumePoints};
pub use source::TableStreamServer;
pub(crate) use source::reading;
pub use stream::TableStream;
pub(crate) use stream::{insert_of, relation_of};
pub use transaction_grouping::TransactionGrouping;
use walrelay_errors::Code;
use walrelay_relay::error::RelayError;
use walrelay_relay::failpoint;
use walrelay_relay::seed::random_seed;

/// A recovery that is not recorded yet.
#[derive(Debug)]
pub struct RecoveryPlan {
    recovery: SlotRecovery,
    system_identifier: String,
    timeline: u32,
    publication: PublicationWatch,
}

impl RecoveryPlan {
    /// Records the recovery, and the publication that the new slot uses.
    ///
    /// # Errors
    ///
    /// The publication does not exist or lacks a table.
    pub async fn begin(&self, client: &SqlClient, outbox: &Outbox) -> Result<(), RelayError> {
        let slot = &outbox.slot;
        refuse_unpublished(client, outbox).await?;
        self.publication.begin(client).await?;
        let whose = (self.system_identifier.as_str(), self.timeline);
        begin_recovery(client, slot, &self.recovery, whose).await?;
        self.publication.note(client, slot).await?;
        failpoint::hit("recovery-begun");
        Ok(())
    }
}

/// Records the recovery of a slot that is lost or was released. Does nothing if a
/// recovery is already on record. `since` replaces a recorded bound that is not valid on this
/// server.
///
/// # Errors
///
/// The slot is not lost, no state of it is on record, or the record belongs to another database.
/// Also if the publication does not exist.
pub async fn begin(
    client: &SqlClient,
    outbox: &Outbox,
    since: Option<SystemTime>,
) -> Result<(), RelayError> {
    match plan(client, outbox, since).await? {
        Some(plan) => plan.begin(client, outbox).await,
        None => Ok(()),
    }
}

/// Plans the recovery of a slot. Returns `None` if an operation is already on record. See [`begin`].
pub async fn plan(
    client: &SqlClient,
    outbox: &Outbox,
    since: Option<SystemTime>,
) -> Result<Option<RecoveryPlan>, RelayError> {
    let slot = &outbox.slot;
    refuse_other_outbox(client, outbox).await?;
    refuse_other_slot(client, slot).await?;
    match read_operation(client, slot).await? {
        Some(SlotOperation::Reset(_)) => return Ok(None),
        Some(SlotOperation::Recovery(begun)) if since.is_some() && !begun.bound.is_time() => {
            let what = SlotOperation::Recovery(begun).describe(slot);
            let what = format!("{what}; it was begun without a time, and takes none");
            let slot = slot.clone();
            return Err(RelayError::survey(AdminError::OperationUnfinished { slot, what }));
        }
        Some(SlotOperation::Recovery(begun)) => {
            carry_over_recovery(client, outbox, &begun).await?;
            return Ok(None);
        }
        Some(begun @ SlotOperation::Resharding(_)) => {
            let (slot, what) = (slot.clone(), begun.describe(slot));
            return Err(RelayError::survey(AdminError::OperationUnfinished { slot, what }));
        }
        Some(SlotOperation::Release(_)) | None => {}
    }
    let lost = read_loss_with_wal(client, outbox).await?;
    let row = read_relay_row(client, slot).await?;
    let (Some(_), Some(row)) = (lost, row) else {
        return Err(RelayError::survey(AdminError::NotLost { slot: slot.clone() }));
    };
    let system_identifier = read_recorded_system_identifier(client, slot).await?;
    let bound = match since {
        Some(since) => {
            if system_identifier == row.system_identifier && !row.is_horizon_too_old() {
                refuse_needless_time(client, outbox).await?;
            }
            SettledBound::Since(since)
        }
        None if system_identifier == row.system_identifier => SettledBound::Horizon,
        None => bound_on_other_server(client, outbox).await?,
    };
    if bound == SettledBound::Horizon && row.is_horizon_too_old() {
        let (slot, age) = (slot.clone(), row.settled_age);
        return Err(AdminError::HorizonTooOld { slot, age }.into());
    }
    let recovery = recovery(client, outbox, bound).await?;
    let timeline = read_server_identity(client).await?.timeline;
    let publication = PublicationWatch::new(outbox.publication.clone(), outbox.tables.clone());
    Ok(Some(RecoveryPlan { recovery, system_identifier, timeline, publication }))
}

/// Refuses a recovery by time on the recorded server if the record is valid in this database. It
/// would leave out unsettled rows that the record shows.
async fn refuse_needless_time(client: &SqlClient, outbox: &Outbox) -> Result<(), RelayError> {
    let Outbox { slot, tables, .. } = outbox;
    let is_same = is_same_origin(client, slot, tables).await?;
    match is_same {
        true => Err(RelayError::survey(AdminError::TimeNeedless { slot: slot.clone() })),
        false => Ok(()),
    }
}

/// Restarts a recovery after a server upgrade, if it was begun on the old server. Its bound remains
/// valid, but its slot and its positions do not.
async fn carry_over_recovery(
    client: &SqlClient,
    outbox: &Outbox,
    begun: &SlotRecovery,
) -> Result<(), RelayError> {
    let slot = &outbox.slot;
    let row = read_relay_row(client, slot).await?;
    let here = read_recorded_system_identifier(client, slot).await?;
    if row.is_none_or(|row| row.system_identifier == here) {
        return Ok(());
    }
    match begun.bound {
        SettledBound::Horizon => drop(bound_on_other_server(client, outbox).await?),
        SettledBound::Nothing | SettledBound::Since(_) => {}
    }
    refuse_hidden(client, &outbox.tables).await?;
    let server = read_server_identity(client).await?;
    let whose = (here.as_str(), server.timeline);
    Ok(move_recovery_to_server(client, slot, whose).await?)
}

/// Returns the bound on another server. Positions are not valid there. Transaction ids are valid if
/// that server is an upgrade of the recorded one.
async fn bound_on_other_server(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<SettledBound, RelayError> {
    let slot = &outbox.slot;
    let is_same = is_same_origin(client, slot, &outbox.tables).await?;
    match is_same {
        true => Ok(SettledBound::Horizon),
        false => Err(RelayError::survey(AdminError::OtherDatabase { slot: slot.clone() })),
    }
}

/// Records that a slot is created for the first time, and that existing rows are to be published.
/// Returns false if the slot already has a record. `unpublished_where`, SQL about a row,
/// is true for the rows to publish, and `None` publishes all rows.
///
/// # Errors
///
/// The publication does not exist.
pub async fn begin_first(
    client: &SqlClient,
    outbox: &Outbox,
    failover: Failover,
    unpublished_where: Option<String>,
) -> Result<bool, RelayError> {
    let slot = &outbox.slot;
    refuse_unpublished(client, outbox).await?;
    let recovery = recovery(client, outbox, SettledBound::Nothing).await?;
    let recovery = SlotRecovery { failover, unpublished_where, ..recovery };
    let here = read_recorded_system_identifier(client, slot).await?;
    let server = read_server_identity(client).await?;
    let whose = (here.as_str(), server.timeline);
    let publication = PublicationWatch::new(outbox.publication.clone(), outbox.tables.clone());
    publication.begin(client).await?;
    let begun = begin_backfill(client, slot, &recovery, whose).await?;
    if begun {
        publication.note(client, slot).await?;
    }
    failpoint::hit("recovery-begun");
    Ok(begun)
}

async fn recovery(
    client: &SqlClient,
    outbox: &Outbox,
    bound: SettledBound,
) -> Result<SlotRecovery, RelayError> {
    let Outbox { slot, tables, .. } = outbox;
    refuse_hidden(client, tables).await?;
    let state = read_slot(client, slot).await?;
    let failover = match state.and_then(|state| state.failover) {
        Some(true) => Failover::Yes,
        Some(false) | None => Failover::No,
    };
    let id = format!("{:08x}", random_seed() & u64::from(u32::MAX));
    Ok(SlotRecovery {
        id,
        failover,
        bound,
        unpublished_where: None,
        parts: Vec::new(),
        settled_snapshot: None,
    })
}

/// Refuses a publication that does not exist or lacks a table: the new slot would not stream its
/// rows.
async fn refuse_unpublished(client: &SqlClient, outbox: &Outbox) -> Result<(), RelayError> {
    let Outbox { publication: name, tables, .. } = outbox;
    let found = read_publication(client, name).await?;
    let Some(publication) = found else {
        let summary = format!("publication {name} does not exist");
        return Err(RelayError::Setup { code: Code::PublicationMissing, summary });
    };
    let name = quote_identifier(name);
    let (code, summary) = match tables.iter().find(|table| !publication.covers(table)) {
        Some(table) => (
            Code::PublicationUnsuitable,
            format!(
                "publication {name} does not publish {table} (fix: as the owner of the publication: ALTER PUBLICATION {name} ADD TABLE ONLY {table})"
            ),
        ),
        None if !publication.publishes.contains(&Operation::Insert) => (
            Code::PublicationUnsuitable,
            format!(
                "publication {name} does not publish inserts (fix: as the owner of the publication: ALTER PUBLICATION {name} SET (publish = 'insert'))"
            ),
        ),
        None => return Ok(()),
    };
    Err(RelayError::Setup { code, summary })
}

/// Returns the rows of a recovery that are published next, if its slot is created: those of its
/// first part.
pub async fn rest(
    client: &SqlClient,
    slot: &str,
) -> Result<Option<(SlotRecovery, RecoveryWork)>, RelayError> {
    let operation = read_operation(client, slot).await?;
    let row = read_relay_row(client, slot).await?;
    match (operation, row) {
        (Some(SlotOperation::Recovery(recovery)), Some(row)) => {
            let Some(part) = recovery.parts.first().cloned() else { return Ok(None) };
            let settled = match (recovery.settled_snapshot.clone(), recovery.bound) {
                (Some(snapshot), _) => SettledRows::SeenIn(snapshot),
                (None, SettledBound::Nothing) => match recovery.unpublished_where.clone() {
                    Some(condition) => SettledRows::Unless { condition },
                    None => SettledRows::None,
                },
                (None, SettledBound::Horizon) => SettledRows::Below(row.settled_xid),
                (None, SettledBound::Since(since)) => {
                    SettledRows::Before(PgTimestamp::from_system_time(since))
                }
            };
            let gap = UnsettledRows { snapshot: part.snapshot, settled, scope: Scope::default() };
            Ok(Some((recovery, RecoveryWork { consistent_point: part.consistent_point, gap })))
        }
        (
            Some(
                SlotOperation::Recovery(_)
                | SlotOperation::Reset(_)
                | SlotOperation::Release(_)
                | SlotOperation::Resharding(_),
            )
            | None,
            _,
        ) => Ok(None),
    }
}

/// Rejects hidden rows: a recovery would see no rows, and would count all of them as settled.
async fn refuse_hidden(client: &SqlClient, tables: &[QualifiedName]) -> Result<(), RelayError> {
    Ok(refuse_hidden_rows(client, tables, TableAccess::Read).await?)
}

/// Oids of `int8`, `int2` and `int4`. Event ids of these types count up in a transaction.
const INTEGERS: [u32; 3] = [20, 21, 23];

/// Returns an outbox table as a recovery reads it.
///
/// # Errors
///
/// The table does not exist, or its rows are hidden.
pub async fn table(
    client: &SqlClient,
    name: &QualifiedName,
    names: &ColumnNames,
) -> Result<SourceTable, RelayError> {
    refuse_hidden(client, std::slice::from_ref(name)).await?;
    let (oid, columns) = read_columns(client, name).await?;
    let ColumnNames { id, aggregate_type, aggregate_id, version, occurred_at, .. } = names;
    let found =
        |named: &Option<ColumnAliases>| named.as_ref().and_then(|one| present(one, &columns));
    let occurred_at = found(occurred_at);
    let id = present(id, &columns);
    let counts_up =
        |it: &TableColumn| Some(&it.name) == id.as_ref() && INTEGERS.contains(&it.type_oid);
    let counter = id.clone().filter(|_| columns.iter().any(counts_up));
    let order = [found(version), occurred_at.clone(), counter];
    Ok(SourceTable {
        name: name.clone(),
        oid,
        aggregate_type: found(aggregate_type),
        aggregate_id: found(aggregate_id),
        order: order.into_iter().flatten().collect(),
        id: id.unwrap_or_else(|| names.id.to_string()),
        occurred_at,
        columns,
        row_filter: None,
    })
}

/// Returns the same table with the row filter of the outbox's publication, because a shard has only
/// a part of the rows.
pub async fn published_table(
    client: &SqlClient,
    (outbox, name): (&Outbox, &QualifiedName),
    names: &ColumnNames,
) -> Result<SourceTable, RelayError> {
    let table = table(client, name, names).await?;
    let publication = read_publication(client, &outbox.publication).await?;
    let row_filter = publication.and_then(|it| it.listed(name)?.row_filter.clone());
    Ok(SourceTable { row_filter, ..table })
}

/// Returns the same table with the row filter of the outbox. The rows of all shards are read.
pub async fn table_of_all_shards(
    client: &SqlClient,
    (outbox, name): (&Outbox, &QualifiedName),
    names: &ColumnNames,
) -> Result<SourceTable, RelayError> {
    let table = table(client, name, names).await?;
    let row_filter = read_row_filter(client, outbox, name).await?;
    Ok(SourceTable { row_filter, ..table })
}

/// Returns the first of a column's names that exists in the table.
fn present(names: &ColumnAliases, columns: &[TableColumn]) -> Option<String> {
    let is_there = |name: &&str| columns.iter().any(|column| column.name == *name);
    names.iter().find(is_there).map(str::to_owned)
}
