//! `walrelay consumer status`: the consumer in its database, and the messages that wait for it.

use clap::Args;
use serde::Serialize;
use tokio::time::timeout;
use walrelay_errors::Chain;
use walrelay_inbox::UnfinishedRebuild;
use walrelay_inbox_admin::consumer_status::{ConsumerStatus, consumer_status};
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_pubsub::{DELETED_TOPIC, Endpoint, PubsubError, Subscriber, SubscriptionBacklog};
use walrelay_relay::shutdown::Shutdown;

use super::super::shared::answer_timeout::ANSWER_TIMEOUT;
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::session::in_shared_session;
use crate::config::Checks;
use crate::error::Error;
use crate::error::fixes::{create_subscription, replace_orphan};
use crate::options::values::consumer_name;
use crate::options::{ARGUMENTS, ConnectionOptions, EndpointOptions, OutputOptions};
use crate::output::print_result;
use crate::output::text::{human_age, visible, whole_age};
use crate::plan::Plan;

/// Show counts by status, held keys, the rate of the last minute and the backlog.
///
/// The backlog of the subscription and the age of its oldest message come from Cloud Monitoring, which is minutes
/// behind and needs roles/monitoring.viewer, or from the emulator. They are null if nobody answers.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay consumer status billing --output json"
)]
pub(crate) struct Status {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

impl Status {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let endpoint = checks.endpoint(&self.endpoint);
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, &endpoint, shutdown).await))
    }

    async fn run(
        &self,
        connect: &ConnectConfig,
        endpoint: &Endpoint,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            let read = StatusWithBacklog::read(client, &self.name, endpoint);
            let status = run_until_shutdown(read, shutdown).await?;
            print_result(self.output.output, &status, || status.page())
        })
        .await
    }
}

#[derive(Debug, Serialize)]
struct StatusWithBacklog {
    #[serde(flatten)]
    status: ConsumerStatus,
    /// Messages that are not acknowledged. `None` if not known.
    backlog_messages: Option<u64>,
    /// Age of the oldest of them.
    backlog_oldest_seconds: Option<u64>,
    #[serde(skip)]
    backlog: Backlog,
    /// The next step, if a person has to act.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_step: Option<String>,
}

/// What is known about the messages of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backlog {
    Known(SubscriptionBacklog),
    Unknown,
    /// The subscription does not exist.
    NoSubscription,
    /// The subscription has lost its topic, and receives nothing for ever.
    TopicDeleted,
}

impl StatusWithBacklog {
    async fn read(client: &SqlClient, name: &str, endpoint: &Endpoint) -> Result<Self, Error> {
        let status = consumer_status(client, name).await.map_err(Error::Inbox)?;
        let backlog = backlog_of(endpoint, &status.subscription).await;
        Ok(Self::new(status, backlog))
    }

    fn new(status: ConsumerStatus, backlog: Backlog) -> Self {
        let known = match backlog {
            Backlog::Known(known) => Some(known),
            Backlog::Unknown | Backlog::NoSubscription | Backlog::TopicDeleted => None,
        };
        Self {
            next_step: match backlog {
                Backlog::NoSubscription => Some(creating_step(&status)),
                Backlog::TopicDeleted => {
                    Some(replace_orphan(&status.consumer, &status.subscription))
                }
                Backlog::Known(_) | Backlog::Unknown => {
                    next_step(&status, known.map(|it| it.messages))
                }
            },
            status,
            backlog_messages: known.map(|it| it.messages),
            backlog_oldest_seconds: known.map(|it| it.oldest_seconds),
            backlog,
        }
    }

    /// One line: what the consumer does, and what waits.
    fn headline(&self) -> String {
        let Self { status, backlog, .. } = self;
        let mut parts = Vec::new();
        if status.paused {
            parts.push("paused".to_owned());
        }
        if status.rebuild.is_some() {
            parts.push("a rebuild is unfinished".to_owned());
        }
        parts.push(match backlog {
            Backlog::TopicDeleted => {
                "the topic of the subscription was deleted, so nothing arrives".to_owned()
            }
            Backlog::NoSubscription => "the subscription does not exist".to_owned(),
            Backlog::Unknown => "the backlog of the subscription is not known".to_owned(),
            Backlog::Known(SubscriptionBacklog { messages: 0, .. }) => {
                "no message waits".to_owned()
            }
            Backlog::Known(SubscriptionBacklog { messages, oldest_seconds }) => {
                format!("{messages} message(s) wait, the oldest for {}", human_age(*oldest_seconds))
            }
        });
        let (retrying, dead) = (status.events.retrying, status.events.dead);
        let (held, incomplete) = (status.keys_held, status.keys_waiting_for_a_version);
        match (retrying, held + incomplete) {
            (0, _) => {}
            (_, 0) => parts.push(format!("{retrying} event(s) are tried again by themselves")),
            (_, keys) => parts.push(format!(
                "{retrying} event(s) of {keys} key(s) are tried again, or wait behind one that is"
            )),
        }
        if incomplete > 0 {
            parts.push(format!("{incomplete} key(s) wait for a missing version"));
        }
        if dead > 0 {
            parts.push(format!("{dead} dead event(s) wait for a person"));
        }
        parts.join("; ")
    }

