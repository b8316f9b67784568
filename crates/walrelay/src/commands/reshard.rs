//! `walrelay reshard`: changes the number of shards while producers write, without loss or
//! reordering.

use clap::Args;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{
    DroppedShard, Reshard as Resharding, ReshardEnd, Resharded, Switch,
};
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::connect_sql;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::Terminal;
use crate::config::Checks;
use crate::error::Error;
use crate::options::values::shard_count;
use crate::options::{ARGUMENTS, ChangeArgs, ServiceOptions};
use crate::plan::Plan;

/// Change the number of shards while producers write.
///
/// Creates the new publications and slots, and stops the relays of the old ones. Publishes the rows of the old slots up
/// to one position, hands over the parked rows, and drops the old slots. Nothing is lost or reordered. If it is
/// interrupted before the switch, the old relays continue. Run it again to continue, or with the old number to cancel.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay reshard --shards 4 --project my-project --yes\n  \
    walrelay reshard --shards 1 --dry-run"
)]
pub(crate) struct Reshard {
    /// How many shards there are to be: a power of two, from 1, which is an outbox without shards, to 64.
    #[arg(long, value_name = "N", required = true, value_parser = shard_count)]
    shards: u32,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    options: ServiceOptions,
}

impl Reshard {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let _: Outbox = checks.whole_outbox(&self.options.database, self.shards);
        let settings = checks.settings(&self.options, Until::CaughtUp)?;
        checks.require_dividing_key(&settings.relay.router, self.shards);
        Some(Plan::new(async move |shutdown| Box::pin(self.run(&settings, shutdown)).await))
    }

    /// Changes the number of shards, and prints which relays to start.
    ///
    /// # Errors
    ///
    /// A precondition fails, the server or Pub/Sub refuses, or the command was interrupted. Before the
    /// switch the old relays then continue.
    async fn run(&self, settings: &Settings, shutdown: &Shutdown) -> Result<(), Error> {
        let shards = self.shards;
        let terminal = Terminal::new(self.change.options(), shutdown);
        let mut client = connect_sql(&settings.connect).await?;
        let resharding = Resharding { settings, shards, operator: &terminal, stop: shutdown };
        let done = Box::pin(resharding.run(&mut client)).await;
        client.close().await;
        let done = done?;
        terminal.print_result(done.as_ref(), |it| reshard_text(shards, it), ReshardJson::new)
    }
}

/// Names the next step. The steps up to here are printed already.
fn reshard_text(count: u32, done: &Resharded) -> String {
    match (done.end, done.shards.as_slice()) {
        (ReshardEnd::Unchanged, _) => format!("nothing to do: shards: {count}\n"),
        (ReshardEnd::Cancelled, _) => String::new(),
        (ReshardEnd::Changed, [_]) => "next: an instance each of: walrelay run\n".to_owned(),
        (ReshardEnd::Changed, all) => {
            let runs: Vec<String> =
                all.iter().map(|shard| format!("walrelay run --shard {shard}")).collect();
            format!("next: an instance each of: {}\n", runs.join(", "))
        }
    }
}

#[derive(Debug, Serialize)]
struct ReshardJson<'a> {
    result: ReshardEnd,
    switched_at: Option<String>,
    handed_over_rows: Option<u64>,
    dropped: &'a [DroppedShard],
    shards: Vec<String>,
}

impl<'a> ReshardJson<'a> {
    fn new(Resharded { end, switch, dropped, shards }: &'a Resharded) -> Self {
        Self {
            result: *end,
            switched_at: switch.map(|Switch { at, .. }| at.to_string()),
            handed_over_rows: switch.map(|Switch { handed_over, .. }| handed_over),
            dropped,
            shards: shards.iter().map(ToString::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::Lsn;
    use walrelay_outbox_store::Shard;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let dropped = DroppedShard {
            slot: "walrelay".to_owned(),
            publication: "walrelay".to_owned(),
            publication_dropped: true,
        };
        let done = Resharded {
            end: ReshardEnd::Changed,
            switch: Some(Switch { at: Lsn::new(1), handed_over: 2 }),
            dropped: vec![dropped],
            shards: Shard::all(2).collect(),
        };
        assert_documented("reshard", &ReshardJson::new(&done));
        assert!(reshard_text(2, &done).ends_with("--shard 0/2, walrelay run --shard 1/2\n"));
    }
}
