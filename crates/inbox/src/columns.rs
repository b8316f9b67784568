//! The events of a batch as parameters of a statement, and stored messages as events.
//!
//! Columns are sent as arrays of built-in types, which need no look-up of the composite type's OID.

use std::borrow::Borrow;
use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::{PgLsn, ToSql, Type};
use walrelay_envelope::Lsn;

use crate::apply::apply_options::Plan;
use crate::attributes::Attributes;
use crate::event::Event;
use walrelay_pg_client::{Parameter, SqlText, sql};

pub(crate) type Owned<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

pub(crate) fn borrowed<'a>(owned: &'a [Owned<'a>]) -> Vec<Parameter<'a>> {
    owned.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect()
}

/// The messages as an expression of the parameters `$3` to `$17`. `$1` is the consumer, `$2` its
/// generation.
pub(crate) static MESSAGES: SqlText = SqlText::new(|| sql!("columns.sql", "messages"));

/// The columns of an `app_inbox_message`, in the order that [`of_row`] expects.
pub(crate) static FIELDS: SqlText = SqlText::new(|| sql!("columns.sql", "fields"));

/// The events of a batch, column by column.
pub(crate) struct Columns<'a, E> {
    events: &'a [E],
}

impl<'a, E: Borrow<Event>> Columns<'a, E> {
    pub(crate) fn of(events: &'a [E]) -> Self {
        Self { events }
    }

    fn column<T: ToSql + Sync + Send + 'a>(
        &self,
        kind: Type,
        value: impl Fn(&'a Event) -> T,
    ) -> Owned<'a> {
        let values: Vec<T> = self.events.iter().map(|event| value(event.borrow())).collect();
        (Box::new(values), kind)
    }

    /// Returns the parameters `$1` to `$17`.
    pub(crate) fn parameters(&'a self, plan: &'a Plan) -> Vec<Owned<'a>> {
        let lsn = |event: &'a Event| event.commit_lsn.map(|lsn| PgLsn::from(lsn.as_u64()));
        vec![
            (Box::new(&plan.consumer), Type::TEXT),
            (Box::new(plan.generation), Type::INT4),
            self.column(Type::TEXT_ARRAY, |event| &event.event_id),
            self.column(Type::TEXT_ARRAY, |event| &event.event_type),
            self.column(Type::TEXT_ARRAY, |event| &event.aggregate_type),
            self.column(Type::TEXT_ARRAY, |event| &event.aggregate_id),
            self.column(Type::TEXT_ARRAY, |event| &event.ordering_key),
            self.column(Type::INT8_ARRAY, |event| event.version),
            self.column(Type::INT4_ARRAY, |event| event.schema_version),
            self.column(Type::TIMESTAMPTZ_ARRAY, |event| event.occurred_at),
            self.column(Type::PG_LSN_ARRAY, lsn),
            self.column(Type::INT4_ARRAY, |event| event.tx_index),
            self.column(Type::TEXT_ARRAY, |event| &event.system_identifier),
            self.column(Type::TEXT_ARRAY, |event| &event.message_id),
            self.column(Type::TIMESTAMPTZ_ARRAY, |event| event.publish_time),
            self.column(Type::TEXT_ARRAY, |event| event.attributes.as_json()),
            self.column(Type::BYTEA_ARRAY, |event| event.data.as_ref()),
        ]
    }
}

/// Reads a stored message from a row with [`FIELDS`].
pub(crate) fn of_row(row: &Row) -> Event {
    let lsn: Option<PgLsn> = row.get(8);
    let attributes: Option<String> = row.get(13);
    let time = |index: usize| row.get::<_, Option<SystemTime>>(index);
    Event {
        event_id: row.get(0),
        event_type: row.get(1),
        aggregate_type: row.get(2),
        aggregate_id: row.get(3),
        ordering_key: row.get(4),
        version: row.get(5),
        schema_version: row.get(6),
        occurred_at: time(7),
        commit_lsn: lsn.map(|lsn| Lsn::new(lsn.into())),
        tx_index: row.get(9),
        system_identifier: row.get(10),
        message_id: row.get::<_, Option<String>>(11).unwrap_or_default(),
        publish_time: time(12),
        attributes: attributes.map(Attributes::of_json).unwrap_or_default(),
        data: Bytes::from(row.get::<_, Option<Vec<u8>>>(14).unwrap_or_default()),
    }
}
