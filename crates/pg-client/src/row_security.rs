//! Detects rows that row level security hides from the current role.
//!
//! An empty result would be read as "there are no rows". An outbox would have nothing to recover,
//! dispatch state no parked rows, and an inbox no events. Code that draws conclusions from a table
//! calls this first.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::names::{QualifiedName, quote_identifier};
use crate::schema::SqlText;
use crate::sql_error::SqlError;

/// How the caller uses the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableAccess {
    /// Reads rows.
    Read,
    /// Reads and updates rows.
    Update,
    /// Reads and deletes rows.
    Delete,
    /// Reads, adds, updates and deletes rows.
    Write,
}

impl TableAccess {
    const fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["SELECT"],
            Self::Update => &["SELECT", "UPDATE"],
            Self::Delete => &["SELECT", "DELETE"],
            Self::Write => &["SELECT", "INSERT", "UPDATE", "DELETE"],
        }
    }
}

/// Refuses to say anything of tables, or to change them, where row level security hides their rows from the
/// role. Tables that are not there, and those without a grant, are left to the statement that meets them: the
/// server names them.
pub async fn refuse_hidden_rows(
    client: &Client,
    tables: &[QualifiedName],
    rows: TableAccess,
) -> Result<(), SqlError> {
    let schemas: Vec<&str> = tables.iter().map(QualifiedName::schema).collect();
    let names: Vec<&str> = tables.iter().map(QualifiedName::table).collect();
    let found = client
        .query_typed(
            &question(),
            &[
                (&schemas, Type::TEXT_ARRAY),
                (&names, Type::TEXT_ARRAY),
                (&rows.commands(), Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(SqlError::sql("look whether rows are hidden"))?;
    let hidden: Vec<HiddenTable> = found.iter().filter_map(HiddenTable::of).collect();
    let role = found.first().map_or("", |row| row.get("role"));
    refusal(role, &hidden).map_or(Ok(()), Err)
}

/// A table whose rows are hidden from some commands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HiddenTable {
    table: QualifiedName,
    commands: Vec<String>,
}

impl HiddenTable {
    fn of(row: &Row) -> Option<Self> {
        let commands: Vec<String> = row.get("hidden_from");
        let name = |column| row.get::<_, String>(column);
        let table = || QualifiedName::new(name("schema"), name("name"));
        (!commands.is_empty()).then(|| Self { table: table(), commands })
    }

    /// Returns the table, with the affected commands unless SELECT is among them.
    fn told(&self) -> String {
        let Self { table, commands } = self;
        match commands.iter().any(|command| command == "SELECT") {
            true => table.to_string(),
            false => format!("{table} (for {})", commands.join(", ")),
        }
    }

    /// Returns the policies that make the rows visible.
    fn policies(&self, role: &str) -> String {
        let Self { table, commands } = self;
        let to = quote_identifier(role);
        let policy = |command: &String| {
            let name = quote_identifier(&format!("{role}_{}", command.to_lowercase()));
            let shown = match command.as_str() {
                "INSERT" => "WITH CHECK (true)",
                "UPDATE" => "USING (true) WITH CHECK (true)",
                _ => "USING (true)",
            };
            format!("CREATE POLICY {name} ON {table} FOR {command} TO {to} {shown}")
        };
        match commands.len() == TableAccess::Write.commands().len() {
            true => {
                format!("CREATE POLICY {to} ON {table} TO {to} USING (true) WITH CHECK (true)")
            }
            false => commands.iter().map(policy).collect::<Vec<_>>().join("; "),
        }
    }
}

fn refusal(role: &str, hidden: &[HiddenTable]) -> Option<SqlError> {
    if hidden.is_empty() {
        return None;
    }
    let joined = |texts: Vec<String>, by| texts.join(by);
    Some(SqlError::RowsHidden {
        tables: joined(hidden.iter().map(HiddenTable::told).collect(), ", "),
        role: role.to_owned(),
        policies: joined(hidden.iter().map(|one| one.policies(role)).collect(), "; "),
    })
}

/// SQL condition: no policy shows the rows of table `c` to the command `p.command`. A policy shows
/// them if it is permissive, for that command or all, and for the role or PUBLIC.
pub static IS_HIDDEN: SqlText = SqlText::new(|| sql!("row_security.sql", "is_hidden"));

/// SQL condition: policies may hide some rows of table `c` from the command `p.command`. Policies
/// show all rows if a permissive one has the expression `true`, and no restrictive one has another
/// expression. A policy of the inbox may also select the rows of one consumer.
static MAY_BE_HIDDEN: SqlText = SqlText::new(|| sql!("row_security.sql", "may_be_hidden"));

/// A privilege on some columns is enough for a statement to succeed and return no rows.
fn question() -> String {
    // spliced: MAY_BE_HIDDEN.
    format!(
        "WITH rights(ordinal, name, command) AS (
           VALUES (1, 'SELECT', 'r'::\"char\"), (2, 'INSERT', 'a'), (3, 'UPDATE', 'w'), (4, 'DELETE', 'd')
         )
         SELECT current_user::text AS role, n.nspname::text AS schema, c.relname::text AS name,
                ARRAY(SELECT p.name FROM rights p
                       WHERE p.name = ANY ($3) AND {MAY_BE_HIDDEN}
                         AND CASE p.name WHEN 'DELETE' THEN has_table_privilege(c.oid, p.name)
                                         ELSE has_any_column_privilege(c.oid, p.name) END
                       ORDER BY p.ordinal) AS hidden_from
           FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted(schema, name, place)
           JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
           JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
          ORDER BY wanted.place"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(table: &str, commands: &[&str]) -> HiddenTable {
        let commands = commands.iter().map(|&command| command.to_owned()).collect();
        HiddenTable { table: QualifiedName::new("public", table), commands }
    }

    #[test]
    fn what_is_hidden_is_told_with_a_policy_for_what_is_done_and_no_more() {
        assert!(refusal("auditor", &[]).is_none());
        let read = [hidden("app_outbox", &["SELECT"]), hidden("app_outbox_relay", &["SELECT"])];
        let told = refusal("auditor", &read).expect("hidden").to_string();
        assert!(
            told.starts_with(
                "row level security hides the rows of public.app_outbox, public.app_outbox_relay from role auditor"
            ),
            "{told}"
        );
        assert!(
            told.contains(
                "CREATE POLICY auditor_select ON public.app_outbox FOR SELECT TO auditor USING (true); \
                 CREATE POLICY auditor_select ON public.app_outbox_relay FOR SELECT"
            ),
            "{told}"
        );
        assert!(!told.contains("WITH CHECK"), "{told}");

        let pruned =
            refusal("P", &[hidden("app_outbox", &["DELETE"])]).expect("hidden").to_string();
        assert!(pruned.contains("public.app_outbox (for DELETE)"), "{pruned}");
        assert!(
            pruned.contains("\"P_delete\" ON public.app_outbox FOR DELETE TO \"P\""),
            "{pruned}"
        );

        let all = hidden("app_inbox", TableAccess::Write.commands());
        let text = refusal("c", &[all]).expect("hidden").to_string();
        assert!(
            text.ends_with(
                "CREATE POLICY c ON public.app_inbox TO c USING (true) WITH CHECK (true)"
            ),
            "{text}"
        );
    }
}
