//! Creates a new database per test on a Postgres server.
//!
//! Tests run on the default version: the newest one that is installed, or the one that
//! [`VERSION_VARIABLE`] names. `with-servers` starts as many servers of it as tests run at a time.
//! So a slot waits for no transaction of another test and decodes no other test's WAL. Without
//! `with-servers`, the process starts a server itself and its tests share it. Name slots after the
//! database ([`TestDatabase::name`]).

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::{Client, Config, NoTls};
use walrelay_private_postgres::{Installation, PrivatePostgres, installations_in};

use crate::environment::{random_name, servers_dir, variable};
use crate::{skip, wait_until};

/// The variable with the addresses of the servers of the default version, separated by spaces. With
/// a suffix such as `_15`, the address of a server of that major version.
pub const URL_VARIABLE: &str = "WALRELAY_TEST_POSTGRES_URL";

/// The variable with the major version that the tests run on.
pub const VERSION_VARIABLE: &str = "WALRELAY_TEST_POSTGRES";

/// The variable with the number of the slot that cargo-nextest runs a test in. Two tests that run at
/// the same time have different numbers.
const TEST_SLOT_VARIABLE: &str = "NEXTEST_TEST_GLOBAL_SLOT";

/// The database that a test's own database is copied from.
const TEMPLATE: &str = "walrelay_template";

/// The time limit for the end of a terminated replication session.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(20);

/// Servers that this process started. A static is never dropped, but the servers' supervisors
/// notice the end of the process.
static OWN_SERVERS: Mutex<BTreeMap<u32, PrivatePostgres>> = Mutex::new(BTreeMap::new());

/// The turn of the next database among the servers of the default version.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Returns one installation per major version on this machine, oldest first.
#[must_use]
pub fn installations() -> Vec<Installation> {
    let mut found = installations_in(&[servers_dir()]);
    // If a major version has several builds, the newest build is used.
    found.reverse();
    found.dedup_by_key(|installation| installation.major);
    found.reverse();
    found
}

/// Returns the installation of the default version, which is the newest one unless
/// [`VERSION_VARIABLE`] names another.
#[must_use]
pub fn default_installation() -> Option<Installation> {
    let wanted = variable(VERSION_VARIABLE);
    let is_wanted = |found: &Installation| match &wanted {
        Some(major) => found.major.to_string() == *major,
        None => true,
    };
    installations().into_iter().rfind(is_wanted)
}

/// Returns the installation of the default version, for tests with their own server. Reports the
/// test as skipped when it is not installed.
#[must_use]
pub fn installation_or_skip() -> Option<Installation> {
    default_installation().or_else(|| skip("no Postgres server binaries found"))
}

/// The first version whose `pg_upgrade` preserves logical slots.
const SLOT_UPGRADE_SINCE: u32 = 17;

/// Returns the oldest and the newest installation between which `pg_upgrade` preserves logical
/// slots. Both may be the same installation. Reports the test as skipped when none is installed.
#[must_use]
pub fn upgrade_or_skip() -> Option<(Installation, Installation)> {
    let mut found = installations_in(&[servers_dir()]);
    found.retain(|one| one.major >= SLOT_UPGRADE_SINCE && one.pg_upgrade().is_some());
    match (found.first(), found.last()) {
        (Some(oldest), Some(newest)) => Some((oldest.clone(), newest.clone())),
        (None, _) | (_, None) => skip("no pg_upgrade of Postgres 17 or newer found"),
    }
}

/// Returns an installation whose next transaction id can be moved. Reports the test as skipped when
/// none is installed.
#[must_use]
pub fn resetwal_or_skip() -> Option<Installation> {
    let found = installations().into_iter().find(Installation::has_pg_resetwal);
    found.or_else(|| skip("no pg_resetwal found"))
}

/// A client with its connection task. Dropping the value closes the connection.
#[derive(Debug)]
pub struct TestClient {
    client: Client,
    _connection: JoinSet<()>,
}

