//! Creates a new database per test on a Postgres server that the tests share.
//!
//! The server is the one that `with-servers` started, or one that this process starts. Each test
//! has its own database, but all slots of a server share one namespace. Name slots after the
//! database ([`TestDatabase::name`]).

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::{Client, Config, NoTls};
use walrelay_private_postgres::{Installation, PrivatePostgres, installations_in};

use crate::environment::{random_name, servers_dir, variable};
use crate::{skip, wait_until};

/// The variable with the address of the default server. With a suffix such as `_15`, the address of
/// the server of that major version.
pub const URL_VARIABLE: &str = "WALRELAY_TEST_POSTGRES_URL";

/// The time limit for the end of a terminated replication session.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(20);

/// Servers that this process started. A static is never dropped, but the servers' supervisors
/// notice the end of the process.
static OWN_SERVERS: Mutex<BTreeMap<u32, PrivatePostgres>> = Mutex::new(BTreeMap::new());

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

/// Returns the major versions that tests can run on.
#[must_use]
pub fn installed_majors() -> Vec<u32> {
    installations().iter().map(|installation| installation.major).collect()
}

/// Returns the oldest installation, for tests with their own server. Reports the test as skipped
/// when none is installed.
#[must_use]
pub fn installation_or_skip() -> Option<Installation> {
    installations().into_iter().next().or_else(|| skip("no Postgres server binaries found"))
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
    ///
    /// # Errors
    ///
    /// The server cannot be reached or refuses the session.
    pub async fn try_connect(url: &str) -> Result<Self, tokio_postgres::Error> {
        Self::open(&url.parse()?).await
    }

    /// Connects with this configuration.
    ///
    /// # Errors
    ///
    /// The server cannot be reached or refuses the session.
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

/// A database with a random name. Dropping the value removes the database with all its slots.
#[derive(Debug)]
pub struct TestDatabase {
    server_url: String,
    name: String,
    url: String,
    client: TestClient,
    server_version: u32,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Present,
    Removed,
}

impl TestDatabase {
    /// Creates a database on the default server, which is the oldest installed version.
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

    /// As [`create_on`](Self::create_on), with the encoding SQL_ASCII, which accepts any bytes as
    /// text.
    pub async fn create_unchecked_on(major: u32) -> Option<Self> {
        let options = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'";
        match server_url(major) {
            Some(url) => Some(Self::create_with(&url, options).await),
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
        let created = maintenance.batch_execute(&format!("CREATE DATABASE {name} {options}")).await;
        created.unwrap_or_else(|error| panic!("create database {name}: {error:?}"));
        let url = with_database(server_url, &name);
        let client = TestClient::connect(&url).await;
        let server_version = server_version(&client).await;
        let server_url = server_url.to_owned();
        Self { server_url, name, url, client, server_version, state: State::Present }
    }

    /// Returns the connection string of this database.
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

    /// Returns a connection to this database.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the server's major version.
    #[must_use]
    pub fn server_version(&self) -> u32 {
        self.server_version
    }

    /// Opens another connection to this database.
    pub async fn connect(&self) -> TestClient {
        TestClient::connect(&self.url).await
    }

    /// Ends every session of this database, then drops its slots and the database itself.
    pub async fn drop_all(mut self) {
        remove(&self.server_url, &self.name).await;
        self.state = State::Removed;
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.state == State::Removed {
            return;
        }
        let (server_url, name) = (self.server_url.clone(), self.name.clone());
        // The removal has its own thread, because a runtime cannot be entered from within another.
        let removal = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(remove(&server_url, &name));
        });
        // A panic here would abort a test that is already failing. A leaked slot is reported.
        if removal.join().is_err() {
            eprintln!("database {} could not be removed from {}", self.name, self.server_url);
        }
    }
}

async fn remove(server_url: &str, name: &str) {
    let Ok(client) = TestClient::try_connect(server_url).await else {
        // The test stopped its server for good, so the data is gone with the server.
        return;
    };
    // A slot is active until its session has ended. Both statements repeat until no slot is left.
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
                WHERE database = $1 AND active_pid IS NOT NULL";
    let drop_free = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                      WHERE database = $1 AND active_pid IS NULL";
    let count = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
    wait_until(CLEAN_UP_DEADLINE, "the slots of a test to be dropped", async || {
        // The drop fails when a session takes the slot in between. The next round terminates that
        // session.
        drop(client.query(sql, &[&name]).await);
        drop(client.query(drop_free, &[&name]).await);
        let left: i64 = client.query_one(count, &[&name]).await.ok()?.get(0);
        (left == 0).then_some(())
    })
    .await;
    let dropped = client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
    dropped.unwrap_or_else(|error| panic!("drop database {name}: {error:?}"));
}

fn default_server_url() -> Option<String> {
    variable(URL_VARIABLE).or_else(|| server_url(*installed_majors().first()?))
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

/// Returns the connection string with another database on the same server.
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
    async fn a_dropped_database_leaves_neither_itself_nor_its_slots() {
        let Some(database) = TestDatabase::create_or_skip().await else { return };
        let (name, server) = (database.name().to_owned(), database.server_url.clone());
        let create = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        database.client().query(create, &[&name]).await.unwrap();

        drop(database);

        let client = TestClient::connect(&server).await;
        let count = "SELECT (SELECT count(*) FROM pg_database WHERE datname = $1)
                          + (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1)";
        let left: i64 = client.query_one(count, &[&name]).await.unwrap().get(0);
        assert_eq!(left, 0);
    }

    #[tokio::test]
    async fn every_installed_version_is_offered_and_is_what_it_says() {
        for major in installed_majors() {
            let database = TestDatabase::create_on(major).await.expect("an installed version");
            assert_eq!(database.server_version(), major);
            database.drop_all().await;
        }
        assert!(TestDatabase::create_on(9).await.is_none());
    }
}
