//! `walrelay init`: creates tables, publication, slot, and optionally topics. Safe to run again.

use serde::Serialize;
use walrelay_errors::{BoxedError, Chain};
use walrelay_outbox_admin::lifecycle::preflight_check::shard_key;
use walrelay_outbox_admin::protocols::routes::{self, Routes};
use walrelay_outbox_admin::protocols::{AdminSession, ProtocolError, set_up};
use walrelay_outbox_admin::{InitOptions, InitPlan, InitReport, SlotCreation};
use walrelay_pg_replication::Failover;
use walrelay_pubsub::{Admin, PubsubError, TopicSettings};
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};
use super::shared::topics::{INVALID_TOPIC_FIX, invalid_topic_text};
use crate::config::{ChangeMode, ChangeOptions, CreateTopics, InitConfig, OutputFormat, SlotKind};
use crate::error::Error;
use crate::output::print;

/// Creates the missing objects and prints their names. With `--sql` it only prints the SQL.
///
/// # Errors
///
/// Postgres or Pub/Sub cannot be reached, or refuses. Earlier steps have taken effect, and a second
/// run continues after them.
pub async fn execute(config: InitConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let shards = options(&config);
    let Some(connect) = &config.connect else {
        let plans = shards.iter().map(InitPlan::new).collect::<Result<Vec<_>, _>>()?;
        return print(&InitPlan::joined(plans).script());
    };
    // Nothing is destroyed that the command line does not name.
    let options = ChangeOptions { mode: ChangeMode::Agreed, format: config.format };
    let terminal = Terminal::new(options, shutdown);
    let existing = &config.already_there;
    let columns = &config.router.columns;
    let done = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        let report = set_up(session, &shards, existing, columns).await?;
        let topics = create_topics(session, &config).await?;
        Ok((report, topics))
    });
    let (report, topics) = done.await?;
    let json = InitJson::new(&report, &topics);
    terminal.print_result(Some(&()), |()| String::new(), |()| json)?;
    topics.refused.map_or(Ok(()), |error| Err(error.into()))
}

#[derive(Debug, Serialize)]
struct InitJson<'a> {
    created: &'a [String],
    already_there: &'a [String],
    topics: Vec<TopicJson<'a>>,
}

#[derive(Debug, Serialize)]
struct TopicJson<'a> {
    topic: &'a str,
    result: &'static str,
}

impl<'a> InitJson<'a> {
    fn new(report: &'a InitReport, topics: &'a CreatedTopics) -> Self {
        let topic = |(topic, result): &'a (String, TopicResult)| TopicJson {
            topic,
            result: match result {
                TopicResult::Created => "created",
                TopicResult::AlreadyThere => "already_there",
                TopicResult::NameRefused => "name_refused",
            },
        };
        Self {
            created: &report.created,
            already_there: &report.already_there,
            topics: topics.all.iter().map(topic).collect(),
        }
    }
}

/// Returns the options of each shard, or of the one unsharded outbox.
fn options(config: &InitConfig) -> Vec<InitOptions> {
    let shard_key = shard_key(&config.router);
    let of_shard = |outbox| InitOptions {
        outbox,
        shard_key: shard_key.clone(),
        failover: failover(config.slot_kind),
        on_lost: config.on_lost,
        earlier_rows: config.earlier_rows,
        making: SlotCreation::Slot,
        partition_by: config.partition_by,
    };
    config.outbox.shards(config.shards).into_iter().map(of_shard).collect()
}

const fn failover(kind: SlotKind) -> Failover {
    match kind {
        SlotKind::Plain => Failover::No,
        SlotKind::Failover => Failover::Yes,
    }
}

/// The topics of an `init`.
#[derive(Debug, Default)]
struct CreatedTopics {
    all: Vec<(String, TopicResult)>,
    /// The error of a topic that the command line names.
    refused: Option<PubsubError>,
}

/// What happened to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopicResult {
    Created,
    AlreadyThere,
    NameRefused,
}

/// Creates the topics. A topic name that Pub/Sub rejects does not stop the creation of the others.
async fn create_topics(
    session: &AdminSession<'_, Terminal<'_>>,
    config: &InitConfig,
) -> Result<CreatedTopics, ProtocolError> {
    let mut created = CreatedTopics::default();
    let CreateTopics::Yes { named } = &config.create_topics else { return Ok(created) };
    let Routes { topics: mut wanted, nowhere } =
        routes::of_rows(session.client, &config.router, &config.outbox.tables).await?;
    let full_name = |name: &String| routes::full_name(&config.router.project, name);
    let named: Vec<String> = named.iter().map(full_name).collect();
    wanted.extend(named.iter().cloned());
    if wanted.is_empty() && nowhere.is_none() {
        print_line(config, NO_TOPICS)?;
        return Ok(created);
    }
    let admin = Admin::connect(&config.pubsub.publisher.endpoint)?;
    for topic in wanted {
        let result = match create_topic(&admin, &topic, &config.topic_settings).await {
            Ok(result) => result,
            Err(error) if error.is_about_the_name() => {
                print_line(config, &format!("not created: {}\n", Chain(&error)))?;
                let is_first = created.refused.is_none() && named.contains(&topic);
                created.refused = if is_first { Some(error) } else { created.refused };
                created.all.push((topic, TopicResult::NameRefused));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let verb = if result == TopicResult::Created { "created" } else { "already there" };
        print_line(config, &format!("{verb}: topic {topic}\n"))?;
        created.all.push((topic, result));
    }
    if let Some(nowhere) = nowhere {
        let text = invalid_topic_text(&nowhere);
        print_line(config, &format!("no topic: {text}\n  fix: {INVALID_TOPIC_FIX}\n"))?;
    }
    Ok(created)
}

const NO_TOPICS: &str = "no topics: the outbox is empty, so its topics are unknown; name them with \
     --create-topics=NAME,NAME\n";

/// Prints a line about topics. JSON has only the result.
fn print_line(config: &InitConfig, line: &str) -> Result<(), ProtocolError> {
    match config.format {
        OutputFormat::Text => {
            print(line).map_err(|error| ProtocolError::Operator(BoxedError::new(error)))
        }
        OutputFormat::Json => {
            tracing::info!("{}", line.trim_end());
            Ok(())
        }
    }
}

/// Creates a topic unless it exists.
async fn create_topic(
    admin: &Admin,
    topic: &str,
    settings: &TopicSettings,
) -> Result<TopicResult, PubsubError> {
    if admin.topic_exists(topic).await? {
        return Ok(TopicResult::AlreadyThere);
    }
    admin.create_topic(topic, settings).await?;
    Ok(TopicResult::Created)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_output::assert_documented;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let report = InitReport {
            created: vec!["slot walrelay".to_owned()],
            already_there: vec!["publication walrelay".to_owned()],
        };
        let all = vec![("projects/p/topics/t".to_owned(), TopicResult::Created)];
        let topics = CreatedTopics { all, refused: None };
        assert_documented("init", &InitJson::new(&report, &topics));
    }
}
