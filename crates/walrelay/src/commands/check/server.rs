//! Findings about the server that depend on the relay's configuration.

use crate::output::text::human_bytes;
use walrelay_core::{WalBudgetLimit, WalRetentionLimit};
use walrelay_errors::Code;
use walrelay_outbox_admin::Finding;
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{SqlClient, SqlError};
use walrelay_pg_replication::read_retention;

pub(super) async fn findings(
    client: &SqlClient,
    wal_budget: WalBudgetLimit,
) -> Result<Vec<Finding>, AdminError> {
    // This session has set it for itself.
    let sql =
        "SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'";
    let action = "read default_transaction_read_only".to_owned();
    let row = client.query_one(sql, &[]).await;
    let row = row.map_err(|source| SqlError::Sql { action, source })?;
    let budget = budget_finding(wal_budget, read_retention(client).await?);
    Ok([budget].into_iter().chain(read_only_finding(row.get(0))).collect())
}

/// Compares `--wal-budget` with the server's limit.
fn budget_finding(setting: WalBudgetLimit, retention: WalRetentionLimit) -> Finding {
    let shown = |bytes: Option<u64>, none: &str| bytes.map_or_else(|| none.to_owned(), human_bytes);
    let budget = setting.bytes(retention);
    let message = format!(
        "is {}; the server's bound is {} (max_slot_wal_keep_size)",
        shown(budget, "off"),
        shown(retention.bytes(), "unlimited")
    );
    let is_too_late = match (budget, retention.bytes()) {
        (_, None) => false,
        (None, Some(_)) => true,
        // Spilling starts at three quarters of the budget. Other slots and whole segments use part
        // of the rest.
        (Some(budget), Some(bound)) => budget >= bound,
    };
    let fix =
        "set --wal-budget to `auto`, or to less than the bound: at the bound the slot is lost";
    match is_too_late {
        true => Finding::warning(Code::WalBudgetTooLarge, "--wal-budget", message).fix(fix),
        false => Finding::passed("wal-budget", "--wal-budget", message),
    }
}

/// Warns about a read-only default. Sessions of walrelay override the setting, but producers do
/// not.
fn read_only_finding(setting: &str) -> Option<Finding> {
    let fix = "ALTER ROLE … RESET default_transaction_read_only, or ALTER DATABASE … if the database sets it";
    let message = "is on: relay and commands write all the same, but producers and consumers of such a role cannot write";
    (setting == "on").then(|| {
        let subject = "setting default_transaction_read_only";
        Finding::warning(Code::SessionReadOnly, subject, message).fix(fix)
    })
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_admin::CheckResult;

    use super::*;

    #[test]
    fn the_budget_is_shown_beside_the_bound_and_one_that_reaches_it_is_a_warning() {
        const MIB: u64 = 1 << 20;
        for (setting, retention, result, message) in [
            (
                WalBudgetLimit::Auto,
                WalRetentionLimit::Bytes(96 * MIB),
                CheckResult::Passed("wal-budget"),
                "is 48 MiB; the server's bound is 96 MiB (max_slot_wal_keep_size)",
            ),
            (
                WalBudgetLimit::Bytes(256 * MIB),
                WalRetentionLimit::Bytes(96 * MIB),
                CheckResult::Warning(Code::WalBudgetTooLarge),
                "is 256 MiB; the server's bound is 96 MiB (max_slot_wal_keep_size)",
            ),
            (
                WalBudgetLimit::Off,
                WalRetentionLimit::Bytes(96 * MIB),
                CheckResult::Warning(Code::WalBudgetTooLarge),
                "is off; the server's bound is 96 MiB (max_slot_wal_keep_size)",
            ),
            (
                WalBudgetLimit::Auto,
                WalRetentionLimit::Unlimited,
                CheckResult::Passed("wal-budget"),
                "is 1.0 GiB; the server's bound is unlimited (max_slot_wal_keep_size)",
            ),
        ] {
            let found = budget_finding(setting, retention);
            assert_eq!((found.result, found.message.as_str()), (result, message));
        }
    }
}
