//! Checks the role's privileges before the first read. A missing privilege found later would be a
//! batch that fails for ever.

use tokio_postgres::types::Type;
use walrelay_pg_client::{Parameter, SqlClient, SqlText, TableAccess, sql};

use crate::access::{failed, refuse_hidden_consumers};
use crate::error::InboxError;

/// The functions that consuming calls, most of them indirectly. All are SECURITY INVOKER, so the
/// role needs EXECUTE on each.
const FUNCTIONS: [&str; 26] = [
    "app_inbox_advance",
    "app_inbox_apply",
    "app_inbox_blame",
    "app_inbox_check",
    "app_inbox_encode",
    "app_inbox_events",
    "app_inbox_fault",
    "app_inbox_gaps",
    "app_inbox_gaps_behind",
    "app_inbox_give_up",
    "app_inbox_heads",
    "app_inbox_is_let_through",
    "app_inbox_lock",
    "app_inbox_next_attempt",
    "app_inbox_payload",
    "app_inbox_record_applied",
    "app_inbox_record_failed",
    "app_inbox_record_held",
    "app_inbox_redeliver",
    "app_inbox_run",
    "app_inbox_run_without_gaps",
    "app_inbox_settle",
    "app_inbox_stored",
    "app_inbox_take",
    "app_inbox_take_due",
    "app_inbox_verdicts",
];

/// Missing privileges on the inbox, read from the catalogs. A cast to `regclass` would itself fail
/// without USAGE on the schema. Missing objects are not reported here, but by the code that uses
/// them.
static OF_THE_INBOX: SqlText = SqlText::new(|| sql!("privileges.sql", "of_the_inbox"));

/// Missing privileges for the deletion of old rows, beside those of consuming.
static OF_RETENTION: SqlText = SqlText::new(|| sql!("privileges.sql", "of_retention"));

/// Missing privileges on the handler, whose name has the form that
/// [`resolve_handler`](crate::apply::apply_batch::resolve_handler) returns.
static OF_THE_HANDLER: SqlText = SqlText::new(|| sql!("privileges.sql", "of_the_handler"));

/// The policies to create on tables where the role has none, whether it has the GRANTs or not. With
/// the GRANTs alone the role would see tables without rows, and would learn of the missing policies
/// only at the next start.
static POLICIES: SqlText = SqlText::new(|| sql!("privileges.sql", "policies"));

/// Checks the role's privileges on the inbox.
pub(crate) async fn refuse_without_inbox(client: &SqlClient) -> Result<(), InboxError> {
    let functions = FUNCTIONS.map(str::to_owned).to_vec();
    let lacking = missing(client, &OF_THE_INBOX, (&functions, Type::TEXT_ARRAY)).await?;
    if lacking.is_empty() {
        return Ok(());
    }
    let rows = client.query_typed(&POLICIES, &[]).await.map_err(failed("read the policies"))?;
    refuse(client, &lacking, rows.iter().map(|row| row.get(0)).collect()).await
}

/// Checks the role's privileges for the deletion of old rows.
///
/// # Errors
///
/// Fails also if row-level security hides the consumer's row from an update.
pub(crate) async fn refuse_without_retention(client: &SqlClient) -> Result<(), InboxError> {
    let rows =
        client.query_typed(&OF_RETENTION, &[]).await.map_err(failed("read the privileges"))?;
    let lacking: Vec<_> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    refuse(client, &lacking, Vec::new()).await?;
    refuse_hidden_consumers(client, TableAccess::Update).await
}

/// Checks the role's privileges on the handler. The first event shows whether the privileges
/// suffice for the handler's own actions.
pub(crate) async fn refuse_without_handler(
    client: &SqlClient,
    handler: &str,
) -> Result<(), InboxError> {
    let lacking = missing(client, &OF_THE_HANDLER, (&handler, Type::TEXT)).await?;
    refuse(client, &lacking, Vec::new()).await
}

/// Returns the missing privileges, each with its object.
async fn missing(
    client: &SqlClient,
    sql: &str,
    parameter: Parameter<'_>,
) -> Result<Vec<(String, String)>, InboxError> {
    let rows =
        client.query_typed(sql, &[parameter]).await.map_err(failed("read the privileges"))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn refuse(
    client: &SqlClient,
    lacking: &[(String, String)],
    policies: Vec<String>,
) -> Result<(), InboxError> {
    if lacking.is_empty() {
        return Ok(());
    }
    let name = "SELECT current_user::text, pg_catalog.quote_ident(current_user)";
    let named = client.query_typed(name, &[]).await.map_err(failed("read the role"))?;
    let (role, quoted): (String, String) =
        named.first().map(|row| (row.get(0), row.get(1))).unwrap_or_default();
    Err(lacks(role, &quoted, lacking, policies))
}

/// Returns the error with the missing privileges and the statements that grant them.
fn lacks(
    role: String,
    quoted: &str,
    lacking: &[(String, String)],
    policies: Vec<String>,
) -> InboxError {
    let told: Vec<String> =
        lacking.iter().map(|(right, object)| format!("{right} on {object}")).collect();
    let grants =
        lacking.iter().map(|(right, object)| format!("GRANT {right} ON {object} TO {quoted}"));
    let statements: Vec<String> = grants.chain(policies).collect();
    let hint = format!("as the owner of these objects: {}", statements.join("; "));
    InboxError::Rights { role, lacks: told.join("; "), hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrations::inbox_migrations;

    #[test]
    fn every_function_that_a_consumer_calls_is_asked_for() {
        let migrations = inbox_migrations();
        let created =
            migrations.iter().flat_map(|it| it.sql.split("CREATE FUNCTION public.").skip(1));
        let names = created.filter_map(|text| text.split('(').next());
        // Programs that are consumers of their own call `app_inbox_accept`. The others are for operators.
        let others = ["app_inbox_accept", "app_inbox_grant", "app_inbox_new_generation"];
        let mut called: Vec<&str> = names.filter(|name| !others.contains(name)).collect();
        called.sort_unstable();
        assert_eq!(called, FUNCTIONS);
    }

    #[test]
    fn what_is_missing_is_told_with_the_statements_that_give_it() {
        let lacking = [
            ("INSERT, DELETE".to_owned(), "public.app_inbox".to_owned()),
            ("EXECUTE".to_owned(), "FUNCTION public.app_inbox_redeliver".to_owned()),
        ];
        let error = lacks("Reader".to_owned(), "\"Reader\"", &lacking, Vec::new());
        let told = error.to_string();
        assert!(
            told.contains(
                "INSERT, DELETE on public.app_inbox; EXECUTE on FUNCTION public.app_inbox_redeliver"
            ),
            "{told}"
        );
        let InboxError::Rights { hint, .. } = error else { panic!("{error}") };
        assert!(
            hint.contains("GRANT EXECUTE ON FUNCTION public.app_inbox_redeliver TO \"Reader\""),
            "{hint}"
        );
    }
}
