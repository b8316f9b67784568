//! Topics, subscriptions and snapshots as JSON. Unknown fields are refused, not ignored.

use std::collections::BTreeMap;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::seek_request::Target;
use serde::{Deserialize, Serialize};
use tonic::Status;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Topic {
    name: String,
    labels: BTreeMap<String, String>,
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    message_retention_duration: Option<prost_types::Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_storage_policy: Option<MessageStoragePolicy>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct MessageStoragePolicy {
    allowed_persistence_regions: Vec<String>,
    enforce_in_transit: bool,
}

impl From<Topic> for proto::Topic {
    fn from(json: Topic) -> Self {
        let storage = json.message_storage_policy.map(|policy| proto::MessageStoragePolicy {
            allowed_persistence_regions: policy.allowed_persistence_regions,
            enforce_in_transit: policy.enforce_in_transit,
        });
        Self {
            name: json.name,
            labels: json.labels,
            message_storage_policy: storage,
            message_retention_duration: json.message_retention_duration,
            ..Default::default()
        }
    }
}

impl From<proto::Topic> for Topic {
    fn from(topic: proto::Topic) -> Self {
        let storage = topic.message_storage_policy.map(|policy| MessageStoragePolicy {
            allowed_persistence_regions: policy.allowed_persistence_regions,
            enforce_in_transit: policy.enforce_in_transit,
        });
        Self {
            message_storage_policy: storage,
            name: topic.name,
            labels: topic.labels,
            message_retention_duration: topic.message_retention_duration,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "these are the resource's fields")]
pub(super) struct Subscription {
    name: String,
    topic: String,
    ack_deadline_seconds: i32,
    retain_acked_messages: bool,
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    message_retention_duration: Option<prost_types::Duration>,
    labels: BTreeMap<String, String>,
    enable_message_ordering: bool,
    enable_exactly_once_delivery: bool,
    filter: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expiration_policy: Option<ExpirationPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_policy: Option<DeadLetterPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_policy: Option<RetryPolicy>,
    /// Set by the service only.
    #[serde(skip_deserializing)]
    state: &'static str,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ExpirationPolicy {
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    ttl: Option<prost_types::Duration>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DeadLetterPolicy {
    dead_letter_topic: String,
    max_delivery_attempts: i32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RetryPolicy {
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    minimum_backoff: Option<prost_types::Duration>,
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    maximum_backoff: Option<prost_types::Duration>,
}

impl From<Subscription> for proto::Subscription {
    fn from(json: Subscription) -> Self {
        let dead_letter_policy = json.dead_letter_policy.map(|policy| proto::DeadLetterPolicy {
            dead_letter_topic: policy.dead_letter_topic,
            max_delivery_attempts: policy.max_delivery_attempts,
        });
        let retry_policy = json.retry_policy.map(|policy| proto::RetryPolicy {
            minimum_backoff: policy.minimum_backoff,
            maximum_backoff: policy.maximum_backoff,
        });
        Self {
            name: json.name,
            topic: json.topic,
            ack_deadline_seconds: json.ack_deadline_seconds,
            retain_acked_messages: json.retain_acked_messages,
            message_retention_duration: json.message_retention_duration,
            labels: json.labels,
            enable_message_ordering: json.enable_message_ordering,
            enable_exactly_once_delivery: json.enable_exactly_once_delivery,
            filter: json.filter,
            expiration_policy: json
                .expiration_policy
                .map(|policy| proto::ExpirationPolicy { ttl: policy.ttl }),
            dead_letter_policy,
            retry_policy,
            ..Default::default()
        }
    }
}

impl From<proto::Subscription> for Subscription {
    fn from(subscription: proto::Subscription) -> Self {
        let dead_letter_policy = subscription.dead_letter_policy.map(|policy| DeadLetterPolicy {
            dead_letter_topic: policy.dead_letter_topic,
            max_delivery_attempts: policy.max_delivery_attempts,
        });
        let retry_policy = subscription.retry_policy.map(|policy| RetryPolicy {
            minimum_backoff: policy.minimum_backoff,
            maximum_backoff: policy.maximum_backoff,
        });
        Self {
            name: subscription.name,
            topic: subscription.topic,
            ack_deadline_seconds: subscription.ack_deadline_seconds,
            retain_acked_messages: subscription.retain_acked_messages,
            message_retention_duration: subscription.message_retention_duration,
            labels: subscription.labels,
            enable_message_ordering: subscription.enable_message_ordering,
            enable_exactly_once_delivery: subscription.enable_exactly_once_delivery,
            filter: subscription.filter,
            expiration_policy: subscription
                .expiration_policy
                .map(|policy| ExpirationPolicy { ttl: policy.ttl }),
            dead_letter_policy,
            retry_policy,
            state: "ACTIVE",
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Snapshot {
    name: String,
    #[serde(skip_deserializing)]
    topic: String,
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    expire_time: Option<prost_types::Timestamp>,
    labels: BTreeMap<String, String>,
}

impl From<Snapshot> for proto::Snapshot {
    fn from(json: Snapshot) -> Self {
        Self {
            name: json.name,
            topic: json.topic,
            expire_time: json.expire_time,
            labels: json.labels,
        }
    }
}

impl From<proto::Snapshot> for Snapshot {
    fn from(snapshot: proto::Snapshot) -> Self {
        Self {
            name: snapshot.name,
            topic: snapshot.topic,
            expire_time: snapshot.expire_time,
            labels: snapshot.labels,
        }
    }
}

/// The request to create a snapshot.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateSnapshot {
    subscription: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl CreateSnapshot {
    pub(super) fn named(self, name: String) -> proto::CreateSnapshotRequest {
        proto::CreateSnapshotRequest {
            name,
            subscription: self.subscription,
            labels: self.labels,
            ..Default::default()
        }
    }
}

/// The target of a seek.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Seek {
    #[serde(with = "text", default)]
    time: Option<prost_types::Timestamp>,
    snapshot: Option<String>,
}

impl Seek {
    pub(super) fn of(self, subscription: String) -> proto::SeekRequest {
        let target = self.snapshot.map(Target::Snapshot).or(self.time.map(Target::Time));
        proto::SeekRequest { subscription, target }
    }
}

/// The push configuration of a subscription.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ModifyPushConfig {
    push_config: PushConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PushConfig {
    push_endpoint: String,
}

impl ModifyPushConfig {
    pub(super) fn of(self, subscription: String) -> proto::ModifyPushConfigRequest {
        let push_endpoint = self.push_config.push_endpoint;
        let push_config = Some(proto::PushConfig { push_endpoint, ..Default::default() });
        proto::ModifyPushConfigRequest { subscription, push_config }
    }
}

/// A change: a resource, and the fields of it to update.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Update {
    topic: Option<Topic>,
    subscription: Option<Subscription>,
    snapshot: Option<Snapshot>,
    update_mask: String,
}

impl Update {
    pub(super) fn topic(self, name: String) -> proto::UpdateTopicRequest {
        let update_mask = Some(mask(&self.update_mask));
        let topic = self.topic.map(|topic| proto::Topic { name, ..topic.into() });
        proto::UpdateTopicRequest { topic, update_mask }
    }

    pub(super) fn subscription(self, name: String) -> proto::UpdateSubscriptionRequest {
        let update_mask = Some(mask(&self.update_mask));
        let named = |its: Subscription| proto::Subscription { name, ..its.into() };
        proto::UpdateSubscriptionRequest { subscription: self.subscription.map(named), update_mask }
    }

    pub(super) fn snapshot(self, name: String) -> proto::UpdateSnapshotRequest {
        let update_mask = Some(mask(&self.update_mask));
        let named = |its: Snapshot| proto::Snapshot { name, ..its.into() };
        proto::UpdateSnapshotRequest { snapshot: self.snapshot.map(named), update_mask }
    }
}

/// Converts the camel case names of JSON to the snake case names of protobuf.
fn mask(paths: &str) -> prost_types::FieldMask {
    let snake_case = |path: &str| {
        path.chars().fold(String::new(), |mut name, character| {
            if character.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(character.to_ascii_lowercase());
            name
        })
    };
    prost_types::FieldMask { paths: paths.split(',').map(snake_case).collect() }
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Status> {
    let malformed = |error| Status::invalid_argument(format!("the request's JSON: {error}"));
    serde_json::from_slice(body).map_err(malformed)
}

/// Durations such as `600s` and times such as `2026-11-21T12:00:00Z`.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_would_be_ignored_is_refused() {
        let error = decode::<Subscription>(br#"{"topic":"t","pushConfig":{}}"#).err();
        assert!(error.unwrap().message().contains("pushConfig"));
    }

    #[test]
    fn a_subscription_is_read_as_it_is_written() {
        let text = r#"{"name":"s","topic":"t","ackDeadlineSeconds":20,"retainAckedMessages":true,
            "messageRetentionDuration":"600s","labels":{"a":"b"},"enableMessageOrdering":true,
            "enableExactlyOnceDelivery":true,"filter":"attributes:a","expirationPolicy":{},
            "deadLetterPolicy":{"deadLetterTopic":"d","maxDeliveryAttempts":7},
            "retryPolicy":{"minimumBackoff":"0.500s"}}"#;
        let read: proto::Subscription = decode::<Subscription>(text.as_bytes()).unwrap().into();
        assert_eq!(read.message_retention_duration.unwrap().seconds, 600);
        assert_eq!(read.retry_policy.unwrap().minimum_backoff.unwrap().nanos, 500_000_000);

        let written = serde_json::to_value(Subscription::from(read)).unwrap();
        let mut expected: serde_json::Value = serde_json::from_str(text).unwrap();
        expected["state"] = "ACTIVE".into();
        assert_eq!(written, expected);
    }

    #[test]
    fn masks_name_fields_as_messages_do() {
        let paths = mask("labels,retainAckedMessages").paths;
        assert_eq!(paths, ["labels", "retain_acked_messages"]);
    }
}
