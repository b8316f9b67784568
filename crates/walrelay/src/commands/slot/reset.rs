//! `walrelay slot reset`.

use std::time::SystemTime;

use clap::Args;
use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{Place, ResetOrder, ResetResult, reset};
use walrelay_outbox_replay::Again;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::{anchor_name, lsn, time};
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::plan::Plan;

/// Replace the slot by a copy of an anchor, and publish again from there.
///
/// A running relay releases the slot and continues from there by itself. Interrupted, it is
/// finished by running it again, or by the relay.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay slot reset --to-anchor before_release\n  \
    walrelay slot reset --to-anchor daily --to-time 2h"
)]
pub(crate) struct Reset {
    /// Anchor that the slot becomes a copy of; the anchor itself stays.
    #[arg(long, value_name = "NAME", required = true, value_parser = anchor_name)]
    to_anchor: String,
    /// First position that is published again (16/B374D848); without it, the position of the anchor.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    to_lsn: Option<Lsn>,
    /// Time from which on everything is published again: 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    to_time: Option<SystemTime>,
    /// Rows that are dead in dispatch state are published again too.
    #[arg(long)]
    include_dead: bool,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Reset {
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
        let order = ResetOrder {
            anchor: self.to_anchor.clone(),
            to: Place::of(self.to_lsn, self.to_time),
            again: match self.include_dead {
                true => Again::PublishedAndDead,
                false => Again::Published,
            },
        };
        let done = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            reset(session, outbox, &order).await
        });
        let text = |it: &ResetResult| reset_text(slot, it);
        let json = |it: &ResetResult| SlotResetJson::new(slot, it);
        terminal.print_result(done.await?.as_ref(), text, json)
    }
}

#[derive(Debug, Serialize)]
struct SlotResetJson<'a> {
    slot: &'a str,
    result: &'static str,
    lsn: Option<String>,
}

impl<'a> SlotResetJson<'a> {
    fn new(slot: &'a str, reset: &ResetResult) -> Self {
        let (result, lsn) = match reset {
            ResetResult::Done { target, is_earlier: false } => ("reset", Some(target.to_string())),
            ResetResult::Done { target, is_earlier: true } => {
                ("earlier_reset_finished", Some(target.to_string()))
            }
            ResetResult::ByOther => ("finished_elsewhere", None),
        };
        Self { slot, result, lsn }
    }
}

fn reset_text(slot: &str, done: &ResetResult) -> String {
    match done {
        ResetResult::Done { target, is_earlier } => {
            let whose = match is_earlier {
                true => ": the earlier reset is finished; run the command again for another",
                false => "",
            };
            format!(
                "slot {slot} starts at {target} again{whose}\nrows after it are published again, to the same topics; a \
                 running relay continues by itself\n"
            )
        }
        ResetResult::ByOther => "the reset is finished: another process has done it\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let reset = ResetResult::Done { target: Lsn::new(1), is_earlier: false };
        assert_documented("slot reset", &SlotResetJson::new("s", &reset));
    }
}
