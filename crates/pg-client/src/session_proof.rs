//! Proves that a session has a server process of its own, before anything is set in it.
//!
//! A pooler in transaction mode gives the process of one client to another client after each
//! transaction. A setting of ours would then apply to transactions of others, and theirs to ours.

use tokio::io::AsyncReadExt as _;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::error::PgError;

/// The order in which two sessions ask for their process. A pooler hands out the process that was
/// released last, or the one that waited longest. Each order repeats or changes a process here.
const ASKED: [Asked; 7] = [
    Asked::Other,
    Asked::Other,
    Asked::First,
    Asked::First,
    Asked::Other,
    Asked::First,
    Asked::Other,
];

#[derive(Debug, Clone, Copy)]
enum Asked {
    First,
    Other,
}

/// Reads the server process of the current transaction.
pub(crate) async fn backend_of(client: &Client) -> Result<i32, PgError> {
    let answer = client.simple_query("SELECT pg_catalog.pg_backend_pid()").await?;
    let pid = answer.iter().find_map(|message| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        row.get(0)?.parse().ok()
    });
    pid.ok_or_else(|| PgError::protocol("the server does not name its process"))
}

/// Returns whether the server itself announced this process at the start. Only a server does:
/// proxies announce another number, or none, also for sessions with a process of their own.
pub(crate) async fn is_announced(client: &Client, pid: i32) -> bool {
    announced_pid(client).await == Some(pid)
}

/// Refuses a session whose process was, or may be, that of another client. `pid` is the process
/// that answered first. Without another session, the first one may still change its process.
pub(crate) async fn refuse_shared(
    client: &Client,
    pid: i32,
    other: Option<&Client>,
) -> Result<(), PgError> {
    let mut pids = [Some(pid), None];
    for asked in ASKED {
        let (index, session) = match (asked, other) {
            (Asked::Other, Some(other)) => (1, other),
            (Asked::First | Asked::Other, _) => (0, client),
        };
        let here = backend_of(session).await?;
        if *pids[index].get_or_insert(here) != here || pids[0] == pids[1] {
            return Err(PgError::SharedBackend);
        }
    }
    Ok(())
}

/// Returns the process that the server announced at the start, as a request to cancel would name
/// it. None if none was announced.
async fn announced_pid(client: &Client) -> Option<i32> {
    let (ours, mut theirs) = tokio::io::duplex(64);
    client.cancel_token().cancel_query_raw(ours, NoTls).await.ok()?;
    // Length and code come before the process.
    let _length = theirs.read_i32().await.ok()?;
    let _code = theirs.read_i32().await.ok()?;
    theirs.read_i32().await.ok()
}
