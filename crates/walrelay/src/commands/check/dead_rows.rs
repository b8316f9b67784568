//! Findings about dead rows, which only an operator can fix.

use walrelay_errors::Code;
use walrelay_outbox_admin::Finding;
use walrelay_outbox_store::DispatchStore;
use walrelay_pg_client::SqlClient;

/// Returns a finding if rows of this slot are dead. If dispatch state cannot be read, other findings
/// report that.
pub(super) async fn of(client: &SqlClient, slot: &str) -> Option<Finding> {
    let counts = DispatchStore::new(slot.to_owned()).counts(client).await.ok()?;
    finding_of(slot, counts.dead)
}

fn finding_of(slot: &str, dead: u64) -> Option<Finding> {
    let message = match dead {
        0 => return None,
        1 => "1 dead row waits for an operator".to_owned(),
        _ => format!("{dead} dead rows wait for an operator"),
    };
    let fix = "walrelay dispatch list --status dead shows each with its reason";
    Some(Finding::warning(Code::DeadRows, format!("slot {slot}"), message).fix(fix))
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_admin::CheckResult;

    use super::*;

    #[test]
    fn dead_rows_are_a_warning_with_their_number_and_none_is_no_finding() {
        assert!(finding_of("walrelay", 0).is_none());
        let found = finding_of("walrelay", 7).expect("a finding");
        assert_eq!(found.result, CheckResult::Warning(Code::DeadRows));
        assert_eq!(found.subject, "slot walrelay");
        assert!(found.message.starts_with("7 dead rows"), "{}", found.message);
        assert!(found.fix.contains("walrelay dispatch list"), "{}", found.fix);
    }
}
