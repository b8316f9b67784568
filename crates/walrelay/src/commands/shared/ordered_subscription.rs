//! The settings of every subscription that a consumer reads.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{ExpirationPolicy, Subscription};

/// Pub/Sub's default, and the time for which `consumer prune` keeps rows anyway.
const RETENTION: prost_types::Duration = prost_types::Duration { seconds: 7 * 24 * 3600, nanos: 0 };
/// Time between redeliveries without a consumer. A consumer sets its own deadline on the stream.
const ACK_DEADLINE_SECONDS: i32 = 60;

/// Returns a subscription with the settings that every consumer needs.
pub(super) fn ordered(name: &str, topic: &str) -> Subscription {
    Subscription {
        name: name.to_owned(),
        topic: topic.to_owned(),
        ack_deadline_seconds: ACK_DEADLINE_SECONDS,
        enable_message_ordering: true,
        // Without a TTL a subscription never expires.
        expiration_policy: Some(ExpirationPolicy { ttl: None }),
        retain_acked_messages: true,
        message_retention_duration: Some(RETENTION),
        ..Subscription::default()
    }
}
