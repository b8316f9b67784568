//! `walrelay anchor create`.

use clap::Args;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{CreatedAnchor, create_anchor};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::anchor_name;
use crate::options::{ARGUMENTS, DatabaseOptions, OutputOptions, WalBudgetOption};
use crate::output::text::human_bytes;
use crate::plan::Plan;

/// Create an anchor at the position of the slot; the slot may be in use.
///
/// From then on the server retains WAL for the anchor until it is advanced or dropped.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay anchor create before_release"
)]
pub(crate) struct Create {
    /// Name of the anchor: lower-case letters, digits and `_`. Its slot is called SLOT_anchor_NAME.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    name: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    wal_budget: WalBudgetOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Create {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| self.run(&database, shutdown).await))
    }

    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let (name, wal_budget) = (&self.name, self.wal_budget.wal_budget);
        let terminal = Terminal::unasked(self.output.output, shutdown);
        let created = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            create_anchor(session.client, outbox, name, wal_budget).await
        });
        let created = created.await?;
        let json = AnchorCreateJson::new(name, &created);
        terminal.print_result(Some(&created), |it| created_text(name, it), |_| json)
    }
}

fn created_text(name: &str, created: &CreatedAnchor) -> String {
    let CreatedAnchor { slot, at, share, slots_left } = created;
    let limit = match share {
        Some(share) => format!(
            "advance it before it retains {} of WAL: beyond that, the relay's own --wal-budget does not fit\n",
            human_bytes(*share)
        ),
        None => {
            "this server retains WAL without limit (max_slot_wal_keep_size): advance or drop the anchor before the \
             disk is full\n"
                .to_owned()
        }
    };
    let full = match slots_left {
        0 => "no replication slot is left, and a replay needs one: raise max_replication_slots\n",
        _ => "",
    };
    format!("created: anchor {name} (slot {slot}), from {at}\n{limit}{full}")
}

#[derive(Debug, Serialize)]
struct AnchorCreateJson<'a> {
    anchor: &'a str,
    slot: String,
    lsn: String,
    share_bytes: Option<u64>,
    replication_slots_left: u32,
}

impl<'a> AnchorCreateJson<'a> {
    fn new(anchor: &'a str, created: &CreatedAnchor) -> Self {
        Self {
            anchor,
            slot: created.slot.clone(),
            lsn: created.at.to_string(),
            share_bytes: created.share,
            replication_slots_left: created.slots_left,
        }
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::Lsn;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let created = CreatedAnchor {
            slot: "walrelay_anchor_daily".to_owned(),
            at: Lsn::new(1),
            share: Some(1),
            slots_left: 0,
        };
        assert_documented("anchor create", &AnchorCreateJson::new("daily", &created));
    }
}
