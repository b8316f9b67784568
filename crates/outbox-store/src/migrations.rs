//! The tables, as SQL that is safe to run again.
//!
//! The files in `migrations/` are the source. They are embedded here, so that `walrelay init` and
//! `psql -f` do the same. Each file is one `DO` statement and therefore atomic. There is no history
//! table, because each file checks by itself what already exists.

use tokio_postgres::Client;
use walrelay_pg_client::{
    QualifiedName, own_table, quote_identifier, quote_literal, schema, schema_sql,
};

use crate::store_error::StoreError;

const APP_OUTBOX: &str = include_str!("../../../migrations/0001_app_outbox.sql");
const DISPATCH: &str = include_str!("../../../migrations/0002_dispatch.sql");
const PRODUCER: &str = include_str!("../../../migrations/0003_producer.sql");
const REPLAY: &str = include_str!("../../../migrations/0004_replay.sql");
const SNAPSHOT: &str = include_str!("../../../migrations/0005_snapshot.sql");
const PARTITIONS: &str = include_str!("../../../migrations/0006_partitions.sql");

/// The tables the relay keeps for itself, in the order they are created.
pub const RELAY_TABLES: [&str; 4] =
    [DEFINITION_TABLE, "app_outbox_dispatch", "app_outbox_relay", "app_outbox_hold"];

/// What is wrong with an unlogged table of the relay.
pub const UNLOGGED: &str = "is unlogged: a crash of the server empties it, and its rows are lost";

/// The table of definitions. Only `walrelay init` writes it.
pub const DEFINITION_TABLE: &str = "app_outbox_definition";

/// The additional tables of a replay. A relay works without them.
pub const REPLAY_TABLES: [&str; 2] = ["app_outbox_relay_time", "app_outbox_replay"];

/// The tables of the producer's functions, in the schema of the outbox.
const PRODUCER_TABLES: [&str; 2] = ["app_outbox_aggregate", "app_outbox_key"];

/// One file, rendered for one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Name of the file in `migrations/`, or `schema` for the creation of the schema.
    pub file: &'static str,
    /// The tables that the file creates if they are missing.
    pub tables: Vec<QualifiedName>,
    /// One SQL statement, atomic and safe to run again.
    pub sql: String,
}

impl Migration {
    /// Returns the migration that creates the outbox as a partitioned table. Other migrations do
    /// not change.
    #[must_use]
    pub fn partitioned(mut self) -> Self {
        for (plain, partitioned) in PARTITIONED {
            self.sql = self.sql.replacen(plain, partitioned, 1);
        }
        self
    }
}

/// The texts of the outbox file that differ for a partitioned table. The primary key of a
/// partitioned table contains the partition key.
const PARTITIONED: [(&str, &str); 2] = [
    (
        "    id             uuid        PRIMARY KEY DEFAULT gen_random_uuid(), -- event id",
        "    id             uuid        NOT NULL DEFAULT gen_random_uuid(), -- event id",
    ),
    (
        "    occurred_at    timestamptz NOT NULL DEFAULT now()\n  );",
        "    occurred_at    timestamptz NOT NULL DEFAULT now(),\n    PRIMARY KEY (id, occurred_at)\n  ) PARTITION BY RANGE (occurred_at);",
    ),
];

/// Returns the migrations for these outbox tables, in execution order.
#[must_use]
pub fn migrations(outbox_tables: &[QualifiedName]) -> Vec<Migration> {
    let outboxes = outbox_tables.iter().map(|table| Migration {
        file: "0001_app_outbox.sql",
        tables: vec![table.clone()],
        sql: render_outbox(table),
    });
    let dispatch = Migration {
        file: "0002_dispatch.sql",
        tables: RELAY_TABLES.map(own_table).into(),
        sql: schema().qualify(DISPATCH).into_owned(),
    };
    // The functions are named after the outbox, and are in its schema.
    let producers = outbox_tables.iter().filter(|table| table.table() == "app_outbox");
    let of_producers = |file, names: &'static [&str], text| {
        producers.clone().map(move |table| Migration {
            file,
            tables: names.iter().map(|name| QualifiedName::new(table.schema(), *name)).collect(),
            sql: render_producer(text, table),
        })
    };
    let emitting = of_producers("0003_producer.sql", &PRODUCER_TABLES, PRODUCER);
    let snapshots = of_producers("0005_snapshot.sql", &["app_outbox_snapshot"], SNAPSHOT);
    let replay = Migration {
        file: "0004_replay.sql",
        tables: REPLAY_TABLES.map(own_table).into(),
        sql: schema().qualify(REPLAY).into_owned(),
    };
    let partitions = Migration {
        file: "0006_partitions.sql",
        tables: vec![own_table("app_outbox_partitioning")],
        sql: schema().qualify(PARTITIONS).into_owned(),
    };
    let after_producers = [replay].into_iter().chain(snapshots).chain([partitions]);
    let creation = schema_sql().map(|sql| Migration {
        file: "schema",
        tables: Vec::new(),
        sql: sql.to_owned(),
    });
    let of_tables = outboxes.chain([dispatch]).chain(emitting).chain(after_producers);
    creation.into_iter().chain(of_tables).collect()
}

