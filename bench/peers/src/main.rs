//! Compares the relay with the tools that people deploy instead, on one machine in one run.
//!
//! Each peer is described in a folder with a `peer.toml`. All peers get the same rows, the same
//! sink and the same faults, and one checker judges all of them. A peer that is not installed is
//! listed with the reason.

mod check;
mod consumers;
mod description;
mod drain;
mod extent;
mod fault_kind;
mod faults;
mod live;
mod producer;
mod report;
mod results;
mod samples;
mod supervisor;
mod workplace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use walrelay_bench::consume::SubscribeOptions;
use walrelay_bench::database::{CommitDurability, Server};
use walrelay_bench::failure::Failure;
use walrelay_bench::machine::{Machine, ProcessorTicks};
use walrelay_bench::sink::SinkOptions;
use walrelay_bench::size::Size;
use walrelay_bench::{consume, sink, suite, terminal};

use crate::consumers::ConsumersOptions;
use crate::description::{PEER_FILE, Peer, Variant, absolute, read_all};
use crate::extent::{Extent, REPLY_MILLIS};
use crate::fault_kind::FaultKind;
use crate::faults::FaultRun;
use crate::results::{Measured, PeersResults, Skipped};

/// Measures the relay beside other tools; prints tables and writes JSON.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(flatten)]
    peers: PeersOptions,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The parts that are measured in processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// The embedded Pub/Sub.
    Sink(SinkOptions),
    /// Google's Rust subscriber.
    Subscribe(SubscribeOptions),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let done = match line.part {
        None => execute(&line.peers),
        Some(Part::Sink(options)) => sink::execute(options),
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

/// Which peers to compare, and where their parts are.
#[derive(Debug, Args)]
struct PeersOptions {
    /// How much is measured.
    #[arg(long, value_enum, default_value = "full")]
    size: Size,
    /// Only peers whose folder name contains this; may be given several times. Consumers are named
    /// consumer-FOLDER.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// The relay's binary [default: walrelay beside this program].
    #[arg(long, value_name = "FILE")]
    relay: Option<PathBuf>,
    /// The folder with one folder per peer.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/peers/relays")]
    peers: PathBuf,
    /// The folder that scripts/install-peers.sh installs into.
    #[arg(long, value_name = "DIRECTORY", default_value = ".servers/peers")]
    installed: PathBuf,
    /// The folder that the JSON file and the tables are written to.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results/peers")]
    results: PathBuf,
    #[command(flatten)]
    consumers: ConsumersOptions,
    /// Says in the result what else kept the machine busy.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Runs the comparison.
fn execute(options: &PeersOptions) -> Result<(), Failure> {
    let relay = match &options.relay {
        Some(relay) => relay.clone(),
        None => suite::default_binary()?,
    };
    let extent = Extent::of(options.size);
    let ticks = ProcessorTicks::now();
    let server = Server::start(relay.clone(), CommitDurability::Cached)?;
    let mut results = PeersResults {
        machine: Machine::here(&server),
        size: options.size,
        note: options.note.clone(),
        foreign_share: 0.0,
        reply_millis: REPLY_MILLIS,
        measured: Vec::new(),
        skipped: Vec::new(),
        consumers: Vec::new(),
    };
    drop(server);
    let is_wanted = |folder: &str| {
        options.only.is_empty() || options.only.iter().any(|text| folder.contains(text))
    };
    let places = vec![("relay", absolute(&relay)?), ("installed", absolute(&options.installed)?)];
    for peer in read_all(&options.peers, PEER_FILE, &places)? {
        if !is_wanted(&peer.folder) {
            continue;
        }
        if let Some(reason) = peer.missing() {
            results.skipped.push(Skipped { peer: peer.name.clone(), reason });
            continue;
        }
        for variant in &peer.variants {
            results.measured.push(measure(&relay, &peer, variant, extent)?);
        }
    }
    let is_wanted_consumer = |folder: &str| is_wanted(&format!("consumer-{folder}"));
    consumers::measure_all(&options.consumers, &relay, &mut results, is_wanted_consumer)?;
    let share = ticks.zip(ProcessorTicks::now()).map(|(earlier, now)| now.foreign_share(earlier));
    results.foreign_share = share.unwrap_or(f64::NAN);
    report::write(&results, &options.results)?;
    terminal::say(&report::markdown(&results));
    Ok(())
}

/// Measures one variant. A measurement that fails is recorded, and the others continue.
fn measure(
    relay: &Path,
    peer: &Peer,
    variant: &Variant,
    extent: Extent,
) -> Result<Measured, Failure> {
    let mut measured = Measured {
        peer: peer.name.clone(),
        variant: variant.name.clone(),
        licence: peer.licence.clone(),
        documentation: peer.documentation.clone(),
        note: peer.note.clone(),
        installation_mebibytes: peer.installation_mebibytes(),
        drains: Vec::new(),
        lives: Vec::new(),
        faults: Vec::new(),
        failed: Vec::new(),
    };
    let label = measured.label();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Server::start(relay.to_owned(), CommitDurability::Cached)?;
    for shape in drain::SHAPES {
        terminal::progress(&format!("{label}: {}", shape.name));
        let done = runtime.block_on(drain::run(&server, peer, variant, shape, extent));
        keep(done, shape.name, &mut measured.drains, &mut measured.failed);
    }
    for rows_per_second in live::RATES {
        let name = format!("live at {rows_per_second} rows/s");
        terminal::progress(&format!("{label}: {name}"));
        let done = runtime.block_on(live::run(&server, peer, variant, rows_per_second, extent));
        keep(done, &name, &mut measured.lives, &mut measured.failed);
    }
    drop(server);
    let is_last = peer.variants.last().is_some_and(|last| last.name == variant.name);
    for kind in FaultKind::ALL.into_iter().filter(|_| is_last) {
        terminal::progress(&format!("{label}: {}", kind.name()));
        // Each fault run has its own server, because one of the faults restarts it.
        let own = Server::start(relay.to_owned(), CommitDurability::Cached)?;
        let done = faults::run(&runtime, own, &FaultRun { peer, variant, kind, extent });
        keep(done, kind.name(), &mut measured.faults, &mut measured.failed);
    }
    Ok(measured)
}

fn keep<T>(done: Result<T, Failure>, name: &str, kept: &mut Vec<T>, failed: &mut Vec<String>) {
    match done {
        Ok(figures) => kept.push(figures),
        Err(error) => {
            terminal::complain(&*error);
            failed.push(format!("{name}: {error}"));
        }
    }
}
