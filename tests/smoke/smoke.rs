//! One run: its names, its sessions, and the commands of the binary.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use walrelay_pg_client::{ConnectConfig, PgEnv, SqlClient, connect_sql};
use walrelay_testkit::relay::{Relay, RelayCommand};
use walrelay_testkit::{http_get, random_name, variable};

use crate::google::{Google, Received};
use crate::report::{Failure, Report};

/// The time limit of a wait for Pub/Sub. A topic that was deleted is refused only after a
/// while, and retries back off.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// The time limit for one call of the clean-up.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(15);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct Smoke {
    /// The line above the table: versions, the service and the time.
    pub(crate) about: String,
    /// The name of schema, slot and publication, and the prefix of topics and subscriptions.
    pub(crate) name: String,
    /// How long rows are written.
    pub(crate) traffic: Duration,
    pub(crate) sql: SqlClient,
    pub(crate) google: Google,
    pub(crate) received: RefCell<Received>,
    pub(crate) report: Report,
    project: String,
    url: String,
    emulator: Option<String>,
}

impl Smoke {
    pub(crate) async fn connect(
        project: &str,
        traffic: Duration,
        url: String,
    ) -> Result<Self, Failure> {
        let config = ConnectConfig::parse(&url, &PgEnv::default());
        let config = config.map_err(|_| "DATABASE_URL is no connection string")?;
        let sql = connect_sql(&config).await?;
        let about = "SELECT current_setting('server_version'), to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')";
        let row = sql.query_one(about, &[]).await?;
        let (postgres, time): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let emulator = variable("PUBSUB_EMULATOR_HOST");
        let service = emulator.as_ref().map_or("Google's Pub/Sub", |_| "an emulator of Pub/Sub");
        let mut smoke = Self {
            about: format!(
                "Postgres {postgres}, {service}, {} s of traffic, from {time} UTC",
                traffic.as_secs()
            ),
            name: random_name("walrelay_smoke"),
            traffic,
            sql,
            google: Google::connect(emulator.as_deref()).await?,
            received: RefCell::default(),
            report: Report::new(project),
            project: project.to_owned(),
            url,
            emulator,
        };
        let version = smoke.succeed(&["--version"]).await?;
        smoke.about = format!("{}, {}", version.trim(), smoke.about);
        Ok(smoke)
    }

    pub(crate) fn topic(&self, aggregate_type: &str) -> String {
        format!("projects/{}/topics/{aggregate_type}.events", self.project)
    }

    pub(crate) fn subscription(&self, reader: &str) -> String {
        format!("projects/{}/subscriptions/{}.{reader}", self.project, self.name)
    }

    /// The aggregate type of the rows for the topic that is deleted.
    pub(crate) fn deleted_type(&self) -> String {
        format!("{}.deleted", self.name)
    }

