//! State of rows that are read from the outbox table again, as dispatch state records it.
//!
//! The table has each row as it was written. Dispatch state shows whether somebody edited the row's
//! message, discarded the row, or whether it was never published.

use std::collections::BTreeMap;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};
use walrelay_core::{ColumnAliases, ColumnNames, RouterConfig, Template};
use walrelay_outbox_store::DispatchStatus;
use walrelay_outbox_store::{Outbox, Shard};
use walrelay_pg_client::{SCHEMA, SqlError, in_schema};
use walrelay_pg_client::{quote_identifier, quote_literal, sql, text_form_sql};

use crate::admin_error::AdminError;
use crate::rows::unsettled_rows::SourceTable;

/// Maximum bytes of edited messages in memory. People edit few rows by hand.
const EDITED_BYTES_MAX: i64 = 64 << 20;

/// Rows of an outbox to leave out: those of other topics, unless somebody gave them this topic, and
/// those with some status in dispatch state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutRows {
    /// The rows that stay.
    pub topic: TopicRows,
    pub slots: OutboxSlots,
    pub statuses: Vec<DispatchStatus>,
}

impl LeftOutRows {
    /// Returns the table without these rows.
    #[must_use]
    pub fn of(&self, table: SourceTable) -> SourceTable {
        let having = self.slots.having(&table, &self.statuses);
        let (by_template, by_edit) =
            (self.topic.filter(&table, "t"), self.slots.edited_to(&table, self.topic.topic()));
        table.with_condition(&format!("({by_template} OR {by_edit}) AND NOT {having}"))
    }
}

/// The rows that the relay publishes to one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRows {
    topic: String,
    project: String,
    template: Template,
    columns: ColumnNames,
}

impl TopicRows {
    /// Selects the rows that this router sends to `topic`, a full name.
    #[must_use]
    pub fn new(topic: String, router: &RouterConfig) -> Self {
        let (project, columns) = (router.project.clone(), router.columns.clone());
        Self { topic, project, template: router.topic.clone(), columns }
    }

    /// Returns the full name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns a row filter for an outbox table, whose row has this alias.
    #[must_use]
    pub fn filter(&self, table: &SourceTable, alias: &str) -> String {
        let mut name = "''::text".to_owned();
        for part in self.template.parts() {
            name.push_str(" || ");
            name.push_str(&match part {
                Ok(literal) => quote_literal(literal),
                Err(column) => {
                    let column = quote_identifier(&self.column(table, column));
                    text_form_sql(&format!("{alias}.{column}"))
                }
            });
        }
        let home = format!("projects/{}/topics/", self.project);
        let names = [Some(self.topic.as_str()), self.topic.strip_prefix(&home)];
        let leads_here =
            |topic: &&str| self.template.full_topic_name(&self.project, topic) == self.topic;
        let names = names.into_iter().flatten().filter(leads_here);
        let names: Vec<_> = names.map(quote_literal).collect();
        format!("({name}) = ANY (ARRAY[{}]::text[])", names.join(", "))
    }

    /// Returns the column of the table that a name in the template means. If the table has none, it
    /// returns the name, so that the server's error shows it.
    fn column(&self, table: &SourceTable, name: &str) -> String {
        let names = self.columns.resolve(name).unwrap_or_else(|| ColumnAliases::parse(name));
        let found = names.iter().find(|one| table.column(Some(one)).is_some());
        found.unwrap_or(name).to_owned()
    }
}

/// The slots of an outbox that may have rows in dispatch state: its own slot, and its shards'
/// slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxSlots(Vec<String>);

impl OutboxSlots {
    pub async fn read(client: &Client, outbox: &Outbox) -> Result<Self, AdminError> {
        let base = outbox.base_slot();
        let sql = in_schema!(
            "SELECT slot FROM public.app_outbox_relay WHERE starts_with(slot, $1) ORDER BY 1"
        );
        let rows = client.query_typed(sql, &[(&base, Type::TEXT)]).await;
        let rows = rows.map_err(AdminError::sql("read the slots of the outbox"))?;
        let names = rows.iter().map(|row| row.get::<_, String>("slot"));
        Ok(Self(names.filter(|name| Shard::of_name(name, base).is_some()).collect()))
    }

    /// Returns the edited messages by event id. The rows are published or retrying.
    ///
    /// # Errors
    ///
    /// The messages need too much memory.
    pub async fn edited(&self, client: &Client) -> Result<BTreeMap<String, Vec<u8>>, AdminError> {
        const FAILED: &str = "read edited messages";
        let slots = [(&self.0 as &(dyn tokio_postgres::types::ToSql + Sync), Type::TEXT_ARRAY)];
        let size = sql!("outbox_state.sql", "edited_bytes");
        let sum = client.query_typed_one(size, &slots).await.map_err(AdminError::sql(FAILED))?;
        let bytes: i64 = sum.get("bytes");
        if bytes > EDITED_BYTES_MAX {
            return Err(AdminError::Sql(SqlError::UnexpectedValue {
                column: "app_outbox_dispatch.message",
                value: format!("{bytes} bytes of edited messages"),
                expected: "at most 64 MiB of edited messages",
            }));
        }
        // Only an edit of the row itself counts, not the edit of a copy that a replay added.
        let sql = sql!("outbox_state.sql", "edited");
        let rows = client.query_typed(sql, &slots).await.map_err(AdminError::sql(FAILED))?;
        Ok(rows.iter().map(|row| (row.get("event_id"), row.get("message"))).collect())
    }

    /// Returns a position that no unpublished row precedes. It precedes every row that this server
    /// has yet to publish, also if the record is that of another server with a longer WAL.
    pub async fn settled_lsn(&self, client: &Client) -> Result<Lsn, AdminError> {
        let slots = [(&self.0 as &(dyn tokio_postgres::types::ToSql + Sync), Type::TEXT_ARRAY)];
        let row = client.query_typed_one(sql!("outbox_state.sql", "settled_lsn"), &slots).await;
        let row = row.map_err(AdminError::sql("read what is settled"))?;
        let settled: Option<PgLsn> = row.get("settled_lsn");
        Ok(settled.map_or(Lsn::ZERO, |it| Lsn::new(it.into())))
    }

    /// Returns a row filter for an outbox table: rows to which an edit gave this topic.
    fn edited_to(&self, table: &SourceTable, topic: &str) -> String {
        // spliced: the name of the id's column, and values of a row filter, which takes no parameters.
        format!(
            "{} IN (SELECT d.event_id FROM {SCHEMA}.app_outbox_dispatch AS d WHERE d.slot = ANY ({}) \
               AND d.replay_id = '' AND d.edited_at IS NOT NULL AND d.topic = {})",
            table.event_id(),
            text_array(self.0.iter().map(String::as_str)),
            quote_literal(topic)
        )
    }

    /// Returns a row filter for an outbox table: rows that dispatch state has with one of these
    /// statuses.
    #[must_use]
    pub fn having(&self, table: &SourceTable, statuses: &[DispatchStatus]) -> String {
        // spliced: the name of the id's column, and values of a row filter, which takes no parameters.
        format!(
            "EXISTS (SELECT FROM {SCHEMA}.app_outbox_dispatch AS d WHERE d.slot = ANY ({}) \
               AND d.replay_id = '' AND d.event_id = {} AND d.status = ANY ({}))",
            text_array(self.0.iter().map(String::as_str)),
            table.event_id(),
            text_array(statuses.iter().map(|status| status.as_str()))
        )
    }
}

fn text_array<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = values.map(quote_literal).collect();
    format!("ARRAY[{}]::text[]", quoted.join(", "))
}
