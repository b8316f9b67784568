//! The subscription calls: create, change, list.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::calls::acknowledge::ack_deadline;
use crate::calls::request::{masked_paths, missing, not_updatable, page_of, refuse};
use crate::store::broker::Broker;
use crate::wire::names;

pub(crate) fn create_subscription(
    broker: &mut Broker,
    mut subscription: proto::Subscription,
) -> Result<proto::Subscription, Status> {
    refuse_push(subscription.push_config.as_ref())?;
    refuse(&[
        (subscription.bigquery_config.is_some(), "bigquery_config"),
        (subscription.cloud_storage_config.is_some(), "cloud_storage_config"),
        (subscription.bigtable_config.is_some(), "bigtable_config"),
        (!subscription.message_transforms.is_empty(), "message_transforms"),
    ])?;
    if subscription.ack_deadline_seconds == 0 {
        subscription.ack_deadline_seconds = 10;
    }
    let deadline = subscription_deadline(subscription.ack_deadline_seconds)?;
    broker.insert_subscription(subscription, deadline)
}

pub(crate) fn update_subscription(
    broker: &mut Broker,
    request: proto::UpdateSubscriptionRequest,
) -> Result<proto::Subscription, Status> {
    let update = request.subscription.ok_or_else(|| missing("subscription"))?;
    let subscription = broker.subscription_mut(&update.name)?;
    let mut config = subscription.config.clone();
    let mut deadline = subscription.ack_deadline;
    for path in masked_paths(request.update_mask)? {
        match path.as_str() {
            "ack_deadline_seconds" => {
                deadline = subscription_deadline(update.ack_deadline_seconds)?;
                config.ack_deadline_seconds = update.ack_deadline_seconds;
            }
            "labels" => config.labels.clone_from(&update.labels),
            "message_retention_duration" => {
                config.message_retention_duration = update.message_retention_duration;
            }
            "retain_acked_messages" => config.retain_acked_messages = update.retain_acked_messages,
            "dead_letter_policy" => {
                config.dead_letter_policy.clone_from(&update.dead_letter_policy);
            }
            "expiration_policy" => config.expiration_policy = update.expiration_policy,
            "retry_policy" => config.retry_policy = update.retry_policy,
            "push_config" => {
                refuse_push(update.push_config.as_ref())?;
                config.push_config.clone_from(&update.push_config);
            }
            "enable_exactly_once_delivery" => {
                config.enable_exactly_once_delivery = update.enable_exactly_once_delivery;
            }
            _ => return Err(not_updatable(&path)),
        }
    }
    broker.check_dead_letter_topic(&config)?;
    let updated = broker.subscription_mut(&update.name)?;
    updated.configure(config)?;
    updated.ack_deadline = deadline;
    broker.described_subscription(&update.name)
}

/// Answers a ModifyPushConfig call. An empty configuration means pull, which is the only way of
/// delivery here.
pub(crate) fn modify_push_config(
    broker: &mut Broker,
    request: &proto::ModifyPushConfigRequest,
) -> Result<(), Status> {
    broker.subscription_mut(&request.subscription)?;
    refuse_push(request.push_config.as_ref())
}

fn refuse_push(config: Option<&proto::PushConfig>) -> Result<(), Status> {
    let pushes = config.is_some_and(|config| !config.push_endpoint.is_empty());
    refuse(&[(pushes, "push_config")])
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
        subscriptions: page.found.into_iter().map(|its| broker.described(&its.config)).collect(),
        next_page_token: page.next_token,
    })
}
