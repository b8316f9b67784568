//! Findings: the result of each check, its severity and its fix.

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Code of the check, one of [`code`].
    pub code: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Subject of the finding, such as `slot "walrelay"`.
    pub subject: String,
    /// Description of the finding.
    pub message: String,
    /// The fix. Empty if none is needed.
    pub fix: String,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// No problem.
    Ok,
    /// The relay runs, but somebody should check.
    Warning,
    /// The relay cannot run.
    Error,
}

/// The codes of findings.
pub mod code {
    /// The peer is a connection pooler.
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
    /// Free replication slots.
    pub const REPLICATION_SLOTS: &str = "replication_slots";
    /// Free replication connections.
    pub const WAL_SENDERS: &str = "wal_senders";
    /// The setting `max_slot_wal_keep_size`.
    pub const SLOT_WAL_KEEP_SIZE: &str = "max_slot_wal_keep_size";
    /// The setting `wal_sender_timeout`.
    pub const WAL_SENDER_TIMEOUT: &str = "wal_sender_timeout";
    /// The number of shards of the outbox, and whether the shards fit the ordering key.
    pub const SHARDS: &str = "shards";
    /// There is no slot, and none is recorded: a first start.
    pub const SLOT_MISSING: &str = "slot_missing";
    /// An operation on the slot is not finished.
    pub const OPERATION: &str = "operation";
    /// An upgrade is being prepared, or its process has ended. The slot still exists.
    pub const UPGRADE_BEGUN: &str = "upgrade_begun";
    /// The slot was dropped for an upgrade that has not happened yet.
    pub const UPGRADE_PREPARED: &str = "upgrade_prepared";
    /// The slot is recorded and does not exist, or it is invalidated.
    pub const SLOT_LOST: &str = "slot_lost";
    /// The slot is physical, or has another plugin or database.
    pub const SLOT_UNUSABLE: &str = "slot_unusable";
    /// Another session uses the slot.
    pub const SLOT_ACTIVE: &str = "slot_active";
    /// Remaining WAL before the slot is lost.
    pub const SLOT_SAFE_WAL: &str = "slot_safe_wal_size";
    /// The slot has no problem.
    pub const SLOT: &str = "slot";
    /// The publication does not exist.
    pub const PUBLICATION_MISSING: &str = "publication_missing";
    /// The publication publishes other operations than inserts, or no inserts.
    pub const PUBLICATION_OPERATIONS: &str = "publication_operations";
    /// The publication does not include a table.
    pub const PUBLICATION_TABLE: &str = "publication_table";
    /// The publication includes all tables, or a schema.
    pub const PUBLICATION_SCOPE: &str = "publication_scope";
    /// The publication leaves out columns.
    pub const PUBLICATION_COLUMNS: &str = "publication_columns";
    /// The publication filters rows.
    pub const PUBLICATION_ROW_FILTER: &str = "publication_row_filter";
    /// Rows of a partitioned table would arrive under the names of partitions.
    pub const PUBLICATION_VIA_ROOT: &str = "publication_via_root";
    /// The publication has no problem.
    pub const PUBLICATION: &str = "publication";
    /// The outbox table does not exist.
    pub const OUTBOX_MISSING: &str = "outbox_table_missing";
    /// The outbox is a view or unlogged, so its rows are not replicated.
    pub const OUTBOX_KIND: &str = "outbox_table_kind";
    /// A column is missing, or generated and therefore not published.
    pub const OUTBOX_COLUMN: &str = "outbox_column_missing";
    /// The payload's type is published as its text form.
    pub const OUTBOX_PAYLOAD_TYPE: &str = "outbox_payload_type";
    /// The outbox table has no problem.
    pub const OUTBOX: &str = "outbox_table";
    /// A table of the relay is missing.
    pub const DISPATCH_MISSING: &str = "dispatch_table_missing";
    /// A table of the relay is not in the WAL, so a crash of the server empties it.
    pub const DISPATCH_UNLOGGED: &str = "dispatch_table_unlogged";
    /// The role lacks a privilege on a table of the relay.
    pub const DISPATCH_RIGHTS: &str = "dispatch_table_rights";
    /// Row level security would hide rows from the role.
    pub const DISPATCH_ROW_SECURITY: &str = "dispatch_row_security";
    /// The relay's tables have no problem.
    pub const DISPATCH: &str = "dispatch_tables";
    /// The recorded positions belong to another server.
    pub const SYSTEM_IDENTIFIER: &str = "system_identifier";
}

/// The list of findings while it is built.
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

    /// Returns whether no finding since `start` is an error.
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
