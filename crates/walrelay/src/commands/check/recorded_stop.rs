//! The finding that the relay has stopped or waits, from its own record.

use crate::status::recorded_stop;
use walrelay_errors::Code;
use walrelay_outbox_admin::Finding;
use walrelay_outbox_store::read_relay_row;
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::read_slot;
use walrelay_relay::observe::report::SlotReport;

/// Returns the finding about a slot. If the record cannot be read, other findings report that.
pub(super) async fn of(client: &SqlClient, slot: &str) -> Option<Finding> {
    let row = read_relay_row(client, slot).await.ok()??;
    let state = read_slot(client, slot).await.ok()?;
    let active_pid = state.and_then(|state| state.active_pid);
    finding_of(slot, &SlotReport::of_relay_row(&row, active_pid))
}

fn finding_of(slot: &str, report: &SlotReport) -> Option<Finding> {
    let cause = recorded_stop(report)?;
    let name = cause.step.code.as_deref()?;
    let code = Code::ALL.iter().find(|code| code.name() == name)?;
    Some(Finding::error(*code, format!("slot {slot}"), cause.text).fix(cause.step.text))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use walrelay_outbox_admin::CheckResult;

    use super::*;

    fn finding(reason: Value) -> Option<Finding> {
        let condition = json!({ "phase": "waiting", "reasons": [reason], "seconds": 5.0 });
        let report = json!({ "settled_lsn": "16/B374D000", "condition": condition });
        finding_of("walrelay", &serde_json::from_value(report).unwrap())
    }

    #[test]
    fn a_relay_that_stopped_or_waits_is_an_error_with_the_fix_that_it_recorded() {
        let unsendable = finding(json!({
            "kind": "unsendable_row", "text": "the server cannot send it", "subject": "16/B374D848#1",
        }));
        let unsendable = unsendable.expect("a finding");
        assert_eq!(unsendable.result, CheckResult::Error(Code::RowUnsendable));
        assert!(unsendable.fix.contains("--to-lsn 16/B374D848#1"), "{}", unsendable.fix);
        let restored = finding(json!({
            "kind": "waiting", "text": "restored", "fix": "restart", "code": "server-restored",
        }));
        let restored = restored.expect("a finding");
        assert_eq!(restored.result, CheckResult::Error(Code::ServerRestored));
        assert_eq!(restored.fix, "restart");
        assert!(finding(json!({ "kind": "outage", "text": "passes" })).is_none());
    }
}
