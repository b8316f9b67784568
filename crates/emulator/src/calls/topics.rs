//! The topic calls: create, change, list.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::calls::request::{masked_paths, missing, not_updatable, page_of, refuse};
use crate::store::broker::Broker;
use crate::store::snapshot::Snapshot;
use crate::wire::names;

pub(crate) fn create_topic(
    broker: &mut Broker,
    topic: proto::Topic,
) -> Result<proto::Topic, Status> {
    refuse(&[
        (topic.schema_settings.is_some(), "schema_settings"),
        (topic.ingestion_data_source_settings.is_some(), "ingestion_data_source_settings"),
        (!topic.message_transforms.is_empty(), "message_transforms"),
    ])?;
    broker.insert_topic(topic.clone())?;
    Ok(topic)
}

pub(crate) fn update_topic(
    broker: &mut Broker,
    request: proto::UpdateTopicRequest,
) -> Result<proto::Topic, Status> {
    let update = request.topic.ok_or_else(|| missing("topic"))?;
    let topic = broker.topic_mut(&update.name)?;
    let mut config = topic.config.clone();
    for path in masked_paths(request.update_mask)? {
        match path.as_str() {
            "labels" => config.labels.clone_from(&update.labels),
            "message_storage_policy" => {
                config.message_storage_policy.clone_from(&update.message_storage_policy);
            }
            "message_retention_duration" => {
                config.message_retention_duration = update.message_retention_duration;
            }
            _ => return Err(not_updatable(&path)),
        }
    }
    topic.configure(config.clone())?;
    Ok(config)
}

pub(crate) fn list_topics(
    broker: &Broker,
    request: &proto::ListTopicsRequest,
) -> Result<proto::ListTopicsResponse, Status> {
    names::check_project(&request.project)?;
    let page = page_of(&broker.topics, request.page_size, &request.page_token, |name, _| {
        names::belongs_to(name, &request.project)
    });
    Ok(proto::ListTopicsResponse {
        topics: page.found.into_iter().map(|topic| topic.config.clone()).collect(),
        next_page_token: page.next_token,
    })
}

pub(crate) fn list_topic_subscriptions(
    broker: &Broker,
    request: &proto::ListTopicSubscriptionsRequest,
) -> Result<proto::ListTopicSubscriptionsResponse, Status> {
    broker.topic(&request.topic)?;
    let page = page_of(
        &broker.subscriptions,
        request.page_size,
        &request.page_token,
        |_, subscription| subscription.config.topic == request.topic,
    );
    Ok(proto::ListTopicSubscriptionsResponse {
        subscriptions: page.found.into_iter().map(|its| its.config.name.clone()).collect(),
        next_page_token: page.next_token,
    })
}

pub(crate) fn list_topic_snapshots(
    broker: &Broker,
    request: &proto::ListTopicSnapshotsRequest,
) -> Result<proto::ListTopicSnapshotsResponse, Status> {
    broker.topic(&request.topic)?;
    let is_its = |_: &str, its: &Snapshot| its.config.topic == request.topic;
    let page = page_of(&broker.snapshots, request.page_size, &request.page_token, is_its);
    Ok(proto::ListTopicSnapshotsResponse {
        snapshots: page.found.into_iter().map(|its| its.config.name.clone()).collect(),
        next_page_token: page.next_token,
    })
}
