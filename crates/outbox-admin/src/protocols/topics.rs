//! Creates the topics of an outbox: those that its rows lead to, and those that an operator names.

use std::collections::BTreeSet;

use serde::Serialize;
use walrelay_core::RouterConfig;
use walrelay_errors::Chain;
use walrelay_outbox_store::Outbox;
use walrelay_pubsub::{Admin, Endpoint, PubsubError, TopicSettings};

use super::operator::{AdminSession, Operator, Step};
use super::protocol_error::ProtocolError;
use super::routes::{self, Routes};

#[derive(Debug, Clone, Copy)]
pub struct TopicOrder<'a> {
    /// Turns rows into messages, from which topics are derived.
    pub router: &'a RouterConfig,
    pub outbox: Option<&'a Outbox>,
    /// Names of further topics.
    pub named: &'a [String],
    pub settings: &'a TopicSettings,
    pub endpoint: &'a Endpoint,
}

/// The topics of an order, each with its result.
#[derive(Debug, Default)]
pub struct CreatedTopics {
    /// Full names and results.
    pub all: Vec<(String, TopicResult)>,
    /// The error of the first refused topic that the operator named.
    pub refused: Option<PubsubError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicResult {
    Created,
    AlreadyThere,
    /// Pub/Sub refuses its name.
    NameRefused,
}

/// Creates the topics. A topic name that Pub/Sub rejects does not stop the creation of the others.
pub async fn create_topics<O: Operator>(
    session: &AdminSession<'_, O>,
    order: TopicOrder<'_>,
) -> Result<CreatedTopics, ProtocolError> {
    let TopicOrder { router, outbox, settings, endpoint, .. } = order;
    let Routes { topics, nowhere } = match outbox {
        Some(outbox) => routes::of_rows(session.client, router, outbox).await?,
        None => routes::constant_topic(router).unwrap_or_default(),
    };
    let full_name = |name: &String| routes::full_name(&router.project, name);
    let named: BTreeSet<String> = order.named.iter().map(full_name).collect();
    let wanted: BTreeSet<&String> = topics.union(&named).collect();
    let mut created = CreatedTopics::default();
    if wanted.is_empty() && nowhere.is_none() {
        session.report(&Step::TopicsUnknown)?;
        return Ok(created);
    }
    let admin = Admin::connect(endpoint)?;
    for topic in wanted {
        let result = match create_topic(&admin, topic, settings).await {
            Err(error) if error.is_about_the_name() => {
                session.report(&Step::TopicRefused(Chain(&error).to_string()))?;
                if named.contains(topic) {
                    created.refused.get_or_insert(error);
                }
                TopicResult::NameRefused
            }
            result => result?,
        };
        match result {
            TopicResult::Created => session.report(&Step::Created(format!("topic {topic}")))?,
            TopicResult::AlreadyThere => {
                session.report(&Step::AlreadyThere(format!("topic {topic}")))?;
            }
            TopicResult::NameRefused => {}
        }
        created.all.push((topic.clone(), result));
    }
    if let Some(nowhere) = nowhere {
        session.report(&Step::RowsWithoutTopic(nowhere))?;
    }
    Ok(created)
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