impl TestClient {
    /// Connects. Panics on failure.
    pub async fn connect(url: &str) -> Self {
        let connected = Self::try_connect(url).await;
        connected.unwrap_or_else(|error| panic!("connect to {url}: {error:?}"))
    }

    /// Connects, for callers that can proceed without a connection.
    pub async fn try_connect(url: &str) -> Result<Self, tokio_postgres::Error> {
        Self::open(&url.parse()?).await
    }

    pub async fn open(config: &Config) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        let mut tasks = JoinSet::new();
        // The next query reports a failed connection.
        tasks.spawn(async move { drop(connection.await) });
        Ok(Self { client, _connection: tasks })
    }

    /// A session of another role on this database.
    pub async fn as_role(database: &TestDatabase, role: &str) -> Self {
        let mut config: Config = database.url().parse().expect("a connection string");
        config.user(role);
        Self::open(&config).await.expect("a connection")
    }

    /// The one value of the one row, as text.
    pub async fn text(&self, sql: &str) -> String {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Runs statements. Panics if one fails.
    pub async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

impl Deref for TestClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Mutable access, which transactions need.
impl DerefMut for TestClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// A database with a random name. Dropping the value drops the database and its slots.
#[derive(Debug)]
pub struct TestDatabase {
    server_url: String,
    name: String,
    url: String,
    client: TestClient,
    server_version: u32,
}

impl TestDatabase {
    /// Creates a database on a server of the default version.
    pub async fn create() -> Self {
        let url = default_server_url();
        Self::create_at(
            &url.expect("Postgres server binaries, as from `apt-get install postgresql`"),
        )
        .await
    }

    /// As [`create`](Self::create), but reports the test as skipped where no server is installed.
    pub async fn create_or_skip() -> Option<Self> {
        match default_server_url() {
            Some(url) => Some(Self::create_at(&url).await),
            None => skip("no Postgres server binaries found"),
        }
    }

    /// Creates a database on a server of this major version. Reports the test as skipped without
    /// one.
    pub async fn create_on(major: u32) -> Option<Self> {
        match server_url(major) {
            Some(url) => Some(Self::create_at(&url).await),
            None => skip(&format!("no Postgres {major} found")),
        }
    }

    /// As [`create_or_skip`](Self::create_or_skip), with the encoding SQL_ASCII, which accepts any
    /// bytes as text.
    pub async fn create_unchecked_or_skip() -> Option<Self> {
        let options = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'";
        match default_server_url() {
            Some(url) => Some(Self::create_with(&url, options).await),
            None => skip("no Postgres server binaries found"),
        }
    }

    /// As [`create_or_skip`](Self::create_or_skip), for a test of a feature that the server has had
    /// since this major version.
    pub async fn create_since(major: u32) -> Option<Self> {
        match default_installation() {
            Some(found) if found.major < major => skip(&format!("it needs Postgres {major}")),
            Some(_) | None => Self::create_or_skip().await,
        }
    }

    /// Creates a database as a copy of the server's template, on a server of the default version.
    /// The first caller on a server makes the template: `fill` gets a session of the empty database.
    /// Reports the test as skipped where no server is installed.
    pub async fn copy_or_skip(fill: impl AsyncFnOnce(&TestClient)) -> Option<Self> {
        match default_server_url() {
            Some(url) => Some(Self::copy_at(&url, fill).await),
            None => skip("no Postgres server binaries found"),
        }
    }

    /// As [`copy_or_skip`](Self::copy_or_skip), on the server of this connection string.
    pub async fn copy_at(server_url: &str, fill: impl AsyncFnOnce(&TestClient)) -> Self {
        make_template(server_url, fill).await;
        Self::create_with(server_url, &format!("TEMPLATE {TEMPLATE}")).await
    }

    /// As [`copy_or_skip`](Self::copy_or_skip), on a server of this major version.
    pub async fn copy_on(major: u32, fill: impl AsyncFnOnce(&TestClient)) -> Option<Self> {
        match server_url(major) {
            Some(url) => Some(Self::copy_at(&url, fill).await),
            None => skip(&format!("no Postgres {major} found")),
        }
    }

    /// Creates a database on the server of this connection string, as user `postgres`.
    pub async fn create_at(server_url: &str) -> Self {
        Self::create_with(server_url, "").await
    }

    /// As [`create_at`](Self::create_at), with options for `CREATE DATABASE`.
    pub async fn create_with(server_url: &str, options: &str) -> Self {
        let name = random_name("test");
        let maintenance = TestClient::connect(server_url).await;
        create_database(&maintenance, &name, options).await;
        let url = with_database(server_url, &name);
        let client = TestClient::connect(&url).await;
        let server_version = server_version(&client).await;
        let server_url = server_url.to_owned();
        Self { server_url, name, url, client, server_version }
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the database's name. The name is unique on the server, and valid for slots and
    /// publications.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    #[must_use]
    pub fn server_version(&self) -> u32 {
        self.server_version
    }

    pub async fn connect(&self) -> TestClient {
        TestClient::connect(&self.url).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (server_url, name) = (self.server_url.clone(), self.name.clone());
        // The removal has its own thread, because a runtime cannot be entered from within another.
        let removal = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(remove(&server_url, &name));
        });
        // A panic here would abort a test that is already failing. A leaked slot is reported.
        if removal.join().is_err() {
            eprintln!("slots of database {} are left on {}", self.name, self.server_url);
        }
    }
}