    fn page(&self) -> String {
        let Self { status, .. } = self;
        let unknown = || "-".to_owned();
        let messages = self.backlog_messages.map_or_else(unknown, |count| count.to_string());
        let oldest_message = self.backlog_oldest_seconds.map_or_else(unknown, human_age);
        let unapplied = status.oldest_waiting_seconds.map_or_else(unknown, whole_age);
        let rows = [
            ("consumer", visible(&status.consumer)),
            ("subscription", visible(&status.subscription)),
            ("paused", if status.paused { "yes" } else { "no" }.to_owned()),
            ("waiting messages", messages),
            ("oldest message", oldest_message),
            ("received in the last minute", status.received_last_minute.to_string()),
            ("applied", status.events.done.to_string()),
            ("retrying", status.events.retrying.to_string()),
            ("dead", status.events.dead.to_string()),
            ("discarded", status.events.discarded.to_string()),
            ("late", status.events.late.to_string()),
            ("blocked keys", status.keys_held.to_string()),
            ("keys waiting for a version", status.keys_waiting_for_a_version.to_string()),
            ("oldest unapplied event", unapplied),
            ("implausible positions", status.implausible_positions.to_string()),
            ("generation", status.generation.to_string()),
            ("unfinished rebuild", status.rebuild.as_deref().map_or_else(unknown, visible)),
        ];
        let keys = status.implausible_keys.iter().map(|key| ("implausible key", visible(key)));
        let step = self.next_step.iter().map(|step| format!("  {step}\n"));
        let rows =
            rows.into_iter().chain(keys).map(|(name, value)| format!("{name:<28} {value}\n"));
        let head = [format!("{}\n", self.headline())].into_iter().chain(step);
        head.chain(["\n".to_owned()]).chain(rows).collect()
    }
}

/// Returns the command that helps, for the gravest problem.
fn next_step(status: &ConsumerStatus, messages: Option<u64>) -> Option<String> {
    let consumer = visible(&status.consumer);
    if !status.implausible_keys.is_empty() {
        return Some(format!(
            "the position of these keys cannot be right, and their events may be skipped: \
             walrelay consumer reset-key {consumer} --key KEY"
        ));
    }
    if status.rebuild.is_some() {
        return Some(UnfinishedRebuild::NEXT_STEP.to_owned());
    }
    if status.paused {
        return Some(format!("to continue: walrelay consumer resume {consumer}"));
    }
    if status.events.dead > 0 {
        return Some(format!(
            "to see why: walrelay inbox list --consumer {consumer} --status dead"
        ));
    }
    if status.keys_waiting_for_a_version > 0 {
        return Some(format!(
            "to see which version is missing: walrelay inbox list --consumer {consumer} --status retrying"
        ));
    }
    if status.events.retrying > 0 {
        return Some(format!(
            "to see why: walrelay inbox list --consumer {consumer} --status retrying"
        ));
    }
    (messages.unwrap_or_default() > 0 && status.received_last_minute == 0).then(|| {
        format!("nothing arrived in the last minute; if no instance runs: walrelay consumer run {consumer}")
    })
}

/// Returns the command that creates the missing subscription.
fn creating_step(ConsumerStatus { consumer, subscription, .. }: &ConsumerStatus) -> String {
    format!(
        "its messages are gone; to create it: {}; then walrelay audit names the events that are missing",
        create_subscription(consumer, subscription)
    )
}

/// Returns the backlog. The rest of the status is useful without it, so a failure is a warning.
async fn backlog_of(endpoint: &Endpoint, subscription: &str) -> Backlog {
    let problem = match timeout(ANSWER_TIMEOUT, read_backlog(endpoint, subscription)).await {
        Ok(Ok(backlog)) => return backlog,
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()),
    };
    tracing::warn!(subscription, problem, "the backlog of the subscription is not known");
    Backlog::Unknown
}

/// Reads the backlog. A subscription without one is new, or does not exist.
async fn read_backlog(endpoint: &Endpoint, subscription: &str) -> Result<Backlog, PubsubError> {
    let known = SubscriptionBacklog::read(endpoint, subscription).await?;
    if let Some(waiting) = known.filter(|it| it.messages > 0) {
        return Ok(Backlog::Known(waiting));
    }
    let found = match (Subscriber::connect(endpoint)?.subscription(subscription).await, known) {
        (Ok(found), _) => found,
        // The account may read the metric, and not the subscription.
        (Err(_), Some(known)) => return Ok(Backlog::Known(known)),
        (Err(error), None) => return Err(error),
    };
    Ok(match found {
        None => Backlog::NoSubscription,
        Some(orphan) if orphan.topic == DELETED_TOPIC => Backlog::TopicDeleted,
        Some(_) => known.map_or(Backlog::Unknown, Backlog::Known),
    })
}

