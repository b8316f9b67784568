//! Which topics the rows of an outbox lead to, as far as it can be known before they stream.

use std::collections::BTreeSet;

use walrelay_core::{Names, RouterConfig, Template};
use walrelay_postgres::{PgError, QualifiedName, SqlClient, quote_identifier};
use walrelay_pubsub::{Admin, PubsubError};
use walrelay_relay::settings::Settings;

use super::columns::column_of;
use crate::error::Error;

/// How many topics are looked for in one table. An outbox with more routes by a value without
/// bounds, so no list would be complete.
const TOPICS_MAX: usize = 1000;

/// The topics of the rows that are in the tables now, by full name.
///
/// # Errors
///
/// A table cannot be read.
pub(super) async fn of_rows(
    client: &SqlClient,
    router: &RouterConfig,
    tables: &[QualifiedName],
) -> Result<BTreeSet<String>, Error> {
    let template = router.topic.to_string();
    let columns: Vec<&str> = router.topic.columns().collect();
    if columns.is_empty() {
        return Ok([full_name(&router.project, &template)].into());
    }
    let mut topics = BTreeSet::new();
    for table in tables {
        let mut selected = Vec::new();
        for name in &columns {
            let names = router.columns.resolve(name).unwrap_or_else(|| Names::parse(name));
            let column = column_of(client, table, &names).await?;
            selected.push(format!("{}::text", quote_identifier(&column)));
        }
        let sql =
            format!("SELECT DISTINCT {} FROM {table} LIMIT {TOPICS_MAX}", selected.join(", "));
        for row in client.query(&sql, &[]).await.map_err(PgError::from)? {
            let values: Vec<String> = (0..columns.len())
                .map(|index| row.get::<_, Option<String>>(index).unwrap_or_default())
                .collect();
            topics.insert(full_name(&router.project, &render(&template, &values)));
        }
    }
    Ok(topics)
}

/// Refuses to publish rows again to a topic that does not exist: it would be waited for, for ever.
/// Whoever may not look may still publish, and is only told.
///
/// # Errors
///
/// One does not exist, a table cannot be read, or Pub/Sub does not answer.
pub(super) async fn refuse_missing(
    client: &SqlClient,
    settings: &Settings,
    to_topic: &str,
) -> Result<(), Error> {
    let relay = &settings.relay;
    let router = RouterConfig { topic: template(to_topic)?, ..relay.router.clone() };
    let topics = of_rows(client, &router, &relay.outbox.tables).await?;
    let admin = Admin::connect(&settings.pubsub.publisher.endpoint)?;
    for topic in topics {
        match admin.topic_exists(&topic).await {
            Ok(true) => {}
            Ok(false) => return Err(Error::TopicMissing { topic }),
            Err(error @ PubsubError::Topic { code: "PERMISSION_DENIED", .. }) => {
                tracing::warn!(%error, "whether the topic exists cannot be told");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The topic of a replay, as it was given.
pub(super) fn template(text: &str) -> Result<Template, Error> {
    Template::parse(text).map_err(|error| Error::Unfit {
        what: format!("the topic {text:?} cannot be read: {error}"),
        hint: "begin anew with another --to-topic",
    })
}

/// `name` in `project`, unless it is a full name already.
pub(super) fn full_name(project: &str, name: &str) -> String {
    match name.starts_with("projects/") {
        true => name.to_owned(),
        false => format!("projects/{project}/topics/{name}"),
    }
}

/// The template, which is known to be well formed, with each pair of braces replaced in turn.
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
    fn braces_are_replaced_in_order() {
        let values = ["video".to_owned(), "eu".to_owned()];
        assert_eq!(render("{ aggregatetype }.events-{region}.v1", &values), "video.events-eu.v1");
        assert_eq!(render("plain", &[]), "plain");
        assert_eq!(full_name("p", "t"), "projects/p/topics/t");
        assert_eq!(full_name("p", "projects/q/topics/t"), "projects/q/topics/t");
    }
}
