//! The identity of a session's server: which server, and which history and start of it (I11).
//!
//! A name in a connection string may lead to another server at any time, after a promotion,
//! failover or restore. State of one history must never be written into another. A session that
//! writes therefore proves first that it is on the server of the replication session.

use tokio_postgres::Client;
use walrelay_pg_client::{PgError, SqlError, SqlText, sql};

use crate::slot_error::SlotError;

/// A server, its timeline, and its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// System identifier. None if the role may not read it.
    pub system_identifier: Option<String>,
    /// Timeline of the WAL that is being written. Zero while the server is in recovery.
    pub timeline: u32,
    /// Start time in microseconds since 1970, as text that is only compared.
    pub started_at: String,
}

/// SQL for the timeline and the start time. It does not use `pg_control`, which still shows the old
/// timeline right after a promotion.
pub(crate) static TIMELINE_AND_START: SqlText =
    SqlText::new(|| sql!("server_identity.sql", "timeline_and_start"));

impl ServerIdentity {
    /// Creates an identity from the two columns of [`TIMELINE_AND_START`].
    pub(crate) fn new(
        system_identifier: Option<String>,
        timeline: &str,
        started_at: String,
    ) -> Option<Self> {
        let timeline = u32::from_str_radix(timeline, 16).ok()?;
        Some(Self { system_identifier, timeline, started_at })
    }

    /// Returns whether both are the same server in the same history and start. If one side could
    /// not read the system identifier, it is not compared.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let differs = match (&self.system_identifier, &other.system_identifier) {
            (Some(ours), Some(theirs)) => ours != theirs,
            (None, _) | (_, None) => false,
        };
        !differs && self.timeline == other.timeline && self.started_at == other.started_at
    }

    pub(crate) fn malformed(timeline: &str) -> PgError {
        PgError::protocol(format!("{timeline:?} is no timeline"))
    }
}

/// Reads the identity of an ordinary session's server.
pub async fn read_server_identity(client: &Client) -> Result<ServerIdentity, SlotError> {
    let system_identifier = read_system_identifier(client).await?;
    let failed = SlotError::sql("read which server this is");
    let row = client.query_typed_one(&TIMELINE_AND_START, &[]).await.map_err(failed)?;
    let timeline: String = row.get(0);
    ServerIdentity::new(system_identifier, &timeline, row.get(1)).ok_or_else(|| {
        SlotError::Sql(SqlError::UnexpectedValue {
            column: "pg_walfile_name()",
            value: timeline,
            expected: "a name that begins with a timeline",
        })
    })
}

/// Reads the system identifier. None if the role may not. The privilege check is a query of its
/// own, because the server checks function privileges even if a condition prevents the call.
pub async fn read_system_identifier(client: &Client) -> Result<Option<String>, SlotError> {
    let failed = || SlotError::sql("read the system identifier");
    let may_ask = client
        .query_typed_one(
            "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') AS may_ask",
            &[],
        )
        .await
        .map_err(failed())?;
    if !may_ask.get::<_, bool>("may_ask") {
        return Ok(None);
    }
    let row = client
        .query_typed_one("SELECT system_identifier::text AS id FROM pg_control_system()", &[])
        .await
        .map_err(failed())?;
    Ok(Some(row.get("id")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(system: Option<&str>, timeline: &str, started_at: &str) -> ServerIdentity {
        let system = system.map(str::to_owned);
        ServerIdentity::new(system, timeline, started_at.to_owned()).expect("a timeline")
    }

    #[test]
    fn a_promoted_restarted_or_copied_server_is_another() {
        let ours = server(Some("7"), "00000001", "5");
        assert!(ours.is_same(&server(Some("7"), "00000001", "5")));
        assert!(ours.is_same(&server(None, "00000001", "5")), "not everybody may ask");
        assert!(!ours.is_same(&server(Some("8"), "00000001", "5")));
        assert!(!ours.is_same(&server(Some("7"), "00000002", "5")));
        assert!(!ours.is_same(&server(Some("7"), "00000001", "6")));
        assert_eq!(server(None, "0000001F", "5").timeline, 31);
    }
}
