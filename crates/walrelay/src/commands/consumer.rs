//! `walrelay consumer`: setup, status, pause and resume, prune.

pub(crate) mod run;
mod status;

use std::time::Duration;

use crate::config::{
    ChangeMode, ConsumerAction, ConsumerConfig, ConsumerSetUp, InboxPruneOrder, OutputFormat,
};
use crate::error::Error;
use crate::options::units::show_duration;
use crate::output::table::columns;
use crate::output::text::visible;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};
use walrelay_errors::Code;
use walrelay_inbox::{
    InboxError, PUBSUB_RETENTION_DEFAULT, RETENTION_MARGIN, inbox_migrations, migrate_inbox,
    redelivery_window_with_dead_letters, refuse_other_encoding,
};
use walrelay_inbox_admin::Scaffold;
use walrelay_inbox_admin::admin::{self, RegisteredConsumer};
use walrelay_inbox_admin::event_commands::ConsumerGeneration;
use walrelay_inbox_admin::prunable_rows::prunable_rows;
use walrelay_inbox_admin::succeeds;
use walrelay_pg_client::{QualifiedName, SCHEMA, SqlClient, SqlText, connect_shared, schema, sql};
use walrelay_pubsub::{Endpoint, Subscriber};
use walrelay_relay::shutdown::Shutdown;

use super::rebuild::{self, reset_key};
use super::shared::cancellable::{attended, run_until_shutdown};
use super::shared::operator::Terminal;
use super::shared::set_up_report::SetUpReport;
use super::shared::subscription_setup;
use crate::output::{print, print_result};

/// Longest time that a pause waits for running batches. By default a handler may run for a minute.
const PAUSE_WAIT_MAX: Duration = Duration::from_mins(2);
/// Pause between attempts to get the lock.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The grants and policies of the consumer's role, equal to those in docs/how-to/deploy/roles.md.
static GRANTS: SqlText = SqlText::new(|| sql!("consumer.sql", "grants"));

/// Carries out the action.
///
/// # Errors
///
/// Postgres or Pub/Sub cannot be reached or refuses, or the consumer does not exist.
pub(crate) async fn execute(config: ConsumerConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let ConsumerConfig { connect, action } = config;
    let connecting = async { Ok(connect_shared(&connect).await?) };
    let mut client = run_until_shutdown(connecting, shutdown).await?;
    let done = match action {
        ConsumerAction::Rebuild(order) => {
            Box::pin(rebuild::execute(&connect, &mut client, &order, shutdown)).await
        }
        ConsumerAction::ResetKey(order) => {
            let reset = reset_key::execute(&mut client, &order, shutdown);
            run_until_shutdown(reset, shutdown).await
        }
        ConsumerAction::Pause { name, format } => {
            attended(&connect, &client, pause(&client, &name, format), shutdown).await
        }
        ConsumerAction::Resume { name, format } => {
            run_until_shutdown(resume(&client, &name, format), shutdown).await
        }
        ConsumerAction::Init(set_up) => {
            Box::pin(run_until_shutdown(init(&client, &set_up), shutdown)).await
        }
        ConsumerAction::Scaffold(table) => {
            run_until_shutdown(scaffold(&client, &table), shutdown).await
        }
        ConsumerAction::List(format) => run_until_shutdown(list(&client, format), shutdown).await,
        ConsumerAction::Status { name, format, endpoint } => {
            run_until_shutdown(status::status(&client, &name, format, &endpoint), shutdown).await
        }
        ConsumerAction::Prune(order) => {
            Box::pin(run_until_shutdown(prune(&client, &order, shutdown), shutdown)).await
        }
    };
    client.close().await;
    done
}

/// A paused or resumed consumer, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct PausedJson<'a> {
    consumer: &'a str,
    is_paused: bool,
}

async fn resume(client: &SqlClient, name: &str, format: OutputFormat) -> Result<(), Error> {
    admin::resume(client, name).await.map_err(Error::Inbox)?;
    let result = PausedJson { consumer: name, is_paused: false };
    print_result(format, &result, || format!("resumed: consumer {name}\n"))
}

/// Pauses the consumer, and waits for batches that began before: they may still commit.
async fn pause(client: &SqlClient, name: &str, format: OutputFormat) -> Result<(), Error> {
    admin::pause(client, name).await.map_err(Error::Inbox)?;
    let deadline = Instant::now() + PAUSE_WAIT_MAX;
    loop {
        match admin::quiesce(client, name).await {
            Ok(()) => {
                let result = PausedJson { consumer: name, is_paused: true };
                return print_result(format, &result, || format!("paused: consumer {name}\n"));
            }
            Err(error) if error.is_in_the_way() && Instant::now() < deadline => {
                sleep(AGAIN_AFTER).await;
            }
            Err(error) if error.is_in_the_way() => {
                let what = format!(
                    "consumer {name} is paused, but a batch that began before has not ended within {}",
                    show_duration(PAUSE_WAIT_MAX)
                );
                return Err(Error::refused(Code::ConsumerBatchRunning, what));
            }
            Err(error) => return Err(Error::Inbox(error)),
        }
    }
}