/// Ends the replication sessions of a database, and drops its slots and the database.
async fn remove(server_url: &str, name: &str) {
    let Ok(client) = TestClient::try_connect(server_url).await else {
        // The test stopped its server for good, so the slots are gone with the server.
        return;
    };
    // A slot is active until its session has ended. Both statements repeat until no slot is left.
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
                WHERE database = $1 AND active_pid IS NOT NULL";
    let drop_free = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                      WHERE database = $1 AND active_pid IS NULL";
    let count = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
    wait_until(CLEAN_UP_DEADLINE, "the slots of a test to be dropped", async || {
        let left: i64 = client.query_one(count, &[&name]).await.ok()?.get(0);
        if left > 0 {
            // The drop fails when a session takes the slot in between. The next round terminates
            // that session.
            drop(client.query(sql, &[&name]).await);
            drop(client.query(drop_free, &[&name]).await);
        }
        (left == 0).then_some(())
    })
    .await;
    // A test may have dropped or renamed it.
    let drop_database = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    drop(client.batch_execute(&drop_database).await);
}

/// Creates a database. A copy of files takes a third of the time of a copy through the WAL.
async fn create_database(maintenance: &TestClient, name: &str, options: &str) {
    let create = format!("CREATE DATABASE {name} {options} STRATEGY FILE_COPY");
    let created = maintenance.batch_execute(&create).await;
    created.unwrap_or_else(|error| panic!("create database {name}: {error:?}"));
}

/// Makes the server's template, unless an earlier test has made it.
async fn make_template(server_url: &str, fill: impl AsyncFnOnce(&TestClient)) {
    let maintenance = TestClient::connect(server_url).await;
    // The lock ends with the session. Until then, other tests wait for a template that is complete.
    let lock = format!("SELECT pg_advisory_lock(hashtext('{TEMPLATE}'))");
    let exists = format!("SELECT count(*) FROM pg_database WHERE datname = '{TEMPLATE}'");
    let is_made = async || {
        let row = maintenance.query_one(&exists, &[]).await;
        row.expect("the server lists its databases").get::<_, i64>(0) == 1
    };
    if is_made().await {
        return;
    }
    maintenance.run(&lock).await;
    if is_made().await {
        return;
    }
    let name = random_name("draft");
    create_database(&maintenance, &name, "").await;
    fill(&TestClient::connect(&with_database(server_url, &name)).await).await;
    // A copy needs a database without sessions, and the last one may still be ending.
    let end =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    let rename = format!("ALTER DATABASE {name} RENAME TO {TEMPLATE}");
    wait_until(CLEAN_UP_DEADLINE, "the sessions of the template to end", async || {
        maintenance.batch_execute(&end).await.ok()?;
        maintenance.batch_execute(&rename).await.ok()
    })
    .await;
}