/// Returns the tables that the migrations create in the schema, without the outbox.
#[must_use]
pub fn relay_tables() -> Vec<QualifiedName> {
    let names = RELAY_TABLES.into_iter().chain(REPLAY_TABLES);
    names.map(own_table).collect()
}

/// Creates the tables that are missing.
///
/// # Errors
///
/// The action names the file. Earlier files have taken effect.
pub async fn migrate(client: &Client, outbox_tables: &[QualifiedName]) -> Result<(), StoreError> {
    for Migration { file, sql, .. } in migrations(outbox_tables) {
        client
            .batch_execute(&sql)
            .await
            .map_err(StoreError::sql(format!("run migration {file}")))?;
    }
    Ok(())
}

/// Renders the outbox file for another table, with its guard function in that table's schema.
fn render_outbox(table: &QualifiedName) -> String {
    let guard = format!("{}.app_outbox_is_append_only", quote_identifier(table.schema()));
    // Longest first, because each text contains the next. A literal contains the quoted name,
    // quoted again.
    let replacements = [
        ("'public.app_outbox_is_append_only()'", quote_literal(&format!("{guard}()"))),
        ("public.app_outbox_is_append_only", guard),
        ("'public.app_outbox'", quote_literal(&table.to_string())),
        ("public.app_outbox", table.to_string()),
    ];
    replace_each(APP_OUTBOX, &replacements)
}

/// Renders a file of the producer's functions for the outbox of another schema.
fn render_producer(text: &str, table: &QualifiedName) -> String {
    let schema = quote_identifier(table.schema());
    let literal = |name: &str| quote_literal(&format!("{schema}.{name}"));
    // Longest first, because each text contains the next.
    let replacements = [
        ("'public.app_outbox_aggregate'", literal("app_outbox_aggregate")),
        ("'public.app_outbox_key'", literal("app_outbox_key")),
        ("'public.app_outbox_payload_bytes'", literal("app_outbox_payload_bytes")),
        ("'public.app_outbox_payload'", literal("app_outbox_payload")),
        ("'public.app_outbox_snapshot'", literal("app_outbox_snapshot")),
        ("'public.app_outbox_capture()'", literal("app_outbox_capture()")),
        ("'public.app_outbox'", quote_literal(&table.to_string())),
        ("public.app_outbox_", format!("{schema}.app_outbox_")),
        ("public.app_outbox", table.to_string()),
    ];
    replace_each(text, &replacements)
}

/// Replaces the first matching text at each place. Inserted text is not replaced again.
fn replace_each(text: &str, replacements: &[(&str, String)]) -> String {
    let mut rendered = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if let Some((from, to)) = replacements.iter().find(|(from, _)| rest.starts_with(from)) {
            rendered.push_str(to);
            rest = &rest[from.len()..];
        } else {
            rendered.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    rendered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_table_renders_to_the_file_itself() {
        let default = QualifiedName::new("public", "app_outbox");
        assert_eq!(render_outbox(&default), APP_OUTBOX);
        assert_eq!(render_producer(PRODUCER, &default), PRODUCER);
        assert_eq!(render_producer(SNAPSHOT, &default), SNAPSHOT);
    }

    #[test]
    fn a_partitioned_outbox_has_another_primary_key() {
        let table = QualifiedName::new("billing", "events");
        let mut changed = Vec::new();
        for migration in migrations(&[table]) {
            let partitioned = migration.clone().partitioned();
            if partitioned != migration {
                assert!(partitioned.sql.contains(") PARTITION BY RANGE (occurred_at);"));
                assert!(!partitioned.sql.contains("uuid        PRIMARY KEY"));
                changed.push(migration.file);
            }
        }
        assert_eq!(changed, ["0001_app_outbox.sql"]);
    }

    #[test]
    fn another_table_leaves_no_trace_of_the_default_one() {
        let sql = render_outbox(&QualifiedName::new("billing", "events"));
        assert!(!sql.contains("public.app_outbox"), "{sql}");
        assert!(sql.contains("CREATE TABLE billing.events ("), "{sql}");
        let billing = QualifiedName::new("billing", "app_outbox");
        for text in [PRODUCER, SNAPSHOT] {
            let rendered = render_producer(text, &billing);
            assert!(!rendered.contains("public.app_outbox"), "{rendered}");
        }
        let producer = render_producer(PRODUCER, &billing);
        assert!(producer.contains("CREATE TABLE billing.app_outbox_aggregate ("), "{producer}");
    }
}
