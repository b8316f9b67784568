//! Why a protocol refused to begin, or ended early.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_core::TemplateError;
use walrelay_errors::{BoxedError, Code, Coded};
use walrelay_outbox_replay::{AdminError, UnfinishedReplay};
use walrelay_outbox_store::{StoreError, WalTime};
use walrelay_pg_client::{PgError, SqlError};
use walrelay_pg_replication::SlotError;
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;
use walrelay_relay::observe::report::rfc3339;

use super::conflicts::ReplayConflict;
use super::skipped_rows::SkippedRows;
use super::table_rows::TableRows;
use crate::archive::ArchiveError;
use crate::resharding::ReshardingRefusal;

#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum ProtocolError {
    /// A statement failed, or the state of the server does not allow the command.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A session of the relay failed.
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error(transparent)]
    Postgres(#[from] PgError),
    /// Pub/Sub refused, or cannot be reached.
    #[error(transparent)]
    PubSub(#[from] PubsubError),
    /// The operator did not agree, or cannot be asked.
    #[error(transparent)]
    Operator(BoxedError),
    #[error("stopped by a signal before it was done")]
    Interrupted,

    /// An unfinished replay is in the way.
    #[error("{}", describe_replay(replay, why))]
    ReplayInTheWay { replay: Box<UnfinishedReplay>, why: ReplayConflict },
    #[error("the setting wal_level is {level}, but a slot needs logical")]
    WalLevel { level: String },
    #[error("the command needs the outbox's database, and this one has no table {table}")]
    NoOutbox { table: String },
    /// No relay has used the slot, so no row is known to be settled.
    #[error("slot {slot:?} has no record: no relay has ever used it")]
    SlotUnrecorded { slot: String },
    #[error("{}", unknown_time(*time, earliest.as_ref()))]
    TimeUnknown { time: SystemTime, earliest: Option<WalTime> },
    #[error("{what} was cancelled: its anchor is gone; the slot is where it was")]
    ResetCancelled { what: String },

    #[error("another process changes the number of shards")]
    ReshardRunning,
    #[error(transparent)]
    Reshard(#[from] ReshardingRefusal),
    /// Anchors would be useless after the command.
    #[error("slot {slot:?} has anchors that block the command: {}", names.join(", "))]
    AnchorsInTheWay { slot: String, names: Vec<String> },

    #[error("publication {publication:?} does not exist")]
    PublicationMissing { publication: String },

    #[error(
        "slot {slot:?} has {rows} unconfirmed row(s); if it is dropped, they are never published"
    )]
    DropLosesRows { slot: String, rows: u64 },
    /// The slot does not exist, or is lost. Rows that its record does not list as published lose
    /// their record.
    #[error(
        "slot {slot:?} is gone or lost, and {rows} row(s) are not on record as published through it"
    )]
    RecordLosesRows { slot: String, rows: u64 },
    #[error("the server cannot send {at}, which is before the position: {answer}")]
    UnsendableRowBefore { at: String, answer: String },
    /// The operator has not agreed to the number of skipped rows.
    #[error("{}", skipped.disagreement(*agreed))]
    SkippedRowsDiffer { skipped: Box<SkippedRows>, agreed: u64 },
    #[error("slot {slot:?} is at {here}, which is past {to}")]
    SlotAhead { slot: String, here: Lsn, to: Lsn },
    #[error(
        "{target} is after {settled}, the settled position of the slot: rows in between would never be published"
    )]
    TargetPastSettled { target: Lsn, settled: Lsn },
    #[error(
        "{target} is not between {from}, the position of anchor {anchor:?}, and {end}, the end of the WAL"
    )]
    TargetOutOfRange { target: Lsn, from: Lsn, anchor: String, end: Lsn },
    #[error("{target} is after {end}, the end of the WAL")]
    TargetPastWal { target: Lsn, end: Lsn },

    #[error("anchor {anchor:?} exists already")]
    AnchorExists { anchor: String },
    #[error("anchor {anchor:?} is at {here} already, after {to}")]
    AnchorAhead { anchor: String, here: Lsn, to: Lsn },
    #[error("{to} is after {live}, the position of slot {slot:?}")]
    TargetPastSlot { to: Lsn, live: Lsn, slot: String },

    /// The outbox has rows that its first slot would not stream, and the operator has not chosen.
    #[error(
        "slot {slot:?} would not stream rows that are older than the slot: {}",
        row_counts(rows)
    )]
    EarlierRows { slot: String, rows: Vec<TableRows> },
    #[error("slot {slot:?} exists already, and older rows can only be included when it is created")]
    SlotExists { slot: String },
    #[error("topic template {template:?} is invalid: {error}")]
    TopicTemplate { template: String, error: TemplateError },
    /// The topic does not exist. Nothing was begun.
    #[error("topic {topic} does not exist")]
    TopicMissing { topic: String },
    #[error("{table} has no column {column:?} that is null in unpublished rows")]
    UnpublishedColumnMissing { table: String, column: String },
    #[error("column {column:?} of {table} is never null, so no row would count as unpublished")]
    UnpublishedColumnNeverNull { table: String, column: String },
    /// Postgres refuses the condition as that of an index.
    #[error("the condition for unpublished rows is refused: {problem}")]
    ConditionRefused { problem: String },
    #[error("{table} has no column {column:?} that could become an attribute")]
    AttributeColumnMissing { table: String, column: String },
    /// Rows could not be archived. None of them was deleted.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The role may not delete rows.
    #[error("delete old rows of {table}")]
    PruneDenied { table: String, source: Box<PgError> },
}

