//! Transactions of tokio-postgres. The server infers the type of each parameter, and the driver
//! passes that type to the payload.

use std::error;

use bytes::{BufMut as _, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Error, Transaction};

use crate::emitted::Emitted;
use crate::event::Event;
use crate::payload::{JSONB_VERSION, Payload};

impl super::Transaction for &Transaction<'_> {
    type Error = Error;

    async fn query_version(self, sql: &str, event: &Event<'_>) -> Result<i64, Error> {
        let headers = event.header_document();
        self.query_one(sql, &parameters(event, &headers)).await?.try_get(0)
    }

    async fn query_emitted(
        self,
        sql: &str,
        event: &Event<'_>,
        idempotency_key: &str,
    ) -> Result<Emitted, Error> {
        let headers = event.header_document();
        let mut parameters = parameters(event, &headers).to_vec();
        parameters.push(&idempotency_key);
        let row = self.query_one(sql, &parameters).await?;
        Ok(Emitted { event_id: row.try_get(0)?, version: row.try_get(1)?, is_new: row.try_get(2)? })
    }
}

/// Returns the parameters of `app_outbox_emit`, in its order.
fn parameters<'a>(
    event: &'a Event<'_>,
    headers: &'a Option<Payload>,
) -> [&'a (dyn ToSql + Sync); 7] {
    [
        &event.aggregate_type,
        &event.aggregate_id,
        &event.event_type,
        &event.payload,
        &event.expected_version,
        headers,
        &event.schema_version,
    ]
}

impl ToSql for Payload {
    fn to_sql(
        &self,
        column: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn error::Error + Sync + Send>> {
        if *column == Type::JSONB {
            out.put_u8(JSONB_VERSION);
        }
        out.put_slice(self.bytes());
        Ok(IsNull::No)
    }

    fn accepts(column: &Type) -> bool {
        [Type::JSONB, Type::JSON, Type::TEXT, Type::BYTEA].contains(column)
    }

    to_sql_checked!();
}
