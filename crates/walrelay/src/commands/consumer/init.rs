//! `walrelay consumer init`: creates tables, functions, the consumer's row, and its subscription.

use clap::Args;
use walrelay_inbox::{InboxError, inbox_migrations, migrate_inbox, refuse_other_encoding};
use walrelay_inbox_admin::admin;
use walrelay_inbox_admin::event_commands::ConsumerGeneration;
use walrelay_inbox_admin::succeeds;
use walrelay_pg_client::{
    ConnectConfig, SqlClient, {SCHEMA, SqlText, schema, sql},
};
use walrelay_pubsub::Endpoint;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::dead_letters::{IamGrants, NewDeadLetters};
use crate::commands::shared::session::in_shared_session;
use crate::commands::shared::set_up_report::SetUpReport;
use crate::commands::shared::subscription_setup::{self, NewSubscription};
use crate::config::{
    Checks, {ResourceKind, topic_settings},
};
use crate::error::Error;
use crate::options::choices::Verbosity;
use crate::options::values::consumer_name;
use crate::options::{
    ConnectionOptions,
    {
        ARGUMENTS, EndpointOptions, OutputOptions, ProjectOption, SqlOption, SubscriptionOption,
        TopicOptions,
    },
};
use crate::output::print;
use crate::plan::Plan;

/// The grants and policies of the consumer's role, equal to those in docs/how-to/deploy/roles.md.
static GRANTS: SqlText = SqlText::new(|| sql!("init.sql", "grants"));

/// Create tables, functions and the consumer's row; with --create the subscription.
///
/// Safe to run again. A subscription that it creates delivers in order, retains acknowledged messages for seven days,
/// and never expires. Its default name is TOPIC.NAME. One that exists is left as it is, and refused where it is
/// unordered, of another topic or filtered otherwise. Without --create it has to
/// exist. A consumer that has applied nothing yet may be given another one. Prints the SQL with the grants that a
/// role of its own needs.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  \
    walrelay consumer init billing --create --topic order.events\n  \
    walrelay consumer init billing --create --topic order.events --dead-letter"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Init {
    /// Name of the consumer: one for each thing that is kept up to date.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    /// Create the subscription, ordered and without expiry; needs --topic.
    #[arg(long, requires = "topic")]
    create: bool,
    /// Topic of a subscription to be created, short or full name.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Create a dead-letter topic with an ordered subscription, for messages that were delivered 100 times.
    ///
    /// Prints the IAM bindings that Pub/Sub's service agent needs.
    #[arg(long, requires = "create")]
    dead_letter: bool,
    /// Name of the dead-letter topic; without --dead-letter it has to exist [default: `TOPIC.NAME.dead`].
    #[arg(long, value_name = "TOPIC", requires = "create")]
    dead_letter_topic: Option<String>,
    /// Number of the subscription's project, which names Pub/Sub's service agent.
    #[arg(long, value_name = "NUMBER", requires = "dead_letter", value_parser = clap::value_parser!(u64))]
    project_number: Option<u64>,
    /// Grant the IAM bindings of --dead-letter instead of printing them; needs --project-number.
    #[arg(long, requires = "project_number")]
    grant: bool,
    /// Create it with exactly-once delivery: fewer copies, more latency. The inbox does not need it.
    #[arg(long, requires = "create")]
    exactly_once: bool,
    /// Only messages with these attributes, in Pub/Sub's filter language.
    #[arg(long, value_name = "FILTER", requires = "create")]
    filter: Option<String>,
    #[command(flatten)]
    subscription: SubscriptionOption,
    #[command(flatten)]
    topics: TopicOptions,
    #[command(flatten)]
    sql: SqlOption,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

struct SetUp {
    /// Full name of the subscription.
    subscription: String,
    endpoint: Endpoint,
    create: Option<NewSubscription>,
    verbosity: Verbosity,
}

