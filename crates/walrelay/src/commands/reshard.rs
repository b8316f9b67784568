//! `walrelay reshard`: changes the number of shards while producers write, without loss or
//! reordering.

use crate::config::ReshardConfig;
use crate::error::Error;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{DroppedShard, Reshard, ReshardEnd, Resharded, Switch};
use walrelay_pg_client::connect_sql;
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::Terminal;

/// Changes the number of shards, and prints which relays to start.
///
/// # Errors
///
/// A precondition fails, the server or Pub/Sub refuses, or the command was interrupted. Before the
/// switch the old relays then continue.
pub(crate) async fn execute(config: ReshardConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let ReshardConfig { settings, shards, options } = config;
    let terminal = Terminal::new(options, shutdown);
    let mut client = connect_sql(&settings.connect).await?;
    let reshard = Reshard { settings: &settings, shards, operator: &terminal, stop: shutdown };
    let done = Box::pin(reshard.run(&mut client)).await;
    client.close().await;
    let done = done?;
    terminal.print_result(done.as_ref(), |it| reshard_text(shards, it), ReshardJson::new)
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
