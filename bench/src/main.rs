//! The benchmark suite: compares the relay with the available alternatives, on one machine in one
//! run.
//!
//! Every measured program is its own process: Postgres, the sink, the relay, `pg_recvlogical`, and
//! the comparison clients. The clients and the sink are this program under another subcommand. The
//! suite owns these processes and ends them. The results are ratios, because the machine is shared.

mod clients;
mod consume;
mod consume_live;
mod database;
mod drain;
mod failure;
mod live;
mod machine;
mod outage;
mod peers;
mod process;
mod raw_codec;
mod report;
mod republish;
mod results;
mod shards;
mod sink;
mod size;
mod statistics;
mod suite;
mod targets;
mod terminal;
mod traced;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::clients::PublishOptions;
use crate::consume::SubscribeOptions;
use crate::peers::PeersOptions;
use crate::sink::SinkOptions;
use crate::suite::SuiteOptions;

/// Measures the relay; prints tables and writes JSON.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(flatten)]
    suite: SuiteOptions,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The embedded Pub/Sub as a process of its own.
    Sink(SinkOptions),
    /// A publisher that the relay is compared with.
    Publish(PublishOptions),
    /// The relay beside the tools that people deploy instead.
    Peers(PeersOptions),
    /// The subscriber that the consumer is compared with.
    Subscribe(SubscribeOptions),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let done = match line.part {
        None => suite::execute(&line.suite),
        Some(Part::Sink(options)) => sink::execute(options),
        Some(Part::Peers(options)) => peers::execute(&options),
        Some(Part::Publish(options)) => clients::execute(&options),
        Some(Part::Subscribe(options)) => consume::execute(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&*error);
            ExitCode::FAILURE
        }
    }
}
