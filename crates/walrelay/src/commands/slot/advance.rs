//! `walrelay slot advance`.

use clap::Args;
use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_core::ColumnNames;
use walrelay_outbox_admin::protocols::{Advance as PastTransaction, AdvancedSlot, advance};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::{count, transaction};
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::plan::Plan;

/// Move the slot past one transaction, whose rows are then never published.
///
/// It does not decode the transaction, so it also passes a row that the server cannot send. It names the rows
/// that it skips, and refuses until --discard-rows agrees to their number.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay slot advance --to-lsn 16/B374D848 --discard-rows 3"
)]
pub(crate) struct Advance {
    /// Position of a change or of its commit, as an error of the relay shows it (16/B374D848): its
    /// whole transaction is skipped, and nothing behind it.
    #[arg(long, value_name = "LSN", required = true, value_parser = transaction)]
    to_lsn: Lsn,
    /// Exact number of rows that are skipped. Without it the command counts and names them.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count(0, u64::MAX))]
    discard_rows: u64,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Advance {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        let (columns, replay_options) =
            (checks.definition.columns.clone(), checks.replay_options.clone());
        Some(Plan::new(async move |shutdown| {
            self.run(&database, &columns, &replay_options, shutdown).await
        }))
    }

    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        columns: &ColumnNames,
        replay_options: &[String],
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let slot = &outbox.slot;
        let terminal =
            Terminal { replay_options, ..Terminal::new(self.change.options(), shutdown) };
        let past = PastTransaction { to: self.to_lsn, discard_rows: self.discard_rows, columns };
        let advanced = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            advance(session, outbox, past).await
        });
        let advanced = advanced.await?;
        let text = |it: &AdvancedSlot| match it.is_earlier {
            true => format!("slot {slot} was moved past these rows before, and is at {}\n", it.at),
            false => format!("slot {slot} is now at {}\n", it.at),
        };
        terminal.print_result(advanced.as_ref(), text, |it| SlotAdvanceJson::new(slot, it))
    }
}

#[derive(Debug, Serialize)]
struct SlotAdvanceJson<'a> {
    slot: &'a str,
    result: &'static str,
    lsn: String,
    skipped_rows: u64,
    skipped_transactions: u64,
    republishable_event_ids: Vec<&'a str>,
}

impl<'a> SlotAdvanceJson<'a> {
    fn new(slot: &'a str, advanced: &'a AdvancedSlot) -> Self {
        let AdvancedSlot { at, skipped, is_earlier } = advanced;
        Self {
            slot,
            result: if *is_earlier { "advanced_before" } else { "advanced" },
            lsn: at.to_string(),
            skipped_rows: skipped.inserts,
            skipped_transactions: skipped.transactions,
            republishable_event_ids: skipped.publishable_ids(),
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_admin::lookahead::SkippedRow;
    use walrelay_outbox_admin::protocols::SkippedRows;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let row = SkippedRow {
            event_id: Some("a".to_owned()),
            at: "0/64#0".to_owned(),
            is_sendable: true,
        };
        let skipped = SkippedRows {
            target: Lsn::new(108),
            transactions: 1,
            inserts: 1,
            other_changes: 0,
            rows: vec![row],
            notes: Vec::new(),
        };
        let advanced = AdvancedSlot { at: Lsn::new(108), skipped, is_earlier: false };
        assert_documented("slot advance", &SlotAdvanceJson::new("s", &advanced));
    }
}
