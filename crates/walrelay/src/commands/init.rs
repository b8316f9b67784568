//! `walrelay init`: creates tables, publication, slot, and optionally topics. Safe to run again.

use crate::config::{CreateTopics, InitConfig};
use crate::error::Error;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{
    CreatedTopics, TopicOrder, TopicResult, create_topics, set_up,
};
use walrelay_outbox_admin::{InitPlan, InitReport};
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};
use crate::output::print;

/// Creates the missing objects and prints their names. With `--sql` it only prints the SQL.
///
/// # Errors
///
/// Postgres or Pub/Sub cannot be reached, or refuses. Earlier steps have taken effect, and a second
/// run continues after them.
pub(crate) async fn execute(config: InitConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let shards = &config.shards;
    let Some(connect) = &config.connect else {
        let plans = shards.iter().map(InitPlan::new).collect::<Result<Vec<_>, _>>()?;
        return print(&InitPlan::joined(plans).script());
    };
    let terminal = Terminal::new(config.options, shutdown);
    let existing = &config.already_there;
    let columns = &config.router.columns;
    let done = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        let Some(report) = set_up(session, shards, existing, columns).await? else {
            return Ok(None);
        };
        let topics = match &config.create_topics {
            CreateTopics::No => CreatedTopics::default(),
            CreateTopics::Yes { named } => {
                create_topics(session, topic_order(&config, named)).await?
            }
        };
        Ok(Some((report, topics)))
    });
    let Some((report, topics)) = done.await? else { return Ok(()) };
    let json = InitJson::new(&report, &topics);
    terminal.print_result(Some(&()), |()| String::new(), |()| json)?;
    topics.refused.map_or(Ok(()), |error| Err(error.into()))
}

#[derive(Debug, Serialize)]
struct InitJson<'a> {
    #[serde(flatten)]
    report: &'a InitReport,
    topics: Vec<TopicJson<'a>>,
}

#[derive(Debug, Serialize)]
struct TopicJson<'a> {
    topic: &'a str,
    result: TopicResult,
}

impl<'a> InitJson<'a> {
    fn new(report: &'a InitReport, topics: &'a CreatedTopics) -> Self {
        let topic = |(topic, result): &'a (String, _)| TopicJson { topic, result: *result };
        Self { report, topics: topics.all.iter().map(topic).collect() }
    }
}

fn topic_order<'a>(config: &'a InitConfig, named: &'a [String]) -> TopicOrder<'a> {
    TopicOrder {
        router: &config.router,
        outbox: config.shards.first().map(|shard| &shard.outbox),
        named,
        settings: &config.topic_settings,
        endpoint: &config.pubsub.publisher.endpoint,
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

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
