//! Findings about `run --prune-older-than`: the role must be able to read and delete outbox rows.

use crate::error::explain;
use tokio_postgres::types::Type;
use walrelay_errors::{Chain, Code};
use walrelay_outbox_admin::Finding;
use walrelay_pg_client::{
    QualifiedName, SqlClient, TableAccess, quote_identifier, refuse_hidden_rows, sql,
};

/// Returns findings about tables whose rows the role cannot delete. A warning only: `run` publishes
/// without them.
pub(super) async fn of(client: &SqlClient, tables: &[QualifiedName]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in tables {
        findings.extend(lacking(client, table).await);
    }
    if let Err(error) = refuse_hidden_rows(client, tables, TableAccess::Delete).await {
        let fix = explain::fix_of(&error);
        let message = format!("--prune-older-than deletes nothing: {}", Chain(&error));
        findings.push(Finding::warning(Code::RowsHidden, "retention", message).fix(fix));
    }
    if findings.is_empty() {
        findings.push(Finding::passed("retention", "retention", "may delete old rows"));
    }
    findings
}

/// Returns a finding if the role lacks a privilege. Another finding reports a missing table.
async fn lacking(client: &SqlClient, table: &QualifiedName) -> Option<Finding> {
    let sql = sql!("retention.sql", "missing_privileges");
    let name = table.to_string();
    let rows = client.query_typed(sql, &[(&name, Type::TEXT)]).await.ok()?;
    let role: String = rows.first()?.get(0);
    let missing: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
    Some(finding_of(table, &role, &missing))
}

fn finding_of(table: &QualifiedName, role: &str, missing: &[String]) -> Finding {
    let (role, missing) = (quote_identifier(role), missing.join(", "));
    let message = format!("role {role} lacks {missing}, which --prune-older-than needs");
    let fix = format!("as its owner: GRANT {missing} ON {table} TO {role}");
    Finding::warning(Code::PrunePermissionMissing, format!("table {table}"), message).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_named_with_the_grant() {
        let table: QualifiedName = "public.app_outbox".parse().expect("a name");
        let found = finding_of(&table, "Relay", &["DELETE".to_owned()]);
        assert!(found.message.contains("role \"Relay\" lacks DELETE"), "{}", found.message);
        assert_eq!(found.fix, "as its owner: GRANT DELETE ON public.app_outbox TO \"Relay\"");
    }
}
