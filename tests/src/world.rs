//! One test's own database, slot, publication, Pub/Sub and topic, around the real binary.

use std::time::Duration;

use tokio_postgres::types::PgLsn;
use walrelay_testkit::checker::{self, Committed, Verdict};
use walrelay_testkit::postgres::{TestClient, TestDatabase};
use walrelay_testkit::relay::{Finished, Relay, RelayCommand};
use walrelay_testkit::wait_until;

use crate::pubsub::{PROJECT, PubSub};

/// How long anything ordinary may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A database that `walrelay init` has set up, and a Pub/Sub with the topic `video.events`.
#[derive(Debug)]
pub struct World {
    /// The embedded Pub/Sub.
    pub pubsub: PubSub,
    client: TestClient,
    database: TestDatabase,
}

impl World {
    /// On the default server; reports the test as skipped when there is none.
    pub async fn create() -> Option<Self> {
        Self::create_empty().await?.initialised().await
    }

    /// On a server of this major version; reports the test as skipped without one.
    pub async fn create_on(major: u32) -> Option<Self> {
        Self::create_empty_on(major).await?.initialised().await
    }

    /// On the server behind this connection string.
    pub async fn create_at(server_url: &str) -> Option<Self> {
        Self::bare(TestDatabase::create_at(server_url).await).await?.initialised().await
    }

    /// Without tables, publication and slot.
    pub async fn create_empty() -> Option<Self> {
        Self::bare(TestDatabase::create_or_skip().await?).await
    }

    /// As [`create_empty`](Self::create_empty), on a server of this major version.
    pub async fn create_empty_on(major: u32) -> Option<Self> {
        Self::bare(TestDatabase::create_on(major).await?).await
    }

    /// As [`create_empty_on`](Self::create_empty_on), in a database of the encoding SQL_ASCII.
    pub async fn create_unchecked_on(major: u32) -> Option<Self> {
        Self::bare(TestDatabase::create_unchecked_on(major).await?).await
    }

    async fn bare(database: TestDatabase) -> Option<Self> {
        // Says so, and skips the test, when the binary is not built.
        drop(RelayCommand::new(["--version"])?);
        let pubsub = PubSub::start();
        pubsub.create_topic("video.events");
        let client = database.connect().await;
        Some(Self { pubsub, client, database })
    }

    async fn initialised(self) -> Option<Self> {
        self.succeed(["init"]).await;
        Some(self)
    }

    /// Connects again, after the server has been restarted.
    pub async fn reconnect(&mut self) {
        self.client = self.database.connect().await;
    }

    /// A command of the binary, configured for this world by its environment.
    #[must_use]
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> RelayCommand {
        RelayCommand::new(arguments)
            .expect("the binary was there before")
            .env("DATABASE_URL", self.database.url())
            .env("PUBSUB_EMULATOR_HOST", self.pubsub.address())
            .env("PUBSUB_PROJECT_ID", PROJECT)
            .env("WALRELAY_SLOT", self.name())
            .env("WALRELAY_PUBLICATION", self.name())
    }

    /// Runs a command to its end.
    pub async fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Finished {
        self.command(arguments).finish(DEADLINE).await
    }

