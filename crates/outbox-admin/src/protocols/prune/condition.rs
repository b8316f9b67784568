//! The rows of a table that may be deleted.

use walrelay_pg_client::{
    PgError, QualifiedName, SCHEMA, ServerError, ServerErrorKind, TimeType, is_settled_sql,
    own_rows_sql, quote_identifier, text_form_sql,
};

use crate::protocols::protocol_error::ProtocolError;

/// The rows of a table that may be deleted.
pub(super) struct Condition {
    pub(super) table: QualifiedName,
    /// SQL condition on a row of `c`, where `$1` is the age in seconds.
    pub(super) text: String,
    /// The part of the condition that compares the time of the event.
    pub(super) is_old: String,
    pub(super) seconds: f64,
    /// Column of the event id.
    pub(super) id: String,
    /// Column of the time of the event.
    pub(super) occurred_at: String,
}

/// Returns the SQL condition for rows that may be deleted. It uses the oldest `settled_xid` of all
/// relays, so that each relay can still recover its own rows.
pub(super) fn condition(table: &QualifiedName, id: &str, is_old: &str) -> String {
    let event_id = text_form_sql(&format!("c.{}", quote_identifier(id)));
    let is_own = own_rows_sql(table, "c");
    let settled_xid =
        format!("(SELECT r.settled_xid FROM {SCHEMA}.app_outbox_relay r ORDER BY 1 LIMIT 1)");
    let is_settled = is_settled_sql("c.xmin", &settled_xid);
    // spliced: the names of the columns.
    format!(
        "{is_old}
         AND {is_settled}
         AND {is_own}
         AND NOT EXISTS (SELECT FROM {SCHEMA}.app_outbox_dispatch d
                          WHERE d.event_id = {event_id} AND d.status IN ('retrying', 'dead'))"
    )
}

/// Returns the SQL condition for rows whose event is old enough.
pub(super) fn is_old(occurred_at: &str, time: TimeType) -> String {
    let before = time.moment_sql("now() - make_interval(secs => $1)");
    format!("c.{} < {before}", quote_identifier(occurred_at))
}

/// Maps a permission error: `prune` needs other permissions than the relay.
pub(super) fn refusal(table: &QualifiedName, error: tokio_postgres::Error) -> ProtocolError {
    let error = PgError::from(error);
    let kind = error.server().map(ServerError::kind);
    match kind == Some(ServerErrorKind::Privilege) {
        true => ProtocolError::PruneDenied { table: table.to_string(), source: Box::new(error) },
        false => error.into(),
    }
}