#[cfg(test)]
mod tests {
    use walrelay_inbox_admin::consumer_status::EventCounts;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    fn status() -> ConsumerStatus {
        ConsumerStatus {
            consumer: "c".to_owned(),
            subscription: "s".to_owned(),
            generation: 1,
            paused: false,
            events: EventCounts::default(),
            keys_held: 0,
            keys_waiting_for_a_version: 0,
            oldest_waiting_seconds: Some(1024.9),
            received_last_minute: 0,
            implausible_positions: 0,
            rebuild: None,
            implausible_keys: Vec::new(),
        }
    }

    fn head(status: ConsumerStatus, messages: u64) -> (String, Option<String>) {
        let backlog = SubscriptionBacklog { messages, oldest_seconds: 1024 };
        let whole = StatusWithBacklog::new(status, Backlog::Known(backlog));
        (whole.headline(), whole.next_step)
    }

    #[test]
    fn the_headline_names_the_waiting_messages_and_the_next_step() {
        assert_eq!(head(status(), 0), ("no message waits".to_owned(), None));
        let (text, step) = head(status(), 2601);
        assert_eq!(text, "2601 message(s) wait, the oldest for 17 min");
        assert!(step.is_some_and(|it| it.ends_with("walrelay consumer run c")));
        let dead = EventCounts { dead: 1, ..EventCounts::default() };
        let with_dead = head(ConsumerStatus { events: dead, ..status() }, 0);
        assert_eq!(with_dead.0, "no message waits; 1 dead event(s) wait for a person");
        let list = "to see why: walrelay inbox list --consumer c --status dead";
        assert_eq!(with_dead.1.as_deref(), Some(list));
        let held = EventCounts { dead: 1, retrying: 3, ..EventCounts::default() };
        let held = head(ConsumerStatus { events: held, keys_held: 1, ..status() }, 0).0;
        assert!(
            held.contains("3 event(s) of 1 key(s) are tried again, or wait behind one that is"),
            "{held}"
        );
        let retrying = EventCounts { retrying: 2, ..EventCounts::default() };
        let gap = ConsumerStatus { keys_waiting_for_a_version: 1, events: retrying, ..status() };
        let (waits, next) = head(gap, 0);
        assert!(waits.ends_with("1 key(s) wait for a missing version"), "{waits}");
        assert!(next.is_some_and(|it| it.contains("--consumer c --status retrying")));
        let paused = ConsumerStatus { paused: true, events: dead, ..status() };
        let resume = "to continue: walrelay consumer resume c";
        assert_eq!(head(paused, 3).1.as_deref(), Some(resume));
        let begun = Some("a rebuild began".to_owned());
        let (rebuilt, again) = head(ConsumerStatus { rebuild: begun, ..status() }, 0);
        assert_eq!(rebuilt, "a rebuild is unfinished; no message waits");
        assert_eq!(again.as_deref(), Some(UnfinishedRebuild::NEXT_STEP));
    }

    #[test]
    fn a_missing_subscription_comes_first_with_the_command_that_creates_it() {
        let dead = EventCounts { dead: 1, ..EventCounts::default() };
        let status = ConsumerStatus { events: dead, ..status() };
        let whole = StatusWithBacklog::new(status, Backlog::NoSubscription);
        let head = "the subscription does not exist; 1 dead event(s) wait for a person";
        assert_eq!(whole.headline(), head);
        let create = "walrelay consumer init c --subscription s --create --topic TOPIC";
        assert!(whole.next_step.as_ref().is_some_and(|it| it.contains(create)), "{whole:?}");
    }

    #[test]
    fn a_subscription_whose_topic_was_deleted_is_named_with_the_commands_that_replace_it() {
        let whole = StatusWithBacklog::new(status(), Backlog::TopicDeleted);
        assert!(whole.headline().contains("was deleted, so nothing arrives"), "{whole:?}");
        let step = whole.next_step.unwrap_or_default();
        assert!(step.contains("gcloud pubsub subscriptions delete s"), "{step}");
        assert!(step.contains("walrelay consumer init c --subscription s --create"), "{step}");
    }

    #[test]
    fn the_values_stand_in_one_column_and_ages_have_units() {
        let page = StatusWithBacklog::new(status(), Backlog::Unknown).page();
        let values = page.lines().skip_while(|line| !line.is_empty()).skip(1);
        for line in values {
            assert_eq!(line.as_bytes().get(28), Some(&b' '), "{line}");
            assert_ne!(line.as_bytes().get(29), Some(&b' '), "{line}");
        }
        assert!(page.contains("oldest unapplied event       17 min\n"), "{page}");
        assert!(page.contains("waiting messages             -\n"), "{page}");
    }

    #[test]
    fn the_json_is_documented() {
        let status = ConsumerStatus {
            implausible_positions: 1,
            rebuild: Some("begun".to_owned()),
            implausible_keys: vec!["k".to_owned()],
            ..status()
        };
        let backlog = SubscriptionBacklog { messages: 40, oldest_seconds: 3 };
        let whole = StatusWithBacklog::new(status, Backlog::Known(backlog));
        assert_documented("consumer status", &whole);
    }
}
