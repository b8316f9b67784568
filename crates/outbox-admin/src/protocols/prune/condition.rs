//! The rows of a table that may be deleted.

use walrelay_pg_client::{
    PgError, QualifiedName, SCHEMA, ServerError, ServerErrorKind, TimeType, is_settled_sql,
    own_rows_sql, quote_identifier, text_form_sql,
};

use crate::protocols::protocol_error::ProtocolError;

pub(super) struct Condition {
    pub(super) table: QualifiedName,
    /// SQL condition on a row of `c`, without the age of the event.
    pub(super) may_go: String,
    pub(super) seconds: f64,
    /// Column of the event id.
    pub(super) id: String,
    /// Column of the time of the event.
    pub(super) occurred_at: String,
    /// The type of that column.
    pub(super) time: TimeType,
}

impl Condition {
    /// Returns the SQL condition on a row of `c` that may be deleted. `seconds` is the SQL of the age.
    pub(super) fn text(&self, seconds: &str) -> String {
        format!("{} AND {}", self.is_old(seconds), self.may_go)
    }

    /// Returns the SQL condition on a row of `c` whose event is old enough.
    pub(super) fn is_old(&self, seconds: &str) -> String {
        let before = self.time.moment_sql(&format!("now() - make_interval(secs => {seconds})"));
        format!("c.{} < {before}", quote_identifier(&self.occurred_at))
    }
}

/// Returns the SQL condition for rows that may be deleted at any age. It uses the oldest
/// `settled_xid` of all relays, so that each relay can still recover its own rows.
pub(super) fn may_go(table: &QualifiedName, id: &str) -> String {
    let event_id = text_form_sql(&format!("c.{}", quote_identifier(id)));
    let is_own = own_rows_sql(table, "c");
    let settled_xid =
        format!("(SELECT r.settled_xid FROM {SCHEMA}.app_outbox_relay r ORDER BY 1 LIMIT 1)");
    let is_settled = is_settled_sql("c.xmin", &settled_xid);
    // spliced: the names of the columns.
    format!(
        "{is_settled}
         AND {is_own}
         AND NOT EXISTS (SELECT FROM {SCHEMA}.app_outbox_dispatch d
                          WHERE d.event_id = {event_id} AND d.status IN ('retrying', 'dead'))"
    )
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
