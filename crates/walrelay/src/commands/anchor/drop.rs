//! `walrelay anchor drop`.

use clap::Args;
use serde::Serialize;
use walrelay_outbox_admin::protocols::drop_anchor;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::anchor_name;
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::output::text::human_bytes;
use crate::plan::Plan;

/// Drop an anchor: the WAL that it retains can no longer be replayed.
///
/// Refused while an unfinished replay needs the anchor.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay anchor drop before_release"
)]
pub(crate) struct Drop {
    /// Name of the anchor.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    name: String,
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
        let name = &self.name;
        let terminal = Terminal::new(self.change.options(), shutdown);
        let dropped = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            drop_anchor(session, outbox, name).await
        });
        let text = |bytes: &u64| {
            format!("dropped: anchor {name}, which retained {} of WAL\n", human_bytes(*bytes))
        };
        let json = |bytes: &u64| AnchorDropJson { anchor: name, retained_bytes: *bytes };
        terminal.print_result(dropped.await?.as_ref(), text, json)
    }
}

#[derive(Debug, Serialize)]
struct AnchorDropJson<'a> {
    anchor: &'a str,
    retained_bytes: u64,
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        assert_documented("anchor drop", &AnchorDropJson { anchor: "daily", retained_bytes: 1 });
    }
}
