//! `walrelay anchor advance`.

use std::time::SystemTime;

use clap::Args;
use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{AdvancedAnchor, Place, move_anchor};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::{anchor_name, lsn, time};
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::output::text::{human_bytes, lsn_or_dash};
use crate::plan::Plan;

/// Move an anchor forward, by default to the slot, and free the WAL before it.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay anchor advance daily\n  \
    walrelay anchor advance daily --to-time 6h"
)]
pub(crate) struct Advance {
    /// Name of the anchor.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    name: String,
    /// Position to move to (16/B374D848), not past the slot.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    to_lsn: Option<Lsn>,
    /// Time to move to: 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    to_time: Option<SystemTime>,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Advance {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| self.run(&database, shutdown).await))
    }

    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let (name, to) = (&self.name, Place::of(self.to_lsn, self.to_time));
        let terminal = Terminal::new(self.change.options(), shutdown);
        let moved = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            move_anchor(session, outbox, name, to).await
        });
        let text = |it: &AdvancedAnchor| {
            format!(
                "anchor {name} is now at {}; it retains {} of WAL, {} before\n",
                lsn_or_dash(it.at),
                human_bytes(it.retained),
                human_bytes(it.retained_before)
            )
        };
        let json = |it: &AdvancedAnchor| AnchorAdvanceJson::new(name, it);
        terminal.print_result(moved.await?.as_ref(), text, json)
    }
}

#[derive(Debug, Serialize)]
struct AnchorAdvanceJson<'a> {
    anchor: &'a str,
    lsn: Option<String>,
    retained_bytes: u64,
    retained_bytes_before: u64,
}

impl<'a> AnchorAdvanceJson<'a> {
    fn new(anchor: &'a str, moved: &AdvancedAnchor) -> Self {
        Self {
            anchor,
            lsn: moved.at.map(|lsn| lsn.to_string()),
            retained_bytes: moved.retained,
            retained_bytes_before: moved.retained_before,
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let moved = AdvancedAnchor { at: Some(Lsn::new(1)), retained_before: 2, retained: 1 };
        assert_documented("anchor advance", &AnchorAdvanceJson::new("daily", &moved));
    }
}
