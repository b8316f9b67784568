//! Forgets aggregates whose ids are never used again: deletes their rows of `app_outbox_aggregate`.
//!
//! The next event of a forgotten aggregate would have version 1. So a row is deleted only at the
//! version that was read first. An event that is being written keeps its aggregate.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio_postgres::error::SqlState;
use walrelay_pg_client::{PgError, SqlClient, TableAccess, own_table, refuse_hidden_rows, sql};

use super::operator::{AdminSession, Change, Operator};
use super::protocol_error::ProtocolError;

#[derive(Debug, Clone, Copy)]
pub struct ForgetOrder<'a> {
    pub aggregate_type: &'a str,
    pub ids: &'a [String],
    /// Whether rows are deleted or only read, which needs other permissions.
    pub access: TableAccess,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForgottenAggregates {
    pub forgotten: u64,
    /// Aggregates that stay, because an event was written meanwhile.
    pub kept: Vec<String>,
    /// Ids without an aggregate.
    pub unknown: Vec<String>,
}

/// Forgets aggregates. Returns `None` after a dry run.
///
/// Each row is deleted by itself, so that this session never holds one lock while it waits for
/// another.
///
/// # Errors
///
/// The role lacks a permission, or row level security hides rows.
pub async fn forget_aggregates<O: Operator>(
    session: &AdminSession<'_, O>,
    order: ForgetOrder<'_>,
) -> Result<Option<ForgottenAggregates>, ProtocolError> {
    let ForgetOrder { aggregate_type, ids, access } = order;
    let client = session.client;
    let table = own_table("app_outbox_aggregate");
    refuse_hidden_rows(client, std::slice::from_ref(&table), access).await?;
    let rows = client.query(sql!("forget.sql", "versions"), &[&aggregate_type, &ids]).await;
    let versions: BTreeMap<String, i64> =
        rows.map_err(PgError::from)?.iter().map(|row| (row.get(0), row.get(1))).collect();
    let change = async || {
        let (aggregate_type, aggregates) = (aggregate_type.to_owned(), versions.len() as u64);
        Ok(Change::ForgetAggregates { aggregate_type, aggregates })
    };
    if !session.agree(change).await? {
        return Ok(None);
    }
    // A deletion that a crash of the server undoes can be repeated.
    client.batch_execute(sql!("forget.sql", "settings")).await.map_err(PgError::from)?;
    let mut unknown: Vec<String> =
        ids.iter().filter(|id| !versions.contains_key(*id)).cloned().collect();
    unknown.sort_unstable();
    unknown.dedup();
    let mut forgotten = ForgottenAggregates { forgotten: 0, kept: Vec::new(), unknown };
    for (id, version) in versions {
        match forget(client, (aggregate_type, &id), version).await? {
            true => forgotten.forgotten += 1,
            false => forgotten.kept.push(id),
        }
    }
    Ok(Some(forgotten))
}

/// Deletes the row of an aggregate that has this version. Returns false if it has another one, or
/// if a transaction is about to change it.
async fn forget(
    client: &SqlClient,
    (aggregate_type, id): (&str, &str),
    version: i64,
) -> Result<bool, ProtocolError> {
    let sql = sql!("forget.sql", "forget");
    match client.execute(sql, &[&aggregate_type, &id, &version]).await {
        Ok(rows) => Ok(rows == 1),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(false),
        Err(error) => Err(PgError::from(error).into()),
    }
}
