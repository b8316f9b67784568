//! Compares the consumer with subscribers on Google's client libraries.
//!
//! The relay fills a subscription, and each consumer applies the same events to the same table: the
//! newest state of each key, and the number of applied events. The table then shows which events
//! were lost or applied twice.

mod drain;
mod extent;
mod faults;
mod place;
pub(super) mod report;
pub(super) mod results;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::consumers::extent::ConsumerExtent;
use crate::consumers::faults::Fault;
use crate::consumers::results::MeasuredConsumer;
use crate::description::{CONSUMER_FILE, Peer, Variant, absolute, read_all};
use crate::results::{PeersResults, Skipped};
use walrelay_bench::database::{CommitDurability, Server};
use walrelay_bench::failure::Failure;
use walrelay_bench::sink::SUBSCRIPTION;
use walrelay_bench::terminal;

/// Where the consumers and their parts are.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConsumersOptions {
    /// The folder with one folder per consumer.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/peers/consumers")]
    consumers: PathBuf,
    /// The folder that scripts/install-clients.sh builds into.
    #[arg(long, value_name = "DIRECTORY", default_value = ".servers/clients")]
    clients: PathBuf,
}

/// The delays of the database that are measured, per round trip.
const DATABASE_MILLIS: [u64; 2] = [0, 3];

/// Measures all wanted consumers and adds them to the results. `is_wanted` gets the name of a consumer's folder.
pub(super) fn measure_all(
    options: &ConsumersOptions,
    relay: &Path,
    results: &mut PeersResults,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let extent = ConsumerExtent::of(results.size);
    let places = vec![
        ("relay", absolute(relay)?),
        ("clients", absolute(&options.clients)?),
        ("bench", std::env::current_exe()?.display().to_string()),
        ("subscription", SUBSCRIPTION.to_owned()),
    ];
    for consumer in read_all(&options.consumers, CONSUMER_FILE, &places)? {
        if !is_wanted(&consumer.folder) {
            continue;
        }
        if let Some(reason) = consumer.missing() {
            results.skipped.push(Skipped { peer: consumer.name.clone(), reason });
            continue;
        }
        for variant in &consumer.variants {
            results.consumers.push(measure(relay, &consumer, variant, extent)?);
        }
    }
    Ok(())
}

/// Measures one variant. A measurement that fails is recorded, and the others continue.
fn measure(
    relay: &Path,
    consumer: &Peer,
    variant: &Variant,
    extent: ConsumerExtent,
) -> Result<MeasuredConsumer, Failure> {
    let mut measured = MeasuredConsumer {
        consumer: consumer.name.clone(),
        variant: variant.name.clone(),
        licence: consumer.licence.clone(),
        documentation: consumer.documentation.clone(),
        drains: Vec::new(),
        faults: Vec::new(),
        failed: Vec::new(),
    };
    let label = measured.label();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Server::start(relay.to_owned(), CommitDurability::Cached)?;
    for millis in DATABASE_MILLIS {
        let name = format!("{millis} ms from the database");
        terminal::progress(&format!("{label}: {name}"));
        let done = drain::run(&server, variant, consumer, extent, millis);
        match runtime.block_on(done) {
            Ok(figures) => measured.drains.push(figures),
            Err(error) => measured.fail(&name, &error),
        }
    }
    for fault in Fault::ALL.into_iter().filter(|fault| fault.is_injected(extent)) {
        terminal::progress(&format!("{label}: {}", fault.name()));
        let done = faults::run(&server, variant, consumer, extent, fault);
        match runtime.block_on(done) {
            Ok(figures) => measured.faults.push(figures),
            Err(error) => measured.fail(fault.name(), &error),
        }
    }
    Ok(measured)
}
