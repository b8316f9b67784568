//! A consumer, its database and a filled subscription.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio_postgres::Client;
use walrelay_testkit::process::clean_command;
use walrelay_testkit::proxy::{Network, Proxy};

use crate::description::{Peer, Variant, render};
use walrelay_bench::consume::{fill, set_up};
use walrelay_bench::database::{Database, Rows, Server};
use walrelay_bench::failure::Failure;
use walrelay_bench::process::{Output, Process};
use walrelay_bench::sink::Sink;

const KEYS: u32 = 1_000;
const PAYLOAD_BYTES: u32 = 200;

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

    pub(super) fn start(&self, consumer: &Peer, variant: &Variant) -> Result<Process, Failure> {
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
