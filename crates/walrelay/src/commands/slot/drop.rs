//! `walrelay slot drop`.

use clap::Args;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{DroppedSlot, drop_checked};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::count;
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::plan::Plan;

/// Drop the slot: its unconfirmed rows can no longer be read from the WAL.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay slot drop --slot walrelay_old --yes"
)]
pub(crate) struct Drop {
    /// Most unconfirmed rows that the slot may have. They are never published.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count(0, u64::MAX))]
    discard_rows: u64,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Drop {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| self.run(&database, shutdown).await))
    }

    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let slot = &outbox.slot;
        let terminal = Terminal::new(self.change.options(), shutdown);
        let dropped = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            drop_checked(session, outbox, self.discard_rows).await
        });
        let dropped = dropped.await?;
        let text = |it: &DroppedSlot| drop_text(slot, it);
        terminal.print_result(dropped.as_ref(), text, |it| SlotDropJson::new(slot, it))
    }
}

#[derive(Debug, Serialize)]
struct SlotDropJson<'a> {
    slot: &'a str,
    discarded_rows: u64,
    anchors: &'a [String],
}

impl<'a> SlotDropJson<'a> {
    fn new(slot: &'a str, dropped: &'a DroppedSlot) -> Self {
        let DroppedSlot { rows, anchors } = dropped;
        Self { slot, discarded_rows: *rows, anchors }
    }
}

fn drop_text(slot: &str, DroppedSlot { rows, anchors }: &DroppedSlot) -> String {
    let mut text = format!("dropped: slot {slot}, with {rows} unconfirmed row(s)\n");
    for anchor in anchors {
        text.push_str(&format!(
            "anchor {anchor} stays and retains WAL: `walrelay anchor drop {anchor}` releases it\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let dropped = DroppedSlot { rows: 1, anchors: vec!["a".to_owned()] };
        assert_documented("slot drop", &SlotDropJson::new("s", &dropped));
    }
}
