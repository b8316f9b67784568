//! Prints a SQL handler for a table, to start from.

use walrelay_pg_client::{QualifiedName, SCHEMA, SqlClient, quote_identifier, quote_literal, sql};

use walrelay_inbox::InboxError;
use walrelay_inbox::access::failed;

/// A handler for a table, and a warning about the table's privileges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaffold {
    /// The statements that create the handler and revoke its default privileges.
    pub sql: String,
    /// The statement that revokes the web API roles' privileges on the table. `None` if they have
    /// none, or if row level security protects the table.
    pub closing: Option<String>,
}

/// Prints a handler for a table. The handler takes the newest event of each key of a batch, and
/// writes the event unless the table has a newer version.
///
/// # Errors
///
/// Fails if the table does not exist, or its primary key is not one column.
pub async fn scaffold(client: &SqlClient, table: &QualifiedName) -> Result<Scaffold, InboxError> {
    let sql = sql!("scaffold.sql", "scaffold");
    let rows = client.query(sql, &[&table.to_string()]).await;
    let rows = rows.map_err(failed("read the table's columns"))?;
    let columns: Vec<Column> = rows
        .iter()
        .map(|row| Column { name: row.get(0), kind: row.get(1), is_key: row.get(2) })
        .collect();
    let keys = columns.iter().filter(|column| column.is_key).count();
    if keys != 1 {
        return Err(InboxError::Table {
            table: table.to_string(),
            problem: match columns.is_empty() {
                true => "there is no such table",
                false => "a handler is printed for a table whose primary key is one column",
            },
        });
    }
    let roles = web_roles(client, table).await?;
    let closing = roles
        .iter()
        .any(|role| role.may_use_the_table)
        .then(|| format!("REVOKE ALL ON TABLE {table} FROM {};", names(&roles)));
    let printed = handler(table, &columns) + &rights(table, &roles, closing.as_deref());
    Ok(Scaffold { sql: printed, closing })
}

/// A role whose privileges everybody on the internet has.
struct WebRole {
    name: String,
    may_use_the_table: bool,
}

/// Finds the web API roles of Supabase, which PostgREST setups elsewhere often copy. Default
/// privileges of the schema grant these roles every privilege on new objects.
async fn web_roles(client: &SqlClient, table: &QualifiedName) -> Result<Vec<WebRole>, InboxError> {
    let sql = sql!("scaffold.sql", "web_roles");
    let rows = client.query(sql, &[&table.to_string()]).await;
    let rows = rows.map_err(failed("look for roles of a web API"))?;
    Ok(rows.iter().map(|row| WebRole { name: row.get(0), may_use_the_table: row.get(1) }).collect())
}

