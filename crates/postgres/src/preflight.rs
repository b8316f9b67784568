//! Is this database set up for the relay? All findings at once, each with its fix.
//!
//! [`gather`] asks the server a few read-only questions; [`assess`] turns the answers into findings
//! and touches nothing. The caller maps codes to exit codes; a code never changes its meaning.

mod assess;
mod gather;
mod resemble;
mod tables;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio_postgres::Client;

use crate::lost::Settled;
use crate::names::QualifiedName;
use crate::publication::PublicationState;
use crate::slot::SlotState;
use crate::store_error::StoreError;

pub use assess::assess;
pub use gather::gather;

/// What the relay is going to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreflightRequest {
    /// The slot's name.
    pub slot: String,
    /// The publication's name.
    pub publication: String,
    /// The tables producers insert into.
    pub outbox_tables: Vec<QualifiedName>,
    /// The columns that are read from each of them.
    pub columns: Vec<ExpectedColumn>,
}

/// A column that configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedColumn {
    /// The names it may have; one of them is enough.
    pub names: Vec<String>,
    /// The option that names it, as in `--column-event-type`.
    pub option: String,
    /// What it is read for.
    pub role: ColumnRole,
}

/// What a column is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnRole {
    /// The data of the message.
    Payload,
    /// Anything else that has to be there.
    Required,
    /// Read where it is there.
    Optional,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which check; one of [`code`].
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: `slot "walrelay"`.
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to do about it; empty when there is nothing to do.
    pub fix: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// The relay runs; somebody should look.
    Warning,
    /// The relay cannot run.
    Error,
}

/// The codes of findings.
pub mod code {
    /// What answers is a connection pooler.
    pub const POOLER: &str = "pooler";
    /// The server's version.
    pub const SERVER_VERSION: &str = "server_version";
    /// The server is a standby.
    pub const IN_RECOVERY: &str = "in_recovery";
    /// The server is Supabase's.
    pub const SUPABASE: &str = "supabase";
    /// The setting `wal_level`.
    pub const WAL_LEVEL: &str = "wal_level";
    /// The role may not replicate.
    pub const ROLE_REPLICATION: &str = "role_replication";
    /// Replication slots left for us.
    pub const REPLICATION_SLOTS: &str = "replication_slots";
    /// Replication connections left for us.
    pub const WAL_SENDERS: &str = "wal_senders";
    /// The setting `max_slot_wal_keep_size`.
    pub const SLOT_WAL_KEEP_SIZE: &str = "max_slot_wal_keep_size";
    /// The setting `wal_sender_timeout`.
    pub const WAL_SENDER_TIMEOUT: &str = "wal_sender_timeout";
    /// There is no slot and there never was one: a first start.
    pub const SLOT_MISSING: &str = "slot_missing";
    /// There is no slot, and dispatch state knows that there was one; or it is invalidated.
    pub const SLOT_LOST: &str = "slot_lost";
    /// The slot is physical, or has another plugin or database.
    pub const SLOT_UNUSABLE: &str = "slot_unusable";
    /// Another session uses the slot.
    pub const SLOT_ACTIVE: &str = "slot_active";
    /// How much may be written before the slot is lost.
    pub const SLOT_SAFE_WAL: &str = "slot_safe_wal_size";
    /// The slot is as it should be.
    pub const SLOT: &str = "slot";
    /// There is no publication.
    pub const PUBLICATION_MISSING: &str = "publication_missing";
    /// It publishes more than inserts, or not them.
    pub const PUBLICATION_OPERATIONS: &str = "publication_operations";
    /// It does not cover a table.
    pub const PUBLICATION_TABLE: &str = "publication_table";
    /// It covers all tables, or a schema.
    pub const PUBLICATION_SCOPE: &str = "publication_scope";
    /// It leaves out columns.
    pub const PUBLICATION_COLUMNS: &str = "publication_columns";
    /// It filters rows.
    pub const PUBLICATION_ROW_FILTER: &str = "publication_row_filter";
    /// Rows of a partitioned table would come under the names of partitions.
    pub const PUBLICATION_VIA_ROOT: &str = "publication_via_root";
    /// The publication is as it should be.
    pub const PUBLICATION: &str = "publication";
    /// There is no such outbox table.
    pub const OUTBOX_MISSING: &str = "outbox_table_missing";
    /// It is a view, or unlogged: nothing of it is replicated.
    pub const OUTBOX_KIND: &str = "outbox_table_kind";
    /// A column is missing.
    pub const OUTBOX_COLUMN: &str = "outbox_column_missing";
    /// The payload is of a type that is published as its text form.
    pub const OUTBOX_PAYLOAD_TYPE: &str = "outbox_payload_type";
    /// The outbox table is as it should be.
    pub const OUTBOX: &str = "outbox_table";
    /// A table of the relay's is missing.
    pub const DISPATCH_MISSING: &str = "dispatch_table_missing";
    /// The role lacks a right on it.
    pub const DISPATCH_RIGHTS: &str = "dispatch_table_rights";
    /// Row level security would hide rows from the role.
    pub const DISPATCH_ROW_SECURITY: &str = "dispatch_row_security";
    /// The relay's tables are as they should be.
    pub const DISPATCH: &str = "dispatch_tables";
    /// Positions on record are of another server.
    pub const SYSTEM_IDENTIFIER: &str = "system_identifier";
}

