//! Which server a session is on, and in which life of it (I11).
//!
//! A name in a connection string may lead to another server from one moment to the next: after a
//! promotion, a fail-over, a restore. What belongs to one history must never be written into another,
//! so a session that writes proves first that it is where the replication session is.

use tokio_postgres::Client;
use walrelay_pg_client::{PgError, SqlError};

use crate::slot_error::SlotError;

/// A server, its timeline, and when it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Whose positions these are; None where the role may not ask.
    pub system_identifier: Option<String>,
    /// Of the log that is being written; zero while the server is in recovery.
    pub timeline: u32,
    /// In microseconds since 1970, as text: compared, never computed with.
    pub started_at: String,
}

/// The timeline and the start. Not from `pg_control`, which still shows the old timeline right after
/// a promotion.
pub(crate) const TIMELINE_AND_START: &str = "
SELECT CASE WHEN pg_is_in_recovery() THEN '00000000'
            ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8::text";

impl ServerIdentity {
    /// From the two columns of [`TIMELINE_AND_START`].
    pub(crate) fn new(
        system_identifier: Option<String>,
        timeline: &str,
        started_at: String,
    ) -> Option<Self> {
        let timeline = u32::from_str_radix(timeline, 16).ok()?;
        Some(Self { system_identifier, timeline, started_at })
    }

    /// Whether both are the same server in the same life. An identifier that one of them was not
    /// allowed to read says nothing.
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

/// The server behind an ordinary session.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_server_identity(client: &Client) -> Result<ServerIdentity, SlotError> {
    let system_identifier = read_system_identifier(client).await?;
    let failed = SlotError::sql("read which server this is");
    let row = client.query_typed_one(TIMELINE_AND_START, &[]).await.map_err(failed)?;
    let timeline: String = row.get(0);
    ServerIdentity::new(system_identifier, &timeline, row.get(1)).ok_or_else(|| {
        SlotError::Sql(SqlError::UnexpectedValue {
            column: "pg_walfile_name()",
            value: timeline,
            expected: "a name that begins with a timeline",
        })
    })
}

/// None when the role may not ask. In queries of their own: rights on a function are checked even
/// where a condition keeps it from being called.
///
/// # Errors
///
/// The server refused, or the connection ended.
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
