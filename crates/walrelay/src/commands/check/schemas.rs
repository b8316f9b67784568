//! Checks whether a topic's schema accepts the payload column. Pub/Sub refuses a message that does
//! not fit its topic's schema, and the relay records the row as dead.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{Encoding, SchemaSettings};
use walrelay_core::RouterConfig;
use walrelay_errors::Code;
use walrelay_outbox_admin::Finding;
use walrelay_outbox_admin::protocols::column_of;
use walrelay_pg_client::{PgError, QualifiedName, SqlClient, sql};

/// The name that Pub/Sub returns for a deleted schema (`Topic.schema_settings`).
const DELETED: &str = "_deleted-schema_";

/// The payload column of an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    table: String,
    /// The Postgres type name: `jsonb`, `bytea` …
    kind: String,
}

/// Returns the payload columns of the tables that have one.
pub(super) async fn payloads(
    client: &SqlClient,
    router: &RouterConfig,
    tables: &[QualifiedName],
) -> Result<Vec<Payload>, PgError> {
    let mut payloads = Vec::new();
    for table in tables {
        let column = column_of(client, table, &router.columns.payload).await?;
        let sql = sql!("schemas.sql", "column_type");
        let table = table.to_string();
        let rows = client.query(sql, &[&table, &column]).await?;
        payloads.extend(rows.iter().map(|row| Payload { table: table.clone(), kind: row.get(0) }));
    }
    Ok(payloads)
}

pub(super) fn about(topic: &str, schema: &SchemaSettings, payloads: &[Payload]) -> Finding {
    let subject = format!("topic {topic}");
    let passed = |message: String| Finding::passed("topic-schema", subject.clone(), message);
    if schema.schema == DELETED {
        let message = "its schema was deleted: Pub/Sub refuses every message";
        return Finding::error(Code::TopicSchemaDiffers, subject, message)
            .fix(format!("gcloud pubsub topics update {topic} --clear-schema-settings"));
    }
    let name = &schema.schema;
    let of = |types: &[&str]| payloads.iter().find(|it| types.contains(&it.kind.as_str()));
    match schema.encoding() {
        Encoding::Binary => match of(&["jsonb", "json", "text", "character varying", "xml"]) {
            Some(Payload { table, kind }) => {
                let message = format!(
                    "its schema {name} takes messages in binary form, and the payload of {table} is {kind}: \
                     Pub/Sub refuses each of its rows, and they are recorded as dead"
                );
                Finding::error(Code::TopicSchemaDiffers, subject, message).fix(
                    "give the topic the encoding JSON, or make the payload a bytea in the schema's binary form",
                )
            }
            None => passed(format!("its schema {name} takes bytes, as the payload is")),
        },
        Encoding::Json => match of(&["bytea"]) {
            Some(Payload { table, .. }) => {
                let message = format!(
                    "its schema {name} takes JSON, and the payload of {table} is bytea: Pub/Sub refuses rows whose \
                     bytes are no JSON, and they are recorded as dead"
                );
                Finding::warning(Code::TopicSchemaDiffers, subject, message)
                    .fix("make the payload jsonb, or give the topic the encoding BINARY")
            }
            None => passed(format!("its schema {name} takes JSON, as the payload is")),
        },
        Encoding::Unspecified => passed(format!("its schema {name} names no encoding")),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_admin::CheckResult;

    use super::*;

    const PASSED: CheckResult = CheckResult::Passed("topic-schema");

    fn result(encoding: Encoding, kinds: &[&str]) -> CheckResult {
        let payloads: Vec<Payload> = kinds
            .iter()
            .map(|kind| Payload { table: "app_outbox".into(), kind: (*kind).to_owned() })
            .collect();
        let schema = SchemaSettings {
            schema: "projects/p/schemas/s".into(),
            encoding: encoding.into(),
            ..SchemaSettings::default()
        };
        about("t", &schema, &payloads).result
    }

    #[test]
    fn a_schema_that_takes_no_payload_of_this_type_is_to_be_mended() {
        assert_eq!(
            result(Encoding::Binary, &["jsonb"]),
            CheckResult::Error(Code::TopicSchemaDiffers)
        );
        assert_eq!(
            result(Encoding::Binary, &["bytea", "text"]),
            CheckResult::Error(Code::TopicSchemaDiffers)
        );
        assert_eq!(result(Encoding::Binary, &["bytea"]), PASSED);
        assert_eq!(
            result(Encoding::Json, &["bytea"]),
            CheckResult::Warning(Code::TopicSchemaDiffers)
        );
        assert_eq!(result(Encoding::Json, &["jsonb", "text"]), PASSED);
        let deleted = SchemaSettings { schema: DELETED.into(), ..SchemaSettings::default() };
        let found = about("t", &deleted, &[]);
        assert_eq!(found.result, CheckResult::Error(Code::TopicSchemaDiffers));
        assert!(found.fix.contains("--clear-schema-settings"), "{}", found.fix);
    }
}
