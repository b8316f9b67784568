//! The session that holds a slot: a relay that streams it, or a command that creates or reads it.

use std::fmt;

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::{APPLICATION_NAME, Blockers, blockers, sql};
use walrelay_pg_replication::read_slot;

use crate::admin_error::AdminError;
use crate::operation::{SlotOperation, is_operation_taken};
use crate::release::{ReleaseStage, SlotRelease};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotUser {
    pub pid: i32,
    /// Application name. Empty if the server does not show it.
    pub application: String,
    pub does: HolderActivity,
}

/// How a session uses the slot that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderActivity {
    /// It streams the slot, as a relay.
    Streams,
    /// It creates the slot, and waits until the open transactions have ended.
    Makes,
    /// It reads, copies or moves the slot with a statement.
    Reads,
    /// Unknown, because our role may not see it.
    Unknown,
}

impl SlotUser {
    /// Whether this is a relay under the name that a relay has unless its connection string names
    /// another.
    #[must_use]
    pub fn is_walrelay(&self) -> bool {
        self.does == HolderActivity::Streams && self.application == APPLICATION_NAME
    }
}

impl fmt::Display for SlotUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.does {
            HolderActivity::Streams => "a relay that streams it",
            HolderActivity::Makes => "a command that makes it",
            HolderActivity::Reads => "a command that reads it",
            HolderActivity::Unknown => "a session",
        };
        write!(f, "{what} (server process {}", self.pid)?;
        if !self.application.is_empty() {
            write!(f, ", application {}", self.application)?;
        }
        f.write_str(")")
    }
}

/// Describes the session with this process id, which holds a slot.
pub async fn read_slot_holder(client: &Client, pid: i32) -> Result<SlotUser, AdminError> {
    let row = client
        .query_typed_opt(sql!("slot_holder.sql", "read_slot_holder"), &[(&pid, Type::INT4)])
        .await
        .map_err(AdminError::sql("ask who holds the slot"))?;
    let text = |column| row.as_ref().map(|row| row.get::<_, String>(column)).unwrap_or_default();
    let does = match text("does").as_str() {
        "streams" => HolderActivity::Streams,
        "makes" => HolderActivity::Makes,
        "reads" => HolderActivity::Reads,
        _ => HolderActivity::Unknown,
    };
    Ok(SlotUser { pid, application: text("application"), does })
}

/// Returns the reason why an unfinished operation on this slot waits. The reason is open
/// transactions that block a new slot, or the holder of the old slot. None if nobody holds the
/// slot.
async fn unfinished_operation_cause(
    client: &Client,
    slot: &str,
) -> Result<Option<String>, AdminError> {
    let Some(pid) = read_slot(client, slot).await?.and_then(|slot| slot.active_pid) else {
        return Ok(None);
    };
    let holder = read_slot_holder(client, pid).await?;
    if holder.does != HolderActivity::Makes {
        return Ok(Some(format!("the slot is held by {holder}")));
    }
    let waited_for = blockers(client, pid).await?;
    Ok(Some(match waited_for.is_empty() {
        true => format!("the new slot is being made (server process {pid})"),
        false => describe_slot_blockers(&waited_for),
    }))
}

/// Describes an operation and the reason why it waits.
pub async fn describe_unfinished(
    client: &Client,
    slot: &str,
    operation: &SlotOperation,
) -> Result<String, AdminError> {
    let mut what = operation.describe(slot);
    if let SlotOperation::Release(SlotRelease { stage: ReleaseStage::Draining, .. }) = operation {
        what.push_str(match is_operation_taken(client, slot).await? {
            true => "; another process works on it",
            false => "; no process works on it",
        });
    }
    Ok(match unfinished_operation_cause(client, slot).await? {
        Some(waited_for) => format!("{what}; {waited_for}"),
        None => what,
    })
}

#[must_use]
pub fn describe_slot_blockers(blockers: &Blockers) -> String {
    format!("the new slot waits for a transaction to end: {blockers}")
}

/// Terminates the session with this process id. Returns false if the session has already ended.
pub async fn end_session(client: &Client, pid: i32) -> Result<bool, AdminError> {
    let row = client
        .query_typed_one("SELECT pg_catalog.pg_terminate_backend($1)", &[(&pid, Type::INT4)])
        .await
        .map_err(AdminError::sql("end a session"))?;
    Ok(row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_told_by_what_it_does() {
        let holder = |does, application: &str| {
            SlotUser { pid: 7, application: application.to_owned(), does }.to_string()
        };
        assert_eq!(
            holder(HolderActivity::Streams, "walrelay"),
            "a relay that streams it (server process 7, application walrelay)"
        );
        assert_eq!(holder(HolderActivity::Makes, ""), "a command that makes it (server process 7)");
    }
}
