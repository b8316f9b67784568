//! The benchmark suite: the relay beside what else could be picked, on one machine in one run.
//!
//! Everything measured is a process of its own: Postgres, the sink, the relay, `pg_recvlogical`, and
//! the publishers that the relay is compared with, which are this program under another command.
//! Owns those processes and takes them away again. Ratios are the result: the machine is shared.

mod clients;
mod database;
mod drain;
mod live;
mod machine;
mod process;
mod report;
mod sink;
mod suite;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::clients::PublishOptions;
use crate::sink::SinkOptions;
use crate::suite::Size;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures the relay; prints tables and writes JSON.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(flatten)]
    suite: SuiteOptions,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What to run, and where the parts are.
#[derive(Debug, Args)]
pub(crate) struct SuiteOptions {
    /// How much is measured.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) size: Size,
    /// Only workloads whose name contains this; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// The relay's binary [default: walrelay beside this program].
    #[arg(long, value_name = "FILE")]
    pub(crate) relay: Option<PathBuf>,
    /// An argument for `walrelay run`; may be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) relay_arg: Vec<String>,
    /// The folder the JSON file is written to.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    pub(crate) results: PathBuf,
    /// Says in the result what else kept the machine busy.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The embedded Pub/Sub as a process of its own.
    Sink(SinkOptions),
    /// A publisher that the relay is compared with.
    Publish(PublishOptions),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let done = match line.part {
        None => suite::execute(&line.suite),
        Some(Part::Sink(options)) => sink::execute(options),
        Some(Part::Publish(options)) => clients::execute(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::complain(&*error);
            ExitCode::FAILURE
        }
    }
}
