//! `walrelay init`: creates tables, publication, slot, and optionally topics. Safe to run again.

use serde::Serialize;
use walrelay_command_line::config::{
    ChangeMode, ChangeOptions, CreateTopics, InitConfig, SlotKind,
};
use walrelay_outbox_admin::lifecycle::preflight_check::shard_key;
use walrelay_outbox_admin::protocols::{
    CreatedTopics, TopicOrder, TopicResult, create_topics, set_up,
};
use walrelay_outbox_admin::{InitOptions, InitPlan, InitReport, SlotCreation};
use walrelay_pg_replication::Failover;
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};
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
        let topics = match &config.create_topics {
            CreateTopics::No => CreatedTopics::default(),
            CreateTopics::Yes { named } => {
                create_topics(session, topic_order(&config, named)).await?
            }
        };
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

fn topic_order<'a>(config: &'a InitConfig, named: &'a [String]) -> TopicOrder<'a> {
    TopicOrder {
        router: &config.router,
        tables: &config.outbox.tables,
        named,
        settings: &config.topic_settings,
        endpoint: &config.pubsub.publisher.endpoint,
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
