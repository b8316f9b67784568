//! Calls that manage topics and subscriptions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use prost::Message;
use tonic::Status;

use crate::calls::acknowledge::ack_deadline;
use crate::store::broker::Broker;
use crate::wire::grpc;
use crate::wire::names;

/// Answers one unary call.
pub(crate) fn call(broker: &mut Broker, path: &str, frame: &Bytes) -> Result<BytesMut, Status> {
    let Some(method) = path.strip_prefix("/google.pubsub.v1.") else {
        return Err(unimplemented(path));
    };
    match method {
        "Publisher/CreateTopic" => typed(frame, |topic| create_topic(broker, topic)),
        "Publisher/GetTopic" => typed(frame, |request: proto::GetTopicRequest| {
            Ok(broker.topic(&request.topic)?.config.clone())
        }),
        "Publisher/UpdateTopic" => typed(frame, |request| update_topic(broker, request)),
        "Publisher/ListTopics" => typed(frame, |request| list_topics(broker, &request)),
        "Publisher/ListTopicSubscriptions" => {
            typed(frame, |request| list_topic_subscriptions(broker, &request))
        }
        "Publisher/DeleteTopic" => {
            typed(frame, |request: proto::DeleteTopicRequest| broker.remove_topic(&request.topic))
        }
        "Subscriber/CreateSubscription" => {
            typed(frame, |subscription| create_subscription(broker, subscription))
        }
        "Subscriber/GetSubscription" => typed(frame, |request: proto::GetSubscriptionRequest| {
            Ok(broker.subscription_mut(&request.subscription)?.config.clone())
        }),
        "Subscriber/UpdateSubscription" => {
            typed(frame, |request| update_subscription(broker, request))
        }
        "Subscriber/ListSubscriptions" => {
            typed(frame, |request| list_subscriptions(broker, &request))
        }
        "Subscriber/DeleteSubscription" => {
            typed(frame, |request: proto::DeleteSubscriptionRequest| {
                broker.remove_subscription(&request.subscription)
            })
        }
        _ => Err(unimplemented(path)),
    }
}

fn typed<Q: Message + Default, R: Message>(
    frame: &Bytes,
    answer: impl FnOnce(Q) -> Result<R, Status>,
) -> Result<BytesMut, Status> {
    Ok(grpc::encode(&answer(grpc::decode(frame)?)?))
}

fn unimplemented(path: &str) -> Status {
    Status::unimplemented(format!("the emulator does not implement {path}"))
}

/// Refuses what would be ignored, where ignoring it would change which messages arrive.
fn refuse(unsupported: &[(bool, &str)]) -> Result<(), Status> {
    match unsupported.iter().find(|(is_set, _)| *is_set) {
        Some((_, name)) => {
            Err(Status::unimplemented(format!("the emulator does not implement {name}")))
        }
        None => Ok(()),
    }
}

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

