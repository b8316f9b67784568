//! One test's own database, slot, publication, Pub/Sub and topic, around the real binary.

use std::time::Duration;

use tokio_postgres::types::PgLsn;
use walrelay_outbox_admin::{InitOptions, InitPlan};
use walrelay_outbox_store::{Outbox, Shard, migrate, migrations};
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::checker::{self, Committed, Verdict};
use walrelay_testkit::postgres::{TestClient, TestDatabase};
use walrelay_testkit::relay::{Finished, Relay, RelayCommand};
use walrelay_testkit::wait_until;

use crate::pubsub::{PROJECT, PubSub};

/// The time limit for any ordinary step on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Returns the options of `walrelay init`. Slot and publication have the name of the database.
fn init_options(name: &str) -> InitOptions {
    InitOptions::new(Outbox {
        slot: name.to_owned(),
        publication: name.to_owned(),
        tables: tables(),
        shard: Shard::WHOLE,
    })
}

fn tables() -> Vec<QualifiedName> {
    vec![QualifiedName::new("public", "app_outbox")]
}

/// Makes the tables and functions of the outbox in an empty database.
async fn make_tables(session: &TestClient) {
    migrate(session, &tables()).await.expect("the migrations run");
}

/// A database that `walrelay init` has set up, and a Pub/Sub with the topic `video.events`.
#[derive(Debug)]
pub struct InboxDatabase {
    /// The embedded Pub/Sub.
    pub pubsub: PubSub,
    client: TestClient,
    database: TestDatabase,
    /// The value of `--schema`, unless it is the default.
    schema: Option<&'static str>,
}

impl InboxDatabase {
    /// Creates an environment on a server of the default version. Reports the test as skipped
    /// without a server.
    pub async fn create() -> Option<Self> {
        Self::bare(TestDatabase::copy_or_skip(make_tables).await?).await?.initialised().await
    }

    /// As [`create`](Self::create), on a server of this major version.
    pub async fn create_on(major: u32) -> Option<Self> {
        Self::bare(TestDatabase::copy_on(major, make_tables).await?).await?.initialised().await
    }

    /// As [`create`](Self::create), for a test of a feature that the server has had since this
    /// major version.
    pub async fn create_since(major: u32) -> Option<Self> {
        Self::create_empty_since(major).await?.with_tables().await?.initialised().await
    }

    /// Creates an environment on the server of this connection string.
    pub async fn create_at(server_url: &str) -> Option<Self> {
        Self::create_empty_at(server_url).await?.with_tables().await?.initialised().await
    }

    /// As [`create_empty`](Self::create_empty), on the server of this connection string.
    pub async fn create_empty_at(server_url: &str) -> Option<Self> {
        Self::bare(TestDatabase::create_at(server_url).await).await
    }

    /// Creates an environment without tables, publication and slot.
    pub async fn create_empty() -> Option<Self> {
        Self::bare(TestDatabase::create_or_skip().await?).await
    }

    /// As [`create_empty`](Self::create_empty), for a test of a feature that the server has had
    /// since this major version.
    pub async fn create_empty_since(major: u32) -> Option<Self> {
        Self::bare(TestDatabase::create_since(major).await?).await
    }

    /// As [`create_empty`](Self::create_empty), in a database of the encoding SQL_ASCII.
    pub async fn create_unchecked() -> Option<Self> {
        Self::bare(TestDatabase::create_unchecked_or_skip().await?).await
    }

    /// As [`create_empty`](Self::create_empty), for commands with `--schema`. The sessions of the
    /// test find the schema through their `search_path`.
    pub async fn create_in_schema(schema: &'static str) -> Option<Self> {
        let world = Self::create_empty().await?;
        world.execute(&format!("SET search_path TO \"{schema}\"")).await;
        Some(Self { schema: Some(schema), ..world })
    }

    /// Returns the SQL with the type of an event in the schema of this environment. A handler runs
    /// with the search path of the consumer, which the schema does not change.
    pub(crate) fn with_event_type(&self, sql: &str) -> String {
        match self.schema {
            Some(schema) => {
                sql.replace("app_inbox_event", &format!("\"{schema}\".app_inbox_event"))
            }
            None => sql.to_owned(),
        }
    }

    async fn bare(database: TestDatabase) -> Option<Self> {
        // Reports the test as skipped when the binary is not built.
        drop(RelayCommand::new(["--version"])?);
        let pubsub = PubSub::start();
        pubsub.create_topic("video.events");
        let client = database.connect().await;
        Some(Self { pubsub, client, database, schema: None })
    }

    async fn with_tables(self) -> Option<Self> {
        make_tables(&self.client).await;
        Some(self)
    }

    /// Creates publication, slot and record in a database that has the tables.
    async fn initialised(self) -> Option<Self> {
        let plan = InitPlan::new(&init_options(self.name())).expect("a valid name");
        // The first steps are the migrations, which the database has.
        for step in plan.steps().iter().skip(migrations(&tables()).len()) {
            self.execute(&step.sql).await;
        }
        Some(self)
    }

    /// Returns the major version of the server.
    #[must_use]
    pub fn major(&self) -> u32 {
        self.database.server_version()
    }

    /// Reconnects after a restart of the server.
    pub async fn reconnect(&mut self) {
        self.client = self.database.connect().await;
    }

    /// Returns a command of the binary. Environment variables configure the command for this
    /// environment.
    #[must_use]
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> RelayCommand {
        let command = RelayCommand::new(arguments).expect("the binary was there before");
        let command = match self.schema {
            Some(schema) => command.env("WALRELAY_SCHEMA", schema),
            None => command,
        };
        command
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

    /// Runs a command, checks that it succeeds, and returns its output.
    pub async fn succeed<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        let done = self.run(arguments).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        done.text
    }