    /// Returns a command of the binary, with the options of this run in its environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<RelayCommand, Failure> {
        let command = RelayCommand::new(arguments).ok_or("build the walrelay binary first")?;
        let command = command
            .env("DATABASE_URL", &self.url)
            .env("WALRELAY_PROJECT", &self.project)
            .env("WALRELAY_SCHEMA", &self.name)
            .env("WALRELAY_SLOT", &self.name)
            .env("WALRELAY_PUBLICATION", &self.name)
            .env("WALRELAY_LOG_FORMAT", "text")
            .env("WALRELAY_PARK_AFTER", "2s");
        Ok(match &self.emulator {
            Some(host) => command.env("PUBSUB_EMULATOR_HOST", host),
            None => command,
        })
    }

    /// Starts a service and waits until it is ready.
    pub(crate) async fn start(&self, arguments: &[&str]) -> Result<Relay, Failure> {
        let service = self.command(arguments)?.with_http().start();
        let ready = poll("the service to be ready", async || {
            let answer = http_get(service.http_address(), "/readyz").await;
            Ok(answer.is_ok_and(|(code, _)| code == 200).then_some(()))
        });
        match ready.await {
            Ok(()) => Ok(service),
            Err(failure) => Err(format!("{failure}: {}", last_lines(&service)).into()),
        }
    }

    /// Runs a command that must exit with 0. Returns what it printed.
    pub(crate) async fn succeed(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut process = self.command(arguments)?.start();
        poll("a command to end", async || Ok(process.has_ended().then_some(()))).await?;
        let done = process.finish(DEADLINE).await;
        if done.code == Some(0) {
            return Ok(done.text);
        }
        // The progress of the command is above the error.
        let begin = done.text.find("error[").unwrap_or_default();
        let error = done.text.get(begin..).unwrap_or_default();
        Err(format!("walrelay {}: {error}", arguments.join(" ")).into())
    }

    /// Inserts a row and returns its event id.
    pub(crate) async fn insert(
        &self,
        aggregate_type: &str,
        key: &str,
        bytes: i32,
    ) -> Result<String, Failure> {
        let insert = format!(
            "INSERT INTO {}.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ($1, $2, 'smoke', 1, to_jsonb(repeat('x', $3 - 2))) RETURNING id::text",
            self.name
        );
        Ok(self.sql.query_one(&insert, &[&aggregate_type, &key, &bytes]).await?.try_get(0)?)
    }

    /// Waits until dispatch state has a row with this state and error code. Returns both.
    pub(crate) async fn wait_dispatch(&self, id: &str, wanted: &str) -> Result<String, Failure> {
        let select = format!(
            "SELECT concat_ws(' ', status, error_code) FROM {}.app_outbox_dispatch WHERE event_id = $1",
            self.name
        );
        let mut seen = String::new();
        let what = format!("{wanted:?} in dispatch state");
        let waited = poll(&what, async || {
            if let Some(row) = self.sql.query_opt(&select, &[&id]).await? {
                seen = row.try_get(0)?;
            }
            Ok(seen.starts_with(wanted).then_some(()))
        });
        match waited.await {
            Ok(()) => Ok(seen),
            Err(failure) => Err(format!("{failure}, which has {seen:?}").into()),
        }
    }

    /// Deletes everything that the run has created.
    pub(crate) async fn clean_up(&self) -> Result<String, Failure> {
        let (mut deleted, mut problems) = (0, Vec::new());
        let topics = [self.topic(&self.name), self.topic(&self.deleted_type())];
        let subscriptions = [self.subscription("consumer"), self.subscription("google")];
        for name in subscriptions.iter().chain(&topics) {
            let call = async {
                match name.contains("/topics/") {
                    true => self.google.delete_topic(name).await,
                    false => self.google.delete_subscription(name).await,
                }
            };
            match timeout(CLEAN_UP_DEADLINE, call).await {
                Ok(Ok(was_there)) => deleted += u32::from(was_there),
                Ok(Err(failure)) => problems.push(format!("{name} may be left: {failure}")),
                Err(_) => problems.push(format!("{name} may be left: no answer")),
            }
        }
        if let Err(failure) = self.clean_database().await {
            problems.push(format!("{} may be left in Postgres: {failure}", self.name));
        }
        match problems.is_empty() {
            true => Ok(format!("{deleted} topics and subscriptions, and everything in Postgres")),
            false => Err(problems.join("; ").into()),
        }
    }

    async fn clean_database(&self) -> Result<(), Failure> {
        let drop_slot = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                          WHERE slot_name::text = $1";
        // The server frees the slot a moment after the relay has ended.
        let dropped = async || Ok(self.sql.execute(drop_slot, &[&self.name]).await.ok());
        poll("the slot to be free", dropped).await?;
        let name = &self.name;
        let rest =
            format!("DROP PUBLICATION IF EXISTS {name}; DROP SCHEMA IF EXISTS {name} CASCADE");
        Ok(self.sql.batch_execute(&rest).await?)
    }
}

/// Waits until `condition` yields a value, or fails at [`DEADLINE`].
pub(crate) async fn poll<T>(
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        if began.elapsed() > DEADLINE {
            return Err(format!("waited {DEADLINE:?} in vain for {what}").into());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns the end of a service's log.
pub(crate) fn last_lines(service: &Relay) -> String {
    let lines = service.lines();
    lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join(" / ")
}