fn update_topic(
    broker: &mut Broker,
    request: proto::UpdateTopicRequest,
) -> Result<proto::Topic, Status> {
    let topic = request.topic.ok_or_else(|| missing("topic"))?;
    let config = &mut broker.topic_mut(&topic.name)?.config;
    for path in request.update_mask.ok_or_else(|| missing("update_mask"))?.paths {
        match path.as_str() {
            "labels" => config.labels.clone_from(&topic.labels),
            "message_retention_duration" => {
                config.message_retention_duration = topic.message_retention_duration;
            }
            _ => return Err(not_updatable(&path)),
        }
    }
    Ok(config.clone())
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

pub(crate) fn create_subscription(
    broker: &mut Broker,
    mut subscription: proto::Subscription,
) -> Result<proto::Subscription, Status> {
    let pushes = subscription.push_config.as_ref();
    refuse(&[
        (pushes.is_some_and(|config| !config.push_endpoint.is_empty()), "push_config"),
        (subscription.bigquery_config.is_some(), "bigquery_config"),
        (subscription.cloud_storage_config.is_some(), "cloud_storage_config"),
        (subscription.bigtable_config.is_some(), "bigtable_config"),
        (subscription.dead_letter_policy.is_some(), "dead_letter_policy"),
        (!subscription.message_transforms.is_empty(), "message_transforms"),
    ])?;
    if subscription.ack_deadline_seconds == 0 {
        subscription.ack_deadline_seconds = 10;
    }
    let deadline = subscription_deadline(subscription.ack_deadline_seconds)?;
    broker.insert_subscription(subscription.clone(), deadline)?;
    Ok(subscription)
}

fn update_subscription(
    broker: &mut Broker,
    request: proto::UpdateSubscriptionRequest,
) -> Result<proto::Subscription, Status> {
    let update = request.subscription.ok_or_else(|| missing("subscription"))?;
    let subscription = broker.subscription_mut(&update.name)?;
    let config = &mut subscription.config;
    for path in request.update_mask.ok_or_else(|| missing("update_mask"))?.paths {
        match path.as_str() {
            "ack_deadline_seconds" => {
                subscription.ack_deadline = subscription_deadline(update.ack_deadline_seconds)?;
                config.ack_deadline_seconds = update.ack_deadline_seconds;
            }
            "labels" => config.labels.clone_from(&update.labels),
            "message_retention_duration" => {
                config.message_retention_duration = update.message_retention_duration;
            }
            "expiration_policy" => config.expiration_policy = update.expiration_policy,
            "retry_policy" => config.retry_policy = update.retry_policy,
            "enable_exactly_once_delivery" => {
                config.enable_exactly_once_delivery = update.enable_exactly_once_delivery;
            }
            _ => return Err(not_updatable(&path)),
        }
    }
    Ok(config.clone())
}

fn subscription_deadline(seconds: i32) -> Result<Duration, Status> {
    let deadline = ack_deadline(seconds)?;
    if deadline < Duration::from_secs(10) {
        return Err(Status::invalid_argument(format!(
            "ack_deadline_seconds is {seconds}; 10 to 600 are allowed"
        )));
    }
    Ok(deadline)
}

pub(crate) fn list_subscriptions(
    broker: &Broker,
    request: &proto::ListSubscriptionsRequest,
) -> Result<proto::ListSubscriptionsResponse, Status> {
    names::check_project(&request.project)?;
    let page = page_of(&broker.subscriptions, request.page_size, &request.page_token, |name, _| {
        names::belongs_to(name, &request.project)
    });
    Ok(proto::ListSubscriptionsResponse {
        subscriptions: page.found.into_iter().map(|its| its.config.clone()).collect(),
        next_page_token: page.next_token,
    })
}

struct Page<'a, T> {
    found: Vec<&'a T>,
    next_token: String,
}

/// A page of named things in the order of their names; the token is the last name of the page
/// before.
fn page_of<'a, T>(
    all: &'a BTreeMap<String, T>,
    size: i32,
    token: &str,
    is_wanted: impl Fn(&str, &T) -> bool,
) -> Page<'a, T> {
    let size = usize::try_from(size).ok().filter(|size| (1..=1_000).contains(size));
    let size = size.unwrap_or(1_000);
    let after = if token.is_empty() { Bound::Unbounded } else { Bound::Excluded(token) };
    let mut wanted = all
        .range::<str, _>((after, Bound::Unbounded))
        .filter(|(name, thing)| is_wanted(name, thing));
    let page: Vec<_> = wanted.by_ref().take(size).collect();
    let has_more = wanted.next().is_some();
    let last = page.last().map(|(name, _)| (*name).clone()).unwrap_or_default();
    Page {
        found: page.into_iter().map(|(_, thing)| thing).collect(),
        next_token: if has_more { last } else { String::new() },
    }
}

fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

fn not_updatable(path: &str) -> Status {
    Status::invalid_argument(format!("update_mask: {path:?} cannot be updated here"))
}
