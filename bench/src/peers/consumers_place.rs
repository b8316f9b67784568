//! Reads the descriptions of consumers, and starts a consumer on a filled subscription.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::Client;
use walrelay_testkit::process::clean_command;
use walrelay_testkit::proxy::{Network, Proxy};

use crate::consume::{fill, set_up};
use crate::database::{Database, Rows, Server};
use crate::failure::Failure;
use crate::peers::description::{Variant, render};
use crate::process::{Output, Process};
use crate::sink::{SUBSCRIPTION, Sink};

/// The file in a consumer's folder.
const FILE: &str = "consumer.toml";

const KEYS: u32 = 1_000;
const PAYLOAD_BYTES: u32 = 200;

/// The shape of `consumer.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsumerFile {
    name: String,
    licence: String,
    documentation: Vec<String>,
    /// The paths without which the consumer is not installed.
    needs: Vec<String>,
    /// How to install the consumer.
    install: String,
    #[serde(rename = "variant")]
    variants: Vec<Variant>,
}

/// A consumer that can be started.
#[derive(Debug)]
pub(super) struct Consumer {
    /// The name of its folder.
    pub(super) folder: String,
    pub(super) name: String,
    pub(super) licence: String,
    pub(super) documentation: Vec<String>,
    pub(super) variants: Vec<Variant>,
    needs: Vec<PathBuf>,
    install: String,
    /// The placeholders whose values do not change from run to run.
    places: Vec<(&'static str, String)>,
}

/// Reads all consumers, walrelay first.
pub(super) fn read_all(
    consumers: &Path,
    clients: &Path,
    relay: &Path,
) -> Result<Vec<Consumer>, Failure> {
    let mut folders: Vec<PathBuf> = fs::read_dir(consumers)
        .map_err(|error| format!("read {}: {error}", consumers.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(FILE).is_file())
        .collect();
    folders.sort_by_key(|folder| (!folder.ends_with("walrelay"), folder.clone()));
    folders.iter().map(|folder| read(folder, clients, relay)).collect()
}

fn read(folder: &Path, clients: &Path, relay: &Path) -> Result<Consumer, Failure> {
    let file_path = folder.join(FILE);
    let described = |error: &dyn std::fmt::Display| format!("{}: {error}", file_path.display());
    let content = fs::read_to_string(&file_path).map_err(|error| described(&error))?;
    let file: ConsumerFile = toml::from_str(&content).map_err(|error| described(&error))?;
    let absolute = |path: &Path| std::path::absolute(path).map(|full| full.display().to_string());
    let places = vec![
        ("relay", absolute(relay)?),
        ("clients", absolute(clients)?),
        ("folder", absolute(folder)?),
        ("bench", std::env::current_exe()?.display().to_string()),
        ("subscription", SUBSCRIPTION.to_owned()),
    ];
    Ok(Consumer {
        folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        name: file.name,
        licence: file.licence,
        documentation: file.documentation,
        variants: file.variants,
        needs: file.needs.iter().map(|text| PathBuf::from(render(text, &places))).collect(),
        install: file.install,
        places,
    })
}

impl Consumer {
    /// Returns the reason why the consumer cannot be started.
    pub(super) fn missing(&self) -> Option<String> {
        let missing = self.needs.iter().find(|path| !path.exists())?;
        Some(format!("{} is missing; {}", missing.display(), self.install))
    }
}

/// A database and a filled subscription.
pub(super) struct Place {
    pub(super) database: Database,
    pub(super) sink: Sink,
    proxy: Proxy,
    url: String,
}

impl Place {
    /// Fills a subscription with `events` events. Each round trip to the database takes
    /// `database_millis` longer.
    pub(super) async fn create(
        server: &Server,
        events: u32,
        database_millis: u64,
    ) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("consumer_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut database = server.create(&name).await?;
        let rows = Rows {
            count: events,
            per_transaction: 10,
            aggregates: KEYS.min(events),
            payload_bytes: PAYLOAD_BYTES,
        };
        database.load(rows).await?;
        let sink = fill(server, &mut database, events).await?;
        set_up(server, &database, 0, &sink).await?;
        database.client().batch_execute("CHECKPOINT").await?;
        let proxy = Proxy::start(&database.address()?).await;
        proxy.set(Network::Delayed(Duration::from_millis(database_millis) / 2));
        let url = match database_millis {
            0 => database.url().to_owned(),
            _ => database.url_at(&proxy.address().to_string())?,
        };
        Ok(Self { database, sink, proxy, url })
    }

    pub(super) fn start(&self, consumer: &Consumer, variant: &Variant) -> Result<Process, Failure> {
        let mut places = consumer.places.clone();
        places.extend([("url", self.url.clone()), ("pubsub", self.sink.address())]);
        let words: Vec<String> = variant.command.iter().map(|word| render(word, &places)).collect();
        let (program, arguments) = words.split_first().ok_or("the command is empty")?;
        let environment = variant.environment.iter();
        let mut command = clean_command(program);
        command.args(arguments);
        command.envs(environment.map(|(name, value)| (name, render(value, &places))));
        Process::start(&consumer.name, command, Output::Log)
    }

    /// Returns the number of applied events, counted again for each time an event was applied.
    pub(super) async fn applied(&self) -> Result<u32, Failure> {
        let client: &Client = self.database.client();
        let sql = "SELECT coalesce(sum(events), 0)::bigint FROM bench_state";
        let applied: i64 = client.query_one(sql, &[]).await?.try_get(0)?;
        Ok(u32::try_from(applied)?)
    }

    pub(super) async fn remove(self, server: &Server) -> Result<(), Failure> {
        drop(self.proxy);
        server.remove(self.database).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_consumer_is_readable_and_names_what_it_lacks() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("consumers");
        let all = read_all(&folder, Path::new("nowhere"), Path::new("walrelay")).unwrap();
        let names: Vec<&str> = all.iter().map(|consumer| consumer.folder.as_str()).collect();
        assert_eq!(names, ["walrelay", "go", "java", "python", "rust"]);
        for consumer in &all {
            assert!(!consumer.variants.is_empty() && !consumer.documentation.is_empty());
        }
        let reason = all[1].missing().unwrap();
        assert!(reason.contains("nowhere") && reason.contains("install-clients"), "{reason}");
    }
}
