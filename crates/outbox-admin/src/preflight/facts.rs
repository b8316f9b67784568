//! What the server said.

use std::time::Duration;

use crate::lost::Settled;
use crate::operation::Upgrade;
use crate::sharding::Sharding;
use walrelay_pg_client::QualifiedName;
use walrelay_pg_replication::{PublicationState, SlotState};

/// What the server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server.
    pub server: ServerFacts,
    /// The role the relay connects as.
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
    /// The upgrade of a server that the slot was or is to be dropped for.
    pub upgrade: Option<UpgradeFacts>,
    /// Which shards of the outbox there are.
    pub sharding: Sharding,
    /// The row filters that a shard's publication should have, in the order of the tables, where they can
    /// be; nothing where the outbox is no shard.
    pub filters: Vec<Option<String>>,
    /// Names that exist, for suggestions; empty when nothing is missing.
    pub neighbours: Neighbours,
}

/// An upgrade that is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeFacts {
    /// What it is.
    pub upgrade: Upgrade,
    /// The same in words, and whether somebody is at it.
    pub what: String,
}

/// What the server said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// As in `server_version_num`.
    pub version_num: u32,
    /// The database we are connected to.
    pub database: String,
    /// Its encoding, as in `UTF8`.
    pub encoding: String,
    /// Standby or primary.
    pub mode: ServerMode,
    /// Who runs it.
    pub host: ServerHost,
    /// The setting `wal_level`.
    pub wal_level: String,
    /// How many slots may exist.
    pub replication_slots_max: i64,
    /// How many slots exist.
    pub replication_slots: i64,
    /// How many replication connections may exist.
    pub wal_senders_max: i64,
    /// How many replication connections exist.
    pub wal_senders: i64,
    /// The setting `max_slot_wal_keep_size`; `None` when log is kept without limit.
    pub slot_wal_keep_bytes: Option<u64>,
    /// The setting `wal_sender_timeout`; `None` when it is off.
    pub wal_sender_timeout: Option<Duration>,
    /// Identifies the server's history; None when the role may not ask.
    pub system_identifier: Option<String>,
}

/// Whether a server takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMode {
    /// It takes writes.
    Primary,
    /// It replays the log of another server.
    Standby,
}

/// Who runs a server; decides how settings are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerHost {
    /// Supabase.
    Supabase,
    /// Somebody else.
    Other,
}

/// The role the relay connects as.
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
    /// The relation of this name, if there is one.
    pub found: Option<FoundTable>,
}

/// A table that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    /// What kind of relation it is.
    pub kind: RelationKind,
    /// Names and types of its columns.
    pub columns: Vec<(String, String)>,
    /// Of them, those that are generated and that the publication leaves out.
    pub unpublished: Vec<String>,
    /// The rights among SELECT, INSERT, UPDATE and DELETE that the role lacks.
    pub missing_rights: Vec<String>,
    /// The same commands, where row level security shows the role no row.
    pub hidden_from: Vec<String>,
}

/// Kinds of relations, as far as replication is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationKind {
    /// An ordinary table.
    Table,
    /// A partitioned table.
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
