//! Which topics the rows of an outbox lead to, as far as it can be known before they stream.

use std::collections::BTreeSet;

use walrelay_core::{Names, RouterConfig};
use walrelay_postgres::{PgError, QualifiedName, SqlClient, quote_identifier};

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
