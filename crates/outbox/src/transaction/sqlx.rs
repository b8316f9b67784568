//! Transactions of sqlx. The driver would declare a type for each parameter, but the type of the
//! payload is known only to the server. So the statement is prepared first, without types.
//! The connection caches it, so later events of a connection need one round trip.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgRow, PgStatement, PgTypeInfo};
use sqlx::query::Query;
use sqlx::{
    Either, Encode, Error, Executor as _, PgConnection, Postgres, Row as _, Statement as _, Type,
    TypeInfo as _,
};

use crate::emitted::Emitted;
use crate::event::Event;
use crate::payload::{JSONB_VERSION, Payload};

/// The number of the payload among the parameters of `app_outbox_emit`, from 0.
const PAYLOAD: usize = 3;

/// The type of a parameter whose type the server infers.
const UNSPECIFIED: Oid = Oid(0);

impl super::Transaction for &mut PgConnection {
    type Error = Error;

    async fn query_version(self, sql: &str, event: &Event<'_>) -> Result<i64, Error> {
        let statement = self.prepare(sql).await?;
        bind(&statement, event).fetch_one(self).await?.try_get(0)
    }

    async fn query_emitted(
        self,
        sql: &str,
        event: &Event<'_>,
        idempotency_key: &str,
    ) -> Result<Emitted, Error> {
        let statement = self.prepare(sql).await?;
        let query = bind(&statement, event).bind(idempotency_key);
        let row: PgRow = query.fetch_one(self).await?;
        Ok(Emitted { event_id: row.try_get(0)?, version: row.try_get(1)?, is_new: row.try_get(2)? })
    }
}

/// Binds the parameters of `app_outbox_emit`, in its order.
fn bind<'a>(
    statement: &'a PgStatement<'_>,
    event: &'a Event<'_>,
) -> Query<'a, Postgres, PgArguments> {
    let types = statement.parameters().and_then(Either::left).unwrap_or_default();
    let is_jsonb = types.get(PAYLOAD).is_some_and(|column| column.name() == "JSONB");
    let payload = match is_jsonb {
        true => Document::Jsonb(event.payload.clone()),
        false => Document::Plain(event.payload.clone()),
    };
    statement
        .query()
        .bind(event.aggregate_type)
        .bind(event.aggregate_id)
        .bind(event.event_type)
        .bind(payload)
        .bind(event.expected_version)
        .bind(event.header_document().map(Document::Jsonb))
        .bind(event.schema_version)
}

/// A payload in the binary form of its column.
enum Document {
    Jsonb(Payload),
    /// Of `json`, `text` and `bytea`, whose binary form is the bytes themselves.
    Plain(Payload),
}

impl Type<Postgres> for Document {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UNSPECIFIED)
    }
}

impl Encode<'_, Postgres> for Document {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let payload = match self {
            Self::Jsonb(payload) => {
                out.push(JSONB_VERSION);
                payload
            }
            Self::Plain(payload) => payload,
        };
        out.extend_from_slice(payload.bytes());
        Ok(IsNull::No)
    }
}