fn names(roles: &[WebRole]) -> String {
    roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Returns the statement that revokes the web API roles' privileges on the handler. The statement
/// for the table is only printed as a comment, because the API may be meant to serve the table.
fn rights(table: &QualifiedName, roles: &[WebRole], closing: Option<&str>) -> String {
    if roles.is_empty() {
        return String::new();
    }
    let function = function_of(table);
    let mut text = format!(
        "\n-- Default privileges give functions to everybody on the internet, through these roles and PUBLIC. A role of\n\
         -- the consumer's own then needs GRANT EXECUTE.\n\
         REVOKE ALL ON FUNCTION {function}({SCHEMA}.app_inbox_event[]) FROM PUBLIC, {};\n",
        names(roles)
    );
    if let Some(closing) = closing {
        text.push_str(&format!(
            "-- So is the table open: they may read or write it, and row level security is off. Unless that is meant:\n\
             -- {closing}\n"
        ));
    }
    text
}

fn function_of(table: &QualifiedName) -> QualifiedName {
    QualifiedName::new(table.schema(), format!("apply_{}", table.table()))
}

struct Column {
    name: String,
    kind: String,
    is_key: bool,
}

impl Column {
    /// Returns the SQL expression for the column's value.
    fn source(&self) -> String {
        match (self.is_key, self.name.as_str()) {
            (true, _) => format!("e.aggregate_id::{}", self.kind),
            (false, "version") => "e.version".to_owned(),
            (false, "payload") => "e.payload".to_owned(),
            (false, "occurred_at" | "updated_at") => "e.occurred_at".to_owned(),
            (false, name) if ["json", "jsonb"].contains(&self.kind.as_str()) => {
                format!("(e.payload -> {})::{}", quote_literal(name), self.kind)
            }
            // JSON writes an array in brackets, which Postgres does not read as an array.
            (false, name) if self.kind.ends_with("[]") => {
                let value = format!("e.payload -> {}", quote_literal(name));
                format!(
                    "CASE jsonb_typeof({value}) WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text({value}))::{} END",
                    self.kind
                )
            }
            (false, name) => format!("(e.payload ->> {})::{}", quote_literal(name), self.kind),
        }
    }
}

fn handler(table: &QualifiedName, columns: &[Column]) -> String {
    let function = function_of(table);
    let names: Vec<String> = columns.iter().map(|it| quote_identifier(&it.name)).collect();
    let sources: Vec<String> = columns.iter().map(Column::source).collect();
    let key: Vec<String> =
        columns.iter().filter(|it| it.is_key).map(|it| quote_identifier(&it.name)).collect();
    let sets: Vec<String> = columns
        .iter()
        .filter(|it| !it.is_key)
        .map(|it| quote_identifier(&it.name))
        .map(|name| format!("{name} = excluded.{name}"))
        .collect();
    let gate = match columns.iter().any(|it| it.name == "version") {
        true => {
            "\n    -- An event that was overtaken changes nothing.\n    WHERE t.version < excluded.version"
        }
        false => {
            "\n    -- Without a column \"version\" a late event overwrites a newer one: add one, and\n    \
                  -- WHERE t.version < excluded.version"
        }
    };
    let then = if sets.is_empty() {
        "NOTHING".to_owned()
    } else {
        format!("UPDATE SET\n      {}{gate}", sets.join(",\n      "))
    };
    // spliced: names of the reader's table and columns, in a text that is printed.
    format!(
        "-- The handler {function}, to be edited for your events. A column\n\
         -- is taken from the field of its name in an event's data, and is null where there is none: an event that\n\
         -- has not all that the table requires fails, and waits in the inbox.\n\
         -- It is called with a batch, and sees all of it or nothing: what it writes commits together with\n\
         -- the record that these events were seen. Rows are written in the order of their keys, because two\n\
         -- batches that write the same rows in different orders deadlock.\n\
         CREATE OR REPLACE FUNCTION {function}(events {SCHEMA}.app_inbox_event[]) RETURNS void\n  \
           LANGUAGE sql\nAS $handler$\n  \
         INSERT INTO {table} AS t ({})\n  \
           SELECT {}\n    \
             FROM (\n      \
               -- Of each aggregate only its newest state matters; leave this out to see every event.\n      \
               SELECT DISTINCT ON (n.aggregate_id) n.* FROM unnest(events) AS n\n       \
               -- Every event of the subscription arrives here: name the events that concern this table.\n       \
               -- WHERE n.event_type IN ('OrderPlaced', 'OrderPaid')\n       \
               ORDER BY n.aggregate_id, n.version DESC NULLS LAST) AS e\n   \
            ORDER BY e.aggregate_id\n  \
           ON CONFLICT ({}) DO {then}\n\
         $handler$;\n",
        names.join(", "),
        sources.join(",\n         "),
        key.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_gated_by_version_and_names_every_column() {
        let column = |name: &str, kind: &str, is_key| Column {
            name: name.into(),
            kind: kind.into(),
            is_key,
        };
        let table = QualifiedName::new("shop", "orders");
        let columns = [
            column("id", "uuid", true),
            column("Status", "text", false),
            column("version", "bigint", false),
        ];
        let sql = handler(&table, &columns);
        for part in [
            "CREATE OR REPLACE FUNCTION shop.apply_orders(events public.app_inbox_event[])",
            "INSERT INTO shop.orders AS t (id, \"Status\", version)",
            "e.aggregate_id::uuid",
            "(e.payload ->> 'Status')::text",
            "ON CONFLICT (id) DO UPDATE SET",
            "WHERE t.version < excluded.version",
            "-- WHERE n.event_type IN (",
        ] {
            assert!(sql.contains(part), "{part} is missing in\n{sql}");
        }
    }
    #[test]
    fn a_handler_is_closed_to_the_roles_of_a_web_api_and_an_open_table_is_named() {
        let table = QualifiedName::new("public", "orders");
        assert_eq!(rights(&table, &[], None), "");
        let web = |name: &str| WebRole { name: name.into(), may_use_the_table: false };
        let roles = [web("anon"), web("authenticated")];
        let closed = rights(&table, &roles, None);
        let revoke = "\nREVOKE ALL ON FUNCTION public.apply_orders(public.app_inbox_event[]) FROM PUBLIC, anon, authenticated;\n";
        assert!(closed.ends_with(revoke), "{closed}");
        let open = rights(&table, &roles, Some("REVOKE …;"));
        assert!(open.starts_with(&closed) && open.ends_with("\n-- REVOKE …;\n"), "{open}");
    }
}