fn describe_replay(replay: &UnfinishedReplay, why: &ReplayConflict) -> String {
    let UnfinishedReplay { id, slot, keys, .. } = replay;
    match why {
        ReplayConflict::PausesKeys => {
            format!("{keys} keys of slot {slot:?} are paused by replay {id}, which is unfinished")
        }
        ReplayConflict::CouldNotContinue => {
            format!("replay {id} of slot {slot:?} is unfinished, and could not continue afterwards")
        }
        ReplayConflict::ReadsTables => {
            format!("replay {id} of slot {slot:?} is unfinished, and still has rows to read")
        }
        ReplayConflict::NeedsAnchor(anchor) => {
            format!("replay {id} is unfinished, and needs the WAL that anchor {anchor:?} retains")
        }
        ReplayConflict::HasRows => {
            format!("rows of replay {id} are still to be published in place")
        }
    }
}

fn row_counts(rows: &[TableRows]) -> String {
    let counted = rows.iter().map(|TableRows { table, rows }| format!("{rows} row(s) of {table}"));
    counted.collect::<Vec<_>>().join(", ")
}

/// Explains why no position is known for a time, and names the earliest time with a known position.
fn unknown_time(time: SystemTime, earliest: Option<&WalTime>) -> String {
    let time = rfc3339(time);
    match earliest {
        Some(WalTime { at, lsn }) => format!(
            "no position is known from {time} or before; the earliest known one is {lsn}, from {}",
            rfc3339(*at)
        ),
        None => format!(
            "no position is known from {time} or before, nor a later one: a running relay records one per minute"
        ),
    }
}

impl Coded for ProtocolError {
    fn code(&self) -> Code {
        match self {
            Self::Admin(error) => error.code(),
            Self::Relay(error) => error.code(),
            Self::Postgres(error) => error.code(),
            Self::PubSub(error) => error.code(),
            Self::Operator(error) => error.code(),
            Self::Interrupted => Code::Interrupted,
            Self::WalLevel { .. } => Code::WalLevelNotLogical,
            Self::NoOutbox { .. } => Code::OutboxTableMissing,
            Self::PublicationMissing { .. } => Code::PublicationMissing,
            Self::TopicMissing { .. } => Code::TopicNotFound,
            Self::PruneDenied { .. } => Code::PrunePermissionMissing,
            Self::Archive(error) => error.code(),
            Self::EarlierRows { .. } => Code::ExistingRowsUndecided,
            Self::AttributeColumnMissing { .. } => Code::OutboxColumnMissing,
            Self::ConditionRefused { .. } => Code::ConfigurationInvalid,
            Self::UnpublishedColumnMissing { .. } | Self::UnpublishedColumnNeverNull { .. } => {
                Code::UnpublishedColumnMissing
            }
            Self::ReplayInTheWay { .. } => Code::ReplayUnfinished,
            Self::SlotUnrecorded { .. } => Code::SlotUnrecorded,
            Self::TimeUnknown { .. } => Code::TimeUnknown,
            Self::ResetCancelled { .. } => Code::AnchorLost,
            Self::ReshardRunning | Self::Reshard(_) => Code::ReshardBlocked,
            Self::AnchorsInTheWay { .. } => Code::AnchorsInTheWay,
            Self::DropLosesRows { .. }
            | Self::RecordLosesRows { .. }
            | Self::SkippedRowsDiffer { .. }
            | Self::TargetPastSettled { .. } => Code::RowsWouldBeSkipped,
            Self::UnsendableRowBefore { .. } => Code::UnsendableRowInRange,
            Self::TargetOutOfRange { .. }
            | Self::TargetPastWal { .. }
            | Self::SlotAhead { .. }
            | Self::AnchorAhead { .. }
            | Self::TargetPastSlot { .. } => Code::PositionOutOfRange,
            Self::AnchorExists { .. } => Code::AnchorExists,
            Self::SlotExists { .. } => Code::SlotExists,
            Self::TopicTemplate { .. } => Code::TopicTemplateInvalid,
        }
    }

    fn fix(&self) -> Option<String> {
        if let Self::Archive(error) = self {
            return error.fix();
        }
        if let Self::Operator(error) = self { error.fix() } else { None }
    }
}

macro_rules! from_admin {
    ($($error:ty),*) => {$(
        impl From<$error> for ProtocolError {
            fn from(error: $error) -> Self {
                Self::Admin(AdminError::from(error))
            }
        }
    )*};
}
from_admin!(SqlError, SlotError, StoreError);