    /// Runs a command that has to succeed, and returns what it printed.
    pub async fn succeed<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        let done = self.run(arguments).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        done.text
    }

    /// Runs the relay until it has caught up.
    pub async fn catch_up(&self) {
        self.succeed(["run", "--until-caught-up"]).await;
    }

    /// `walrelay run` with these options, which serves HTTP.
    #[must_use]
    pub fn relay<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> RelayCommand {
        self.command(["run"].into_iter().chain(options)).with_http()
    }

    /// A started `walrelay run` with these options that streams.
    pub async fn start_relay<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> Relay {
        let relay = self.relay(options).start();
        relay.wait_for_line(DEADLINE, "\"streaming\"").await;
        relay
    }

    /// A connection to the database.
    #[must_use]
    pub fn client(&self) -> &tokio_postgres::Client {
        &self.client
    }

    /// Another connection to the database.
    pub async fn connect(&self) -> TestClient {
        self.database.connect().await
    }

    /// The name of database, slot and publication.
    #[must_use]
    pub fn name(&self) -> &str {
        self.database.name()
    }

    /// The connection string of the database.
    #[must_use]
    pub fn url(&self) -> &str {
        self.database.url()
    }

    /// Runs statements.
    pub async fn execute(&self, sql: &str) {
        let done = self.client().batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The one number a query yields.
    pub async fn number(&self, sql: &str) -> i64 {
        let row = self.client().query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// How far the slot is confirmed.
    pub async fn confirmed_flush(&self) -> u64 {
        let sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.client().query_one(sql, &[&self.name()]).await;
        row.expect("the slot is there").get::<_, PgLsn>(0).into()
    }

    /// The end of the log.
    pub async fn wal_end(&self) -> u64 {
        let row = self.client().query_one("SELECT pg_current_wal_insert_lsn()", &[]).await;
        row.expect("the server tells its position").get::<_, PgLsn>(0).into()
    }

    /// How far the slot is behind the end of the log.
    pub async fn slot_lag_bytes(&self) -> u64 {
        let confirmed = self.confirmed_flush().await;
        self.wal_end().await.saturating_sub(confirmed)
    }

    /// Waits until everything committed before this call is confirmed.
    pub async fn wait_confirmed(&self, deadline: Duration) {
        // A transaction that ended just now may end beyond the insert position's last record.
        let row = self.client().query_one("SELECT pg_current_wal_lsn()", &[]).await;
        let goal: u64 = row.expect("the server tells its position").get::<_, PgLsn>(0).into();
        wait_until(deadline, "everything committed to be confirmed", async || {
            (self.confirmed_flush().await >= goal).then_some(())
        })
        .await;
    }

    /// Waits until the slot's lag is below this.
    pub async fn wait_lag_below(&self, deadline: Duration, bytes: u64) {
        wait_until(deadline, &format!("the slot's lag to fall below {bytes} bytes"), async || {
            (self.slot_lag_bytes().await < bytes).then_some(())
        })
        .await;
    }

    /// Waits until no session holds the slot.
    pub async fn wait_slot_free(&self, deadline: Duration) {
        let sql = "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = $1";
        wait_until(deadline, "the slot to be free", async || {
            let row = self.client().query_one(sql, &[&self.name()]).await;
            row.expect("the slot is there").get::<_, bool>(0).then_some(())
        })
        .await;
    }

    /// How many rows dispatch state has in this status.
    pub async fn dispatch_count(&self, status: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM app_outbox_dispatch WHERE status = '{status}'"))
            .await
    }

    /// Waits until dispatch state has exactly this many rows in this status.
    pub async fn wait_dispatch(&self, deadline: Duration, status: &str, count: i64) {
        wait_until(deadline, &format!("{count} {status} rows in dispatch state"), async || {
            (self.dispatch_count(status).await == count).then_some(())
        })
        .await;
    }

    /// What `app_outbox` holds, by version: within an aggregate the order of commit, as long as one
    /// producer alone writes it.
    pub async fn committed(&self) -> Vec<Committed> {
        let sql =
            "SELECT id::text, aggregateid, payload::text FROM app_outbox ORDER BY version, id";
        let rows = self.client().query(sql, &[]).await.expect("the outbox can be read");
        let committed = rows.iter().map(|row| Committed {
            event_id: row.get(0),
            key: row.get(1),
            data: row.get::<_, String>(2).into_bytes(),
        });
        committed.collect()
    }

    /// Compares what was committed with what was stored.
    #[must_use]
    pub fn check(&self, committed: &[Committed]) -> Verdict {
        let requests = self.pubsub.emulator().stats().in_flight_per_key_max;
        assert!(requests <= 1, "I3: {requests} requests of one key were outstanding at once");
        checker::check(committed, &self.pubsub.stored())
    }
}