/// Prints the SQL of `init --sql`.
///
/// # Errors
///
/// Standard output cannot be written.
pub(crate) fn print_sql(set_up: &ConsumerSetUp) -> Result<(), Error> {
    let migrations = inbox_migrations();
    let mut text: String =
        migrations.iter().map(|it| format!("-- {}\n{}\n\n", it.file, it.sql.trim_end())).collect();
    text.push_str(&admin::registering(&set_up.name, &set_up.subscription));
    text.push_str(";\n");
    print(&text)
}

async fn init(client: &SqlClient, set_up: &ConsumerSetUp) -> Result<(), Error> {
    let ConsumerSetUp { name, subscription, endpoint, create, format } = set_up;
    let mut report = SetUpReport::new(*format, name);
    refuse_other_encoding(client).await?;
    let is_there = walrelay_inbox::access::has_inbox(client).await.map_err(Error::Inbox)?;
    migrate_inbox(client).await.map_err(InboxError::Store)?;
    report.add(!is_there, "tables and functions of the inbox".to_owned())?;
    if let Some(reads) = moved_to(client, name, subscription).await? {
        // The original subscription may have been deleted. Created again, it would collect messages
        // that nobody reads.
        report.add(false, format!("consumer {name}, which reads {reads} since it was rebuilt"))?;
        return report.end(&reads, None);
    }
    let existing = ExistingConsumer::of(client, name, subscription).await?;
    match create {
        // The subscription is created before the consumer is registered, so that it retains every
        // message from now on.
        Some(new) => subscription_setup::create(endpoint, subscription, new, &mut report).await?,
        None => existing.refuse_missing(endpoint, subscription).await?,
    }
    existing.settle(client, name, subscription, &mut report).await?;
    let others = admin::other_readers(client, name, subscription).await.map_err(Error::Inbox)?;
    if !others.is_empty() {
        let others = others.join(", ");
        tracing::warn!(
            subscription,
            others,
            "another consumer reads this subscription too: each message goes to one of them only; give each a \
             subscription of its own"
        );
    }
    report.end(subscription, Some(format!("{}{GRANTS}\n", search_path())))
}

/// Returns the statement that lets [`GRANTS`] find the inbox. `public` needs none.
fn search_path() -> String {
    match schema().is_public() {
        true => String::new(),
        false => format!("SET search_path TO {SCHEMA};\n"),
    }
}

/// How a consumer relates to the subscription that `init` names.
enum ExistingConsumer {
    /// The consumer is not registered.
    New,
    /// The consumer reads the named subscription.
    Same,
    /// The consumer reads this other subscription, and has never applied an event.
    Unused(String),
}

