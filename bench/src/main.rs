//! The benchmark suite: compares the relay with the available alternatives, on one machine in one
//! run.
//!
//! Every measured program is its own process: Postgres, the sink, the relay, `pg_recvlogical`, and
//! the comparison clients. The clients and the sink are this program under another subcommand. The
//! suite owns these processes and ends them. The results are ratios, because the machine is shared.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use walrelay_bench::clients::PublishOptions;
use walrelay_bench::consume::SubscribeOptions;
use walrelay_bench::sink::SinkOptions;
use walrelay_bench::suite::SuiteOptions;
use walrelay_bench::{clients, consume, sink, suite, terminal};

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
    /// The subscriber that the consumer is compared with.
    Subscribe(SubscribeOptions),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let done = match line.part {
        None => suite::execute(&line.suite),
        Some(Part::Sink(options)) => sink::execute(options),
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
