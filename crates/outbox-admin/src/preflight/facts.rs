//! Facts that the server reported.

use std::time::Duration;

use walrelay_outbox_replay::{SettledRecord, SlotRelease, SlotUser};
use walrelay_outbox_store::{Definition, Unstreamed};
use walrelay_pg_client::QualifiedName;
use walrelay_pg_replication::{PublicationState, SlotState};

use crate::sharding::Sharding;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub server: ServerFacts,
    pub role: RoleFacts,
    pub slot: Option<SlotState>,
    /// The session that holds the slot.
    pub holder: Option<SlotUser>,
    pub publication: Option<PublicationState>,
    /// The outbox tables, in the requested order.
    pub outbox_tables: Vec<TableFacts>,
    pub schema: SchemaAccess,
    pub relay_tables: Vec<TableFacts>,
    /// The definition of the outbox. None if there is none, or the role may not read it.
    pub definition: Option<Definition>,
    /// The slot's record. None if there is none, or the role may not read it.
    pub relay_row: Option<SettledRecord>,
    /// Records of other slots that do not exist.
    pub leftover_records: Vec<LeftoverRecord>,
    pub release: Option<ReleaseFacts>,
    pub sharding: Sharding,
    /// The expected row filters of a shard's publication, in table order. An entry is None if the
    /// table cannot be sharded. Empty if the outbox is not a shard.
    pub filters: Vec<Option<String>>,
    /// Existing names, for suggestions. Empty if nothing is missing.
    pub neighbours: ExistingNames,
}

/// The record of a slot that does not exist. The slot belongs to no shard of the outbox, and no
/// operation on it is unfinished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftoverRecord {
    pub slot: String,
    /// Time since a relay last wrote the record.
    pub age: Duration,
}

/// Whether the role may use the schema of the relay's own tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaAccess {
    /// The role has USAGE.
    Usable,
    /// The role lacks USAGE.
    Denied,
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseFacts {
    pub release: SlotRelease,
    /// Description of the release, and whether somebody is working on it.
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The setting `server_version_num`.
    pub version_num: u32,
    pub database: String,
    /// Encoding of the database, such as `UTF8`.
    pub encoding: String,
    pub mode: ServerMode,
    pub host: ServerHost,
    pub wal_level: String,
    pub replication_slots_max: i64,
    pub replication_slots: i64,
    pub wal_senders_max: i64,
    pub wal_senders: i64,
    /// The setting `max_slot_wal_keep_size`, in bytes. `None` if WAL is retained without limit.
    pub slot_wal_keep_bytes: Option<u64>,
    /// The setting `wal_sender_timeout`. `None` if it is off.
    pub wal_sender_timeout: Option<Duration>,
    /// The time zone of new sessions. None if it is UTC.
    pub local_time_zone: Option<String>,
    /// Name and value of each setting that may end a session, and that no session can change.
    pub limits: Vec<(String, String)>,
    /// Identifier of the server's history. None if the role may not read it.
    pub system_identifier: Option<String>,
}

/// Whether a server accepts writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMode {
    Primary,
    Standby,
}

/// The operator of a server, which determines how settings are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerHost {
    Supabase,
    Other,
}

/// The role that the relay connects as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFacts {
    pub name: String,
    /// Whether the role may replicate, by attribute or as superuser.
    pub may_replicate: bool,
    /// Maximum number of connections of the role, or of the database if that is less. None if
    /// neither has a maximum.
    pub connections_max: Option<i32>,
    /// How long the password is still valid. None if it is valid for ever.
    pub password_left: Option<Duration>,
}

/// A table that the checks looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    pub name: QualifiedName,
    pub found: Option<FoundTable>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    pub kind: RelationKind,
    /// Names and types of the columns.
    pub columns: Vec<(String, String)>,
    /// Names of generated columns that the publication leaves out.
    pub unpublished: Vec<String>,
    /// Tables below it whose rows are never published.
    pub unstreamed: Option<Unstreamed>,
    /// Privileges among SELECT, INSERT, UPDATE and DELETE that the role lacks.
    pub missing_rights: Vec<String>,
    /// Commands among these for which row level security hides every row from the role.
    pub hidden_from: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationKind {
    Table,
    Partitioned,
    Unlogged,
    /// A view or another relation without rows of its own.
    Other,
}

/// Existing names, as suggestions for a misspelled name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExistingNames {
    /// Publications of this database.
    pub publications: Vec<String>,
    /// Logical slots of this database.
    pub slots: Vec<String>,
    pub tables: Vec<String>,
}