impl ExistingConsumer {
    /// Compares the consumer with the named subscription. Refuses a consumer that has applied
    /// events from another subscription.
    async fn of(client: &SqlClient, name: &str, subscription: &str) -> Result<Self, Error> {
        let consumer = name.to_owned();
        match admin::subscription(client, name).await {
            Ok(reads) if reads == subscription => Ok(Self::Same),
            Ok(reads) if admin::is_unused(client, name).await? => Ok(Self::Unused(reads)),
            Ok(reads) => {
                Err(InboxError::OtherSubscription { consumer, subscription: reads }.into())
            }
            Err(InboxError::Unregistered { .. }) => Ok(Self::New),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a subscription that does not exist, because a misspelled name would be registered
    /// for good. If the consumer already reads the subscription, it only warns.
    async fn refuse_missing(&self, endpoint: &Endpoint, subscription: &str) -> Result<(), Error> {
        let subscription = subscription.to_owned();
        match (subscription_setup::exists(endpoint, &subscription).await, self) {
            (Some(true) | None, _) => {}
            (Some(false), Self::Same) => tracing::warn!(
                subscription,
                "the subscription does not exist; --create --topic T creates it"
            ),
            (Some(false), Self::New | Self::Unused(_)) => {
                return Err(InboxError::SubscriptionMissing { subscription }.into());
            }
        }
        Ok(())
    }

    /// Registers or moves the consumer.
    async fn settle(
        self,
        client: &SqlClient,
        name: &str,
        subscription: &str,
        report: &mut SetUpReport<'_>,
    ) -> Result<(), Error> {
        if let Self::Unused(former) = self
            && admin::move_unused(client, name, subscription).await?
        {
            return report.moved(subscription, former);
        }
        let is_new = admin::register(client, name, subscription).await?;
        report.add(is_new, format!("consumer {name}"))
    }
}

async fn scaffold(client: &SqlClient, table: &QualifiedName) -> Result<(), Error> {
    let Scaffold { sql, closing } = walrelay_inbox_admin::scaffold(client, table).await?;
    print(&sql)?;
    if let Some(closing) = closing {
        // The printed SQL goes into a file, and may be run unread, so the warning goes to the log.
        tracing::warn!(
            "the table {table} is open to the roles of the web API, by default privileges; unless that is meant: {closing}"
        );
    }
    Ok(())
}

/// Returns the subscription that a rebuild moved the consumer to, if the consumer no longer reads
/// this one.
async fn moved_to(
    client: &SqlClient,
    name: &str,
    subscription: &str,
) -> Result<Option<String>, Error> {
    let reads = match admin::subscription(client, name).await {
        Ok(reads) => reads,
        Err(InboxError::Unregistered { .. }) => return Ok(None),
        Err(error) => return Err(Error::Inbox(error)),
    };
    let generation = ConsumerGeneration::find(client, Some(name)).await?.generation();
    Ok(succeeds(&reads, subscription, generation.into()).then_some(reads))
}

/// A consumer in the output of `consumer list --output json`.
#[derive(Debug, Serialize)]
struct ListedConsumer<'a> {
    consumer: &'a str,
    subscription: &'a str,
    is_rebuilding: bool,
}

impl<'a> ListedConsumer<'a> {
    fn of(it: &'a RegisteredConsumer) -> Self {
        let is_rebuilding = it.rebuild.is_some();
        Self { consumer: &it.consumer, subscription: &it.subscription, is_rebuilding }
    }
}

async fn list(client: &SqlClient, format: OutputFormat) -> Result<(), Error> {
    let found = admin::registered(client, None).await.map_err(Error::Inbox)?;
    print(&match format {
        OutputFormat::Json => {
            let listed: Vec<_> = found.iter().map(ListedConsumer::of).collect();
            format!("{:#}\n", json!(listed))
        }
        OutputFormat::Text => {
            let cells = |it: &RegisteredConsumer| {
                let rebuild = if it.rebuild.is_some() { "unfinished" } else { "-" };
                [visible(&it.consumer), visible(&it.subscription), rebuild.to_owned()]
            };
            let rows: Vec<_> = found.iter().map(cells).collect();
            columns(["CONSUMER", "SUBSCRIPTION", "REBUILD"], &rows)
        }
    })
}

async fn prune(
    client: &SqlClient,
    order: &InboxPruneOrder,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let InboxPruneOrder { name, older_than, endpoint, options } = order;
    let (older_than, options) = (*older_than, *options);
    let subscription = admin::subscription(client, name).await.map_err(Error::Inbox)?;
    let least = kept_for(endpoint, &subscription).await? + RETENTION_MARGIN;
    if older_than < least {
        let short = InboxError::RetentionTooShort { subscription, older_than, least };
        return Err(Error::Inbox(short));
    }
    if options.mode != ChangeMode::Agreed {
        let rows = prunable_rows(client, name, older_than).await.map_err(Error::Inbox)?;
        let what = format!("delete {rows} row(s) of the inbox of {name}");
        if !Terminal::new(options, shutdown).ask(what).await? {
            return Ok(());
        }
    }
    let deleted = admin::prune(client, name, older_than).await.map_err(Error::Inbox)?;
    let result = PrunedInboxJson { consumer: name, rows: deleted };
    print_result(options.format, &result, || format!("{deleted} row(s) deleted\n"))
}

/// The deleted rows of an inbox, as `-o json` prints them.
#[derive(Debug, Serialize)]
struct PrunedInboxJson<'a> {
    consumer: &'a str,
    rows: u64,
}

/// Returns how long subscription, topic and dead-letter subscription retain messages, acknowledged
/// messages included.
async fn kept_for(endpoint: &Endpoint, subscription: &str) -> Result<Duration, Error> {
    let subscriber = Subscriber::connect(endpoint)?;
    let Some(found) = subscriber.subscription(subscription).await? else {
        // A deleted subscription retains no messages. But it may be created again, and its topic
        // may retain more.
        return Ok(PUBSUB_RETENTION_DEFAULT);
    };
    Ok(redelivery_window_with_dead_letters(&subscriber, &found).await)
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let listed = ListedConsumer { consumer: "c", subscription: "s", is_rebuilding: true };
        assert_documented("consumer list", &[listed]);
        let paused = PausedJson { consumer: "c", is_paused: true };
        assert_documented("consumer pause and resume", &paused);
        let pruned = PrunedInboxJson { consumer: "c", rows: 3 };
        assert_documented("consumer prune", &pruned);
    }

    #[test]
    fn the_grants_that_are_printed_are_those_of_the_manual() {
        let manual = include_str!("../../../../docs/how-to/deploy/roles.md");
        assert!(manual.contains(&*GRANTS), "{GRANTS}");
    }
}
