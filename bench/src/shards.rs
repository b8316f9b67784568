//! Measures the drain of the same backlog with one relay, and with one relay per shard.

use serde::Serialize;

use crate::database::{Rows, Server};
use crate::drain::{self, RelayRound, start_relay};
use crate::failure::Failure;
use crate::sink::{Sink, SinkOptions};

/// A backlog and the number of relays that drain it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shards {
    pub(crate) name: &'static str,
    pub(crate) count: u32,
    pub(crate) rows: Rows,
    pub(crate) rounds: u32,
}

/// A workload's result. Each round holds the CPU time of all relays together and the peak memory of
/// the largest.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ShardedResult {
    pub(crate) name: &'static str,
    pub(crate) shards: u32,
    pub(crate) rows: u32,
    pub(crate) rounds: Vec<RelayRound>,
}

/// Loads the backlog once and drains it once per round.
pub(crate) async fn run(
    server: &Server,
    shards: Shards,
    arguments: &[String],
) -> Result<ShardedResult, Failure> {
    let Shards { name, count, rows, rounds: rounds_count } = shards;
    let mut database = server.create_with_shards(&name.replace('-', "_"), count).await?;
    database.load(rows).await?;
    let mut rounds = Vec::new();
    for _ in 0..rounds_count {
        let slot = database.copy_slots(count).await?;
        let mut sink = Sink::start(SinkOptions::default()).await?;
        let mut relays = Vec::new();
        for index in 0..count {
            let shard = (count > 1).then(|| format!("--shard={index}/{count}"));
            let options: Vec<String> = arguments.iter().cloned().chain(shard).collect();
            relays.push(start_relay(server.relay(), &database, &slot, &sink, &options)?);
        }
        rounds.push(drain::by(&mut sink, relays, rows.count).await?);
        database.drop_slots(&slot).await?;
    }
    server.remove(database).await?;
    Ok(ShardedResult { name, shards: count, rows: rows.count, rounds })
}