/// Returns the connection string of a server of the default version. Starts the server if
/// `with-servers` did not.
fn default_server_url() -> Option<String> {
    let Some(urls) = variable(URL_VARIABLE) else {
        return server_url(default_installation()?.major);
    };
    let urls: Vec<&str> = urls.split_whitespace().collect();
    // Without cargo-nextest, the tests of a process take turns.
    let number = variable(TEST_SLOT_VARIABLE).and_then(|slot| slot.parse().ok());
    let number = number.unwrap_or_else(|| TURN.fetch_add(1, Ordering::Relaxed));
    Some((*urls.get(number % urls.len().max(1))?).to_owned())
}

/// Returns the shared server of a major version. Starts the server if `with-servers` did not.
fn server_url(major: u32) -> Option<String> {
    if let Some(url) = variable(&format!("{URL_VARIABLE}_{major}")) {
        return Some(url);
    }
    // A panic of another test cannot leave the map inconsistent.
    let mut servers = OWN_SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = servers.get(&major) {
        return Some(server.url("postgres"));
    }
    let installation = installations().into_iter().find(|found| found.major == major)?;
    let started = PrivatePostgres::start(&installation, &[]);
    let server = started.unwrap_or_else(|error| panic!("start Postgres {major}: {error}"));
    let url = server.url("postgres");
    servers.insert(major, server);
    Some(url)
}

async fn server_version(client: &Client) -> u32 {
    let row = client.query_one("SELECT current_setting('server_version_num')::int", &[]).await;
    let number: i32 = row.expect("the server tells its version").get(0);
    number.unsigned_abs() / 10_000
}

fn with_database(server_url: &str, name: &str) -> String {
    let (address, options) =
        server_url.split_once('?').map_or((server_url, None), |(a, o)| (a, Some(o)));
    let (authority, _) = address.rsplit_once('/').expect("a connection string with a database");
    match options {
        Some(options) => format!("{authority}/{name}?{options}"),
        None => format!("{authority}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_connection_string_is_replaced() {
        let url = "postgresql://postgres@127.0.0.1:5432/postgres";
        assert_eq!(with_database(url, "x"), "postgresql://postgres@127.0.0.1:5432/x");
        assert_eq!(with_database("postgresql://h/a?b=c/d", "x"), "postgresql://h/x?b=c/d");
    }

    #[tokio::test]
    async fn a_dropped_database_leaves_no_slot() {
        let Some(database) = TestDatabase::create_or_skip().await else { return };
        let (name, server) = (database.name().to_owned(), database.server_url.clone());
        let create = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        database.client().query(create, &[&name]).await.unwrap();

        drop(database);

        let client = TestClient::connect(&server).await;
        let count = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1";
        let left: i64 = client.query_one(count, &[&name]).await.unwrap().get(0);
        assert_eq!(left, 0);
    }

    #[tokio::test]
    async fn every_installed_version_is_offered_and_is_what_it_says() {
        for Installation { major, .. } in installations() {
            let database = TestDatabase::create_on(major).await.expect("an installed version");
            assert_eq!(database.server_version(), major);
        }
        assert!(TestDatabase::create_on(9).await.is_none());
    }

    #[tokio::test]
    async fn a_database_is_a_copy_of_the_template_that_the_first_caller_fills() {
        let Some(installation) = installation_or_skip() else { return };
        let server = PrivatePostgres::start(&installation, &[]).unwrap();
        let url = server.url("postgres");
        let fill = async |client: &TestClient| client.run("CREATE TABLE made (n int)").await;

        let (first, second) =
            tokio::join!(TestDatabase::copy_at(&url, fill), TestDatabase::copy_at(&url, fill));

        for database in [first, second] {
            assert_eq!(database.connect().await.text("SELECT count(*)::text FROM made").await, "0");
        }
    }
}