    /// Runs the relay until it has caught up.
    pub async fn catch_up(&self) {
        self.succeed(["run", "--until-caught-up"]).await;
    }

    /// Runs the relay until every committed row of the outbox is recorded as settled. The horizon is
    /// recorded once the WAL has moved past it.
    pub async fn settle(&self) {
        self.settle_rows_of("app_outbox").await;
    }

    /// As [`settle`](Self::settle), for the rows of another outbox table.
    pub async fn settle_rows_of(&self, table: &str) {
        self.catch_up().await;
        let behind = format!(
            "SELECT count(*) FROM {table} WHERE age(xmin) <=
                        (SELECT age(settled_xid::xid) FROM app_outbox_relay)"
        );
        wait_until(DEADLINE, "the horizon to pass the rows", async || {
            self.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
            self.catch_up().await;
            (self.number(&behind).await == 0).then_some(())
        })
        .await;
    }

    /// Returns the command `walrelay run` with these options and with HTTP.
    #[must_use]
    pub fn relay<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> RelayCommand {
        self.command(["run"].into_iter().chain(options)).with_http()
    }

    /// Starts `walrelay run` with these options, and waits until it streams.
    pub async fn start_relay<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> Relay {
        let relay = self.relay(options).start();
        relay.wait_for_line(DEADLINE, "\"streaming\"").await;
        relay
    }

    /// Returns a connection to the database.
    #[must_use]
    pub fn client(&self) -> &tokio_postgres::Client {
        &self.client
    }

    /// Opens another connection to the database.
    pub async fn connect(&self) -> TestClient {
        self.database.connect().await
    }

    /// Returns the name of the database, the slot and the publication.
    #[must_use]
    pub fn name(&self) -> &str {
        self.database.name()
    }

    /// Returns the connection string of the database.
    #[must_use]
    pub fn url(&self) -> &str {
        self.database.url()
    }

    /// Runs SQL statements.
    pub async fn execute(&self, sql: &str) {
        let done = self.client().batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Runs a shell command as the server, in its data directory. The program reads its input to the
    /// end first, because Postgres reports a broken pipe otherwise.
    pub async fn execute_on_server(&self, command: &str) {
        self.execute(&format!("COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; {command}'")).await;
    }

    /// Returns the single number of a query's result.
    pub async fn number(&self, sql: &str) -> i64 {
        let row = self.client().query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Returns the slot's confirmed position.
    pub async fn confirmed_flush(&self) -> u64 {
        let sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.client().query_one(sql, &[&self.name()]).await;
        row.expect("the slot is there").get::<_, PgLsn>(0).into()
    }

    /// Returns the end of the WAL.
    pub async fn wal_end(&self) -> u64 {
        let row = self.client().query_one("SELECT pg_current_wal_insert_lsn()", &[]).await;
        row.expect("the server tells its position").get::<_, PgLsn>(0).into()
    }

    /// Returns the distance in bytes from the slot's confirmed position to the end of the WAL.
    pub async fn slot_lag_bytes(&self) -> u64 {
        let confirmed = self.confirmed_flush().await;
        self.wal_end().await.saturating_sub(confirmed)
    }

    /// Waits until everything committed before this call is confirmed.
    pub async fn wait_confirmed(&self, deadline: Duration) {
        // The insert position may be beyond the last record, so the wait uses the write position.
        let row = self.client().query_one("SELECT pg_current_wal_lsn()", &[]).await;
        let goal: u64 = row.expect("the server tells its position").get::<_, PgLsn>(0).into();
        wait_until(deadline, "everything committed to be confirmed", async || {
            (self.confirmed_flush().await >= goal).then_some(())
        })
        .await;
    }

    /// Waits until the slot's lag is below `bytes`.
    pub async fn wait_lag_below(&self, deadline: Duration, bytes: u64) {
        wait_until(deadline, &format!("the slot's lag to fall below {bytes} bytes"), async || {
            (self.slot_lag_bytes().await < bytes).then_some(())
        })
        .await;
    }

    /// Waits until no session uses the slot.
    pub async fn wait_slot_free(&self, deadline: Duration) {
        let sql = "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = $1";
        wait_until(deadline, "the slot to be free", async || {
            let row = self.client().query_one(sql, &[&self.name()]).await;
            row.expect("the slot is there").get::<_, bool>(0).then_some(())
        })
        .await;
    }

    /// Returns the number of rows in dispatch state with this status.
    pub async fn dispatch_count(&self, status: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM app_outbox_dispatch WHERE status = '{status}'"))
            .await
    }

    /// Waits until dispatch state has exactly `count` rows with this status.
    pub async fn wait_dispatch(&self, deadline: Duration, status: &str, count: i64) {
        wait_until(deadline, &format!("{count} {status} rows in dispatch state"), async || {
            (self.dispatch_count(status).await == count).then_some(())
        })
        .await;
    }

    /// Returns the rows of `app_outbox` by version. Within an aggregate this is the commit order,
    /// if a single producer writes the aggregate.
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

    /// Compares the committed rows with the stored messages.
    #[must_use]
    pub fn check(&self, committed: &[Committed]) -> Verdict {
        let requests = self.pubsub.emulator().stats().in_flight_per_key_max;
        assert!(requests <= 1, "I3: {requests} requests of one key were outstanding at once");
        checker::check(committed, &self.pubsub.stored())
    }
}
