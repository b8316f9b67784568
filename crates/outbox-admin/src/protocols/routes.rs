//! Derives the topics that the rows of an outbox lead to, as far as they are known before
//! streaming.

use std::collections::BTreeSet;

use walrelay_core::limits::is_topic_name;
use walrelay_core::{CallCode, ColumnAliases, RouterConfig, Template};
use walrelay_outbox_replay::read_row_filter;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{
    PgError, SqlClient, TableAccess, own_rows_sql, quote_identifier, refuse_hidden_rows,
    text_form_sql,
};
use walrelay_pubsub::{Admin, PubsubError};
use walrelay_relay::settings::Settings;

use super::protocol_error::ProtocolError;
use super::table_columns::column_of;

/// Most topics read from one table. If an outbox has more, its topics depend on an unbounded value,
/// and no list would be complete.
const TOPICS_MAX: usize = 1000;

/// The topics of the rows that are in the tables now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Full names of the topics.
    pub topics: BTreeSet<String>,
    /// Rows whose topic can never exist.
    pub nowhere: Option<InvalidTopicRows>,
}

/// Rows whose topic name is invalid. The relay records them as dead and continues, so such rows do
/// not prevent a start.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidTopicRows {
    pub rows: u64,
    /// One of the invalid names.
    pub example: String,
}

/// Most characters read of a column. A longer value cannot be part of a topic name, and may be very
/// large.
const READ_CHARACTERS: u32 = 1_024;

impl Routes {
    fn add(&mut self, name: String, rows: u64) {
        if is_topic_name(&name) {
            self.topics.insert(name);
            return;
        }
        let nowhere = self.nowhere.get_or_insert(InvalidTopicRows { rows: 0, example: name });
        nowhere.rows += rows;
    }
}

/// Returns the topic if all rows have the same one, independent of their columns.
#[must_use]
pub fn constant_topic(router: &RouterConfig) -> Option<Routes> {
    let is_one = router.topic.columns().next().is_none();
    let name = || router.topic.full_topic_name(&router.project, &router.topic.to_string());
    is_one.then(|| Routes { topics: [name()].into(), nowhere: None })
}

/// Returns the topics of the rows that are in the tables now, without those that the publication
/// leaves out.
///
/// # Errors
///
/// Row level security hides the rows of a table.
pub async fn of_rows(
    client: &SqlClient,
    router: &RouterConfig,
    outbox: &Outbox,
) -> Result<Routes, ProtocolError> {
    let tables = &outbox.tables;
    let template = router.topic.to_string();
    let columns: Vec<&str> = router.topic.columns().collect();
    if let Some(routes) = constant_topic(router) {
        return Ok(routes);
    }
    refuse_hidden_rows(client, tables, TableAccess::Read).await?;
    let mut routes = Routes::default();
    for table in tables {
        let mut selected = Vec::new();
        for name in &columns {
            let names = router.columns.resolve(name).unwrap_or_else(|| ColumnAliases::parse(name));
            let column = column_of(client, table, &names).await?;
            let text = text_form_sql(&format!("t.{}", quote_identifier(&column)));
            selected.push(format!("left({text}, {READ_CHARACTERS})"));
        }
        let is_own = own_rows_sql(table, "t");
        let filter = read_row_filter(client, outbox, table).await?;
        let filter = filter.as_deref().unwrap_or("true");
        let groups: Vec<_> = (1..=columns.len()).map(|number| number.to_string()).collect();
        // spliced: the table, its columns and the row filter.
        let sql = format!(
            "SELECT {}, count(*) AS rows FROM {table} t WHERE {is_own} AND ({filter})
              GROUP BY {} LIMIT {TOPICS_MAX}",
            selected.join(", "),
            groups.join(", ")
        );
        for row in client.query(&sql, &[]).await.map_err(PgError::from)? {
            let values: Vec<String> =
                (0..columns.len()).map(|index| row.get::<_, String>(index)).collect();
            let rows = row.get::<_, i64>("rows").unsigned_abs();
            let expanded = render(&template, &values);
            routes.add(router.topic.full_topic_name(&router.project, &expanded), rows);
        }
    }
    Ok(routes)
}

/// Refuses to publish rows again to a missing topic, because the replay would wait for the topic
/// for ever. Without the permission to check, it only warns: the role may still be able to publish.
pub async fn refuse_missing(
    client: &SqlClient,
    settings: &Settings,
    to_topic: &str,
) -> Result<(), ProtocolError> {
    let relay = &settings.relay;
    let router = RouterConfig { topic: template(to_topic)?, ..relay.router.clone() };
    // The replay itself reports rows with an invalid topic, with their positions.
    let topics = of_rows(client, &router, &relay.outbox).await?.topics;
    let admin = Admin::connect(&settings.pubsub.publisher.endpoint)?;
    for topic in topics {
        match admin.topic_exists(&topic).await {
            Ok(true) => {}
            Ok(false) => return Err(ProtocolError::TopicMissing { topic }),
            Err(error @ PubsubError::Topic { code: CallCode::PermissionDenied, .. }) => {
                tracing::warn!(%error, "it is unknown whether the topic exists");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn template(text: &str) -> Result<Template, ProtocolError> {
    Template::parse(text)
        .map_err(|error| ProtocolError::TopicTemplate { template: text.to_owned(), error })
}

/// Returns the full name of a topic in `project`, unless `name` already is a full name.
#[must_use]
pub fn full_name(project: &str, name: &str) -> String {
    match name.starts_with("projects/") {
        true => name.to_owned(),
        false => format!("projects/{project}/topics/{name}"),
    }
}

/// Replaces the columns in braces by the values, in order. The template is known to be valid.
fn render(template: &str, values: &[String]) -> String {
    let mut text = String::new();
    let mut rest = template;
    let mut values = values.iter();
    while let Some((literal, after)) = rest.split_once('{') {
        text.push_str(literal);
        text.push_str(values.next().map_or("", String::as_str));
        rest = after.split_once('}').map_or("", |(_, behind)| behind);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_lead_to_no_possible_topic_are_counted_beside_the_topics() {
        let mut routes = Routes::default();
        for (name, rows) in [("orders.events", 5), ("bad topic!.events", 2), (".events", 1)] {
            routes.add(full_name("p", name), rows);
        }
        assert_eq!(routes.topics, ["projects/p/topics/orders.events".to_owned()].into());
        let nowhere =
            InvalidTopicRows { rows: 3, example: "projects/p/topics/bad topic!.events".into() };
        assert_eq!(routes.nowhere, Some(nowhere));
    }

    #[test]
    fn braces_are_replaced_in_order() {
        let values = ["video".to_owned(), "eu".to_owned()];
        assert_eq!(render("{ aggregatetype }.events-{region}.v1", &values), "video.events-eu.v1");
        assert_eq!(render("plain", &[]), "plain");
        assert_eq!(full_name("p", "t"), "projects/p/topics/t");
        assert_eq!(full_name("p", "projects/q/topics/t"), "projects/q/topics/t");
    }
}
