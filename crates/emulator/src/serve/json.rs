//! Topics, subscriptions and snapshots as JSON. Unknown fields are refused, not ignored.

use std::collections::BTreeMap;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::seek_request::Target;
use serde::{Deserialize, Serialize};
use tonic::Status;

/// Declares the JSON form of a message of the API: its fields, those that are text such as `600s`,
/// messages inside, and values that only the service sets.
macro_rules! json_form {
    (
        $vis:vis $name:ident {
            $($(#[$attribute:meta])* $plain:ident: $type:ty,)*
            $(; text $($text:ident: $parsed:ty,)*)?
            $(; inner $($inner:ident: $form:ty,)*)?
            $(; constant $constant:ident = $value:literal)?
        }
    ) => {
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        $vis struct $name {
            $($(#[$attribute])* $plain: $type,)*
            $($(
                #[serde(with = "text", skip_serializing_if = "Option::is_none")]
                $text: Option<$parsed>,
            )*)?
            $($(
                #[serde(skip_serializing_if = "Option::is_none")]
                $inner: Option<$form>,
            )*)?
            $(#[serde(skip_deserializing)] $constant: &'static str,)?
        }

        impl From<$name> for proto::$name {
            fn from(json: $name) -> Self {
                let mut message = <Self as Default>::default();
                $(message.$plain = json.$plain;)*
                $($(message.$text = json.$text;)*)?
                $($(message.$inner = json.$inner.map(Into::into);)*)?
                message
            }
        }

        impl From<proto::$name> for $name {
            fn from(message: proto::$name) -> Self {
                Self {
                    $($plain: message.$plain,)*
                    $($($text: message.$text,)*)?
                    $($($inner: message.$inner.map(Into::into),)*)?
                    $($constant: $value,)?
                }
            }
        }
    };
}

json_form! {
    pub(super) Topic {
        name: String,
        labels: BTreeMap<String, String>,
        ; text message_retention_duration: prost_types::Duration,
        ; inner message_storage_policy: MessageStoragePolicy,
    }
}

json_form! {
    MessageStoragePolicy {
        allowed_persistence_regions: Vec<String>,
        enforce_in_transit: bool,
    }
}

json_form! {
    pub(super) Subscription {
        name: String,
        topic: String,
        ack_deadline_seconds: i32,
        retain_acked_messages: bool,
        labels: BTreeMap<String, String>,
        enable_message_ordering: bool,
        enable_exactly_once_delivery: bool,
        filter: String,
        ; text message_retention_duration: prost_types::Duration,
        ; inner
            expiration_policy: ExpirationPolicy,
            dead_letter_policy: DeadLetterPolicy,
            retry_policy: RetryPolicy,
        ; constant state = "ACTIVE"
    }
}

json_form! {
    ExpirationPolicy {
        ; text ttl: prost_types::Duration,
    }
}

json_form! {
    DeadLetterPolicy {
        dead_letter_topic: String,
        max_delivery_attempts: i32,
    }
}

json_form! {
    RetryPolicy {
        ; text
            minimum_backoff: prost_types::Duration,
            maximum_backoff: prost_types::Duration,
    }
}

json_form! {
    pub(super) Snapshot {
        name: String,
        #[serde(skip_deserializing)]
        topic: String,
        labels: BTreeMap<String, String>,
        ; text expire_time: prost_types::Timestamp,
    }
}

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