impl Init {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let set_up = self.set_up(checks);
        if self.sql.sql {
            let sql = sql_of(&self.name, &set_up?.subscription);
            return Some(Plan::new(async move |_| print(&sql)));
        }
        let connect = checks.connect(&self.connection)?;
        let set_up = set_up?;
        Some(Plan::new(async move |shutdown| self.run(&connect, &set_up, shutdown).await))
    }

    fn set_up(&self, checks: &mut Checks<'_>) -> Option<SetUp> {
        let endpoint = checks.endpoint(&self.endpoint);
        let topic = self.topic.as_ref();
        let topic =
            topic.and_then(|it| checks.full_name("topic", it, &self.project, ResourceKind::Topic));
        let subscription = self.set_up_subscription(checks, topic.as_deref());
        let create = match (self.create, topic) {
            (true, Some(topic)) => self.new_subscription(checks, topic),
            (true | false, _) => None,
        };
        Some(SetUp { subscription: subscription?, endpoint, create, verbosity: checks.verbosity })
    }

    /// Returns the full name of the subscription: the given one, or `TOPIC.NAME`.
    fn set_up_subscription(&self, checks: &mut Checks<'_>, topic: Option<&str>) -> Option<String> {
        let given = self.subscription.subscription.as_ref().filter(|given| !given.is_empty());
        let name = match (given, topic) {
            (Some(given), _) => given.clone(),
            (None, Some(topic)) => format!("{}.{}", short_name(topic), self.name),
            (None, None) => {
                let allowed = "not set; the one to read from, or --topic with --create";
                checks.wrong_or_missing("subscription", allowed);
                return None;
            }
        };
        checks.full_name("subscription", &name, &self.project, ResourceKind::Subscription)
    }

    fn new_subscription(&self, checks: &mut Checks<'_>, topic: String) -> Option<NewSubscription> {
        let derived = || format!("{}.{}.dead", short_name(&topic), self.name);
        let dead_letter_topic = match (&self.dead_letter_topic, self.dead_letter) {
            (Some(given), _) => Some(given.clone()),
            (None, true) => Some(derived()),
            (None, false) => None,
        };
        let dead_letter_topic = match dead_letter_topic {
            Some(name) => Some(checks.full_name(
                "dead-letter-topic",
                &name,
                &self.project,
                ResourceKind::Topic,
            )?),
            None => None,
        };
        if dead_letter_topic.as_ref() == Some(&topic) {
            let allowed = "another topic than --topic: dead letters would return to the consumer";
            checks.wrong("dead-letter-topic", &topic, allowed);
            return None;
        }
        let dead_letters = match &dead_letter_topic {
            Some(dead) if self.dead_letter => {
                let name = short_name(dead).to_owned();
                Some(NewDeadLetters {
                    subscription: checks.full_name(
                        "dead-letter-topic",
                        &name,
                        &self.project,
                        ResourceKind::Subscription,
                    )?,
                    settings: topic_settings(&self.topics),
                    project_number: self.project_number,
                    grants: if self.grant { IamGrants::Make } else { IamGrants::Print },
                })
            }
            Some(_) | None => None,
        };
        Some(NewSubscription {
            topic,
            dead_letter_topic,
            dead_letters,
            exactly_once: self.exactly_once,
            filter: self.filter.clone().unwrap_or_default(),
        })
    }

    async fn run(
        &self,
        connect: &ConnectConfig,
        set_up: &SetUp,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            Box::pin(run_until_shutdown(self.create_missing(client, set_up), shutdown)).await
        })
        .await
    }

    async fn create_missing(&self, client: &SqlClient, set_up: &SetUp) -> Result<(), Error> {
        let (name, SetUp { subscription, endpoint, create, .. }) = (&self.name, set_up);
        let mut report = SetUpReport::new(self.output.output, set_up.verbosity, name);
        refuse_other_encoding(client).await?;
        let is_there = walrelay_inbox::access::has_inbox(client).await.map_err(Error::Inbox)?;
        migrate_inbox(client).await.map_err(InboxError::Store)?;
        report.add(!is_there, "tables and functions of the inbox".to_owned())?;
        if let Some(reads) = moved_to(client, name, subscription).await? {
            // The original subscription may have been deleted. Created again, it would collect messages
            // that nobody reads.
            report
                .add(false, format!("consumer {name}, which reads {reads} since it was rebuilt"))?;
            return report.end(&reads, None);
        }
        let existing = ExistingConsumer::of(client, name, subscription).await?;
        match create {
            // The subscription is created before the consumer is registered, so that it retains every
            // message from now on.
            Some(new) => {
                subscription_setup::create(endpoint, subscription, new, &mut report).await?;
            }
            None => existing.refuse_missing(endpoint, subscription).await?,
        }
        existing.settle(client, name, subscription, &mut report).await?;
        let others =
            admin::other_readers(client, name, subscription).await.map_err(Error::Inbox)?;
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
}

/// Returns the last part of a full name.
fn short_name(full: &str) -> &str {
    full.rsplit('/').next().unwrap_or(full)
}

/// Returns the SQL that creates the tables and registers the consumer.
fn sql_of(name: &str, subscription: &str) -> String {
    let migrations = inbox_migrations();
    let mut text: String =
        migrations.iter().map(|it| format!("-- {}\n{}\n\n", it.file, it.sql.trim_end())).collect();
    text.push_str(&admin::registering(name, subscription));
    text.push_str(";\n");
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grants_that_are_printed_are_those_of_the_manual() {
        let manual = include_str!("../../../../../docs/how-to/deploy/roles.md");
        assert!(manual.contains(&*GRANTS), "{GRANTS}");
    }
}
