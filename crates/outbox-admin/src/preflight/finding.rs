//! What was found, how bad it is, and what to do about it.

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
    /// The encoding of the database.
    pub const ENCODING: &str = "encoding";
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
    /// Into how many shards the outbox is divided, and whether they fit the ordering key.
    pub const SHARDS: &str = "shards";
    /// There is no slot, and none is on record: a first start.
    pub const SLOT_MISSING: &str = "slot_missing";
    /// Something was begun with the slot and is not finished.
    pub const OPERATION: &str = "operation";
    /// An upgrade is being prepared, or was by a process that is gone: the slot is still there.
    pub const UPGRADE_BEGUN: &str = "upgrade_begun";
    /// The slot was dropped for an upgrade that has not happened yet.
    pub const UPGRADE_PREPARED: &str = "upgrade_prepared";
    /// The slot is on record and does not exist, or it is invalidated.
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
    /// A column is missing, or generated and therefore not published.
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

/// The list being made.
#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, code: &'static str, subject: &str, message: impl Into<String>) {
        self.push(code, Severity::Ok, subject, (message.into(), String::new()));
    }

    pub(super) fn warning(
        &mut self,
        code: &'static str,
        subject: &str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.push(code, Severity::Warning, subject, (message.into(), fix.into()));
    }

    pub(super) fn error(
        &mut self,
        code: &'static str,
        subject: &str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.push(code, Severity::Error, subject, (message.into(), fix.into()));
    }

    pub(super) fn into_list(self) -> Vec<Finding> {
        self.0
    }

    /// Whether nothing since `start` is worse than fine.
    pub(super) fn is_fine_since(&self, start: usize) -> bool {
        self.0[start..].iter().all(|finding| finding.severity != Severity::Error)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn push(
        &mut self,
        code: &'static str,
        severity: Severity,
        subject: &str,
        (message, fix): (String, String),
    ) {
        self.0.push(Finding { code, severity, subject: subject.to_owned(), message, fix });
    }
}