/// What the server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server.
    pub server: ServerFacts,
    /// The role we are.
    pub role: RoleFacts,
    /// The slot, if there is one of this name.
    pub slot: Option<SlotState>,
    /// The publication, if there is one of this name.
    pub publication: Option<PublicationState>,
    /// The outbox tables, in the order asked for.
    pub outbox_tables: Vec<TableFacts>,
    /// The relay's own tables.
    pub relay_tables: Vec<TableFacts>,
    /// What is on record about the slot; None when nothing is, or we may not read it.
    pub relay_row: Option<Settled>,
    /// What is there under other names; empty when nothing is missing.
    pub neighbours: Neighbours,
}

/// What the server said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// As in `server_version_num`.
    pub version_num: u32,
    /// The database we are connected to.
    pub database: String,
    /// Standby or primary.
    pub mode: ServerMode,
    /// Who runs it.
    pub host: ServerHost,
    /// The setting.
    pub wal_level: String,
    /// Slots that can exist.
    pub replication_slots_max: i64,
    /// Slots that exist.
    pub replication_slots: i64,
    /// Replication connections that can exist.
    pub wal_senders_max: i64,
    /// Replication connections that exist.
    pub wal_senders: i64,
    /// The setting; None when log is kept without limit.
    pub slot_wal_keep_bytes: Option<u64>,
    /// The setting; None when it is off.
    pub wal_sender_timeout: Option<Duration>,
    /// Identifies the server's history; None when the role may not ask.
    pub system_identifier: Option<String>,
}

/// Whether a server takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMode {
    /// It does.
    Primary,
    /// It replays another's log.
    Standby,
}

/// Who runs a server; decides how settings are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerHost {
    /// Supabase.
    Supabase,
    /// Anybody else.
    Other,
}

/// The role we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFacts {
    /// Its name.
    pub name: String,
    /// Whether it may replicate, by attribute or as superuser.
    pub may_replicate: bool,
}

/// A table that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Its name.
    pub name: QualifiedName,
    /// What is there under this name.
    pub found: Option<FoundTable>,
}

/// A table that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    /// What kind of relation it is.
    pub kind: RelationKind,
    /// Names and types of its columns.
    pub columns: Vec<(String, String)>,
    /// Of SELECT, INSERT, UPDATE, DELETE, those the role lacks.
    pub missing_rights: Vec<String>,
    /// Of the same, those for which row level security shows the role no row.
    pub hidden_from: Vec<String>,
}

/// Kinds of relations, as far as replication is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationKind {
    /// An ordinary table.
    Table,
    /// A partitioned one.
    Partitioned,
    /// A table that is not in the log.
    Unlogged,
    /// A view or something else without rows of its own.
    Other,
}

/// Names that exist, for whoever has mistyped one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Neighbours {
    /// Publications of this database.
    pub publications: Vec<String>,
    /// Logical slots of this database.
    pub slots: Vec<String>,
    /// Tables.
    pub tables: Vec<String>,
}

/// Gathers and assesses.
///
/// # Errors
///
/// The server refused a question, or the connection ended.
pub async fn preflight(
    client: &Client,
    request: &PreflightRequest,
) -> Result<Vec<Finding>, StoreError> {
    Ok(assess(request, &gather(client, request).await?))
}
