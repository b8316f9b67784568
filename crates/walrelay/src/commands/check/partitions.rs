//! Findings about the partitions of a partitioned outbox.

use walrelay_errors::{Chain, Code};
use walrelay_outbox_admin::Finding;
use walrelay_outbox_admin::partitions::{PartitionState, is_partitioned, read_partition_state};
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{QualifiedName, SCHEMA, ServerErrorKind, SqlClient};

/// Returns a finding for each partitioned table. Other findings report a table that cannot be read.
pub(super) async fn of(client: &SqlClient, tables: &[QualifiedName]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in tables {
        if matches!(is_partitioned(client, table).await, Ok(true)) {
            let state = read_partition_state(client, table).await;
            findings.extend(of_state(&format!("partitions of {table}"), state));
        }
    }
    findings
}

fn of_state(subject: &str, state: Result<PartitionState, AdminError>) -> Vec<Finding> {
    let state = match state {
        Ok(state) => state,
        Err(error) => {
            let finding =
                Finding::warning(Code::PermissionMissing, subject, Chain(&error).to_string());
            let is_denied = error.server_kind() == Some(ServerErrorKind::Privilege);
            return vec![finding.fix(if is_denied { grant() } else { "walrelay init".to_owned() })];
        }
    };
    let mut findings = Vec::new();
    if state.default_rows > 0 {
        let message = format!(
            "the DEFAULT partition has {} row(s), and blocks partitions for their ranges",
            state.default_rows
        );
        findings.push(Finding::warning(Code::DefaultPartitionUsed, subject, message).fix(
            "keep a relay running, which creates partitions ahead; prune deletes the rows once they are old",
        ));
    }
    let until = state.ready_until.as_deref().unwrap_or("no time");
    if state.span.is_some() && !state.is_ahead {
        let message = format!("exist until {until} only; later rows go to the DEFAULT partition");
        findings.push(
            Finding::warning(Code::PartitionsMissing, subject, message)
                .fix("start the relay, which creates them; its log shows why it could not"),
        );
    }
    if findings.is_empty() {
        let message = match &state.span {
            Some(span) => format!("{} exist, of {span} each, until {until}", state.partitions),
            None => format!("{} exist; the relay creates none", state.partitions),
        };
        findings.push(Finding::passed("partitions", subject, message));
    }
    findings
}

fn grant() -> String {
    // spliced: a text for people, with the names of the functions.
    format!(
        "GRANT EXECUTE ON FUNCTION {SCHEMA}.app_outbox_add_partitions, {SCHEMA}.app_outbox_partition_bounds, \
         {SCHEMA}.app_outbox_partition_state, {SCHEMA}.app_outbox_drop_partition TO ROLE"
    )
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_admin::CheckResult;

    use super::*;

    fn state(default_rows: i64) -> PartitionState {
        PartitionState {
            span: Some("1 day".to_owned()),
            partitions: 4,
            ready_until: Some("2026-11-29 00:00:00+00".to_owned()),
            ready_until_seconds: Some(1.0),
            is_ahead: true,
            default_rows,
        }
    }

    fn codes(state: PartitionState) -> Vec<Option<Code>> {
        let code = |finding: Finding| match finding.result {
            CheckResult::Warning(code) => Some(code),
            CheckResult::Passed(_) | CheckResult::Error(_) => None,
        };
        of_state("partitions", Ok(state)).into_iter().map(code).collect()
    }

    #[test]
    fn missing_partitions_and_rows_in_the_default_partition_are_warnings() {
        let behind = |default_rows| PartitionState { is_ahead: false, ..state(default_rows) };
        assert_eq!(codes(state(0)), [None]);
        assert_eq!(codes(state(2)), [Some(Code::DefaultPartitionUsed)]);
        assert_eq!(codes(behind(0)), [Some(Code::PartitionsMissing)]);
        assert_eq!(
            codes(behind(1)),
            [Some(Code::DefaultPartitionUsed), Some(Code::PartitionsMissing)]
        );
    }
}
