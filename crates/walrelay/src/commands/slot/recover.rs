//! `walrelay slot recover`.

use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use walrelay_core::ColumnNames;
use walrelay_outbox_admin::protocols::{Recovered, TableRows, recover};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::time;
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::plan::Plan;
use crate::steps::protocol::{START_RELAY, rows_text};

/// Create a lost or released slot again, and publish the rest from the table.
///
/// Rows that the lost slot may not have settled are in the outbox table. `walrelay run` publishes those rows
/// first, in order per aggregate, and then the rows of the new slot. A few rows are published twice, and none is
/// left out.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay slot recover --yes && walrelay run\n  \
    walrelay slot recover --from-time 2026-01-31T12:00:00Z"
)]
pub(crate) struct Recover {
    /// Publish every row of events from this time on, where nothing on record holds any more: a moment with a
    /// margin, 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    from_time: Option<SystemTime>,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Recover {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        let columns = checks.definition.columns.clone();
        Some(Plan::new(async move |shutdown| {
            Box::pin(self.run(&database, &columns, shutdown)).await
        }))
    }

    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        columns: &ColumnNames,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let slot = &outbox.slot;
        let terminal = Terminal::new(self.change.options(), shutdown);
        let recovered = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            recover(session, outbox, self.from_time, columns).await
        });
        let recovered = recovered.await?;
        let text = |it| recover_text(slot, it);
        terminal.print_result(recovered.as_ref(), text, |it| SlotRecoverJson::new(slot, it))
    }
}

#[derive(Debug, Serialize)]
struct SlotRecoverJson<'a> {
    slot: &'a str,
    result: &'static str,
    operation: Option<String>,
    rows_to_publish: &'a [TableRows],
}

impl<'a> SlotRecoverJson<'a> {
    fn new(slot: &'a str, recovered: &'a Recovered) -> Self {
        let (result, operation, rows) = match recovered {
            Recovered::ReleaseCancelled => ("release_cancelled", None, &[][..]),
            Recovered::NewSlot { operation, rows } => {
                ("slot_created", Some(operation.describe(slot)), rows.as_slice())
            }
            Recovered::Finished(done) => ("operation_finished", Some(done.describe(slot)), &[][..]),
            Recovered::ByRelay => ("finished_by_relay", None, &[][..]),
        };
        Self { slot, result, operation, rows_to_publish: rows }
    }
}

fn recover_text(slot: &str, recovered: &Recovered) -> String {
    match recovered {
        Recovered::ReleaseCancelled => {
            format!("slot {slot} still exists: its release is cancelled, and relays continue\n")
        }
        Recovered::NewSlot { operation, rows } => {
            format!("slot {slot}: {}\n{}{START_RELAY}", operation.describe(slot), rows_text(rows))
        }
        Recovered::Finished(done) => format!("finished: {}\n", done.describe(slot)),
        Recovered::ByRelay => "the slot is recovered: a relay has done it\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_replay::{Resharding, SlotOperation};
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let operation = SlotOperation::Resharding(Resharding { from: 1, to: 2 });
        let rows = vec![TableRows { table: "public.app_outbox".to_owned(), rows: 1 }];
        let recovered = Recovered::NewSlot { operation, rows };
        assert_documented("slot recover", &SlotRecoverJson::new("s", &recovered));
    }
}
