//! The limits of Pub/Sub, checked before a message is sent.
//!
//! One oversized row would otherwise fail its whole batch on every attempt. Source: the quotas page
//! ("Resource limits") and the comments of google/pubsub/v1/pubsub.proto.

/// Messages in one request.
pub const REQUEST_MESSAGES_MAX: usize = 1_000;
/// Encoded bytes of one request with topic name, attributes and keys. Megabytes, not mebibytes.
pub const REQUEST_BYTES_MAX: usize = 10_000_000;
pub(crate) const ATTRIBUTES_MAX: usize = 100;
pub(crate) const ATTRIBUTE_KEY_BYTES_MAX: usize = 256;
/// Bytes of an attribute's value.
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 1_024;
/// Bytes of an ordering key.
pub const ORDERING_KEY_BYTES_MAX: usize = 1_024;

/// Whether Pub/Sub accepts the last part of a topic name (pubsub.proto, `Topic.name`).
pub(crate) fn is_topic_id(id: &str) -> bool {
    (3..=255).contains(&id.len())
        && id.starts_with(|first: char| first.is_ascii_alphabetic())
        && !id.starts_with("goog")
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~+%".contains(&b))
}

/// Bytes of a project id. Google's ids have at most 30, or more with a domain prefix, but never as
/// many as this.
const PROJECT_ID_BYTES_MAX: usize = 255;

/// Whether a full topic name has the form `projects/P/topics/T`. Such a name is always short.
#[must_use]
pub fn is_topic_name(name: &str) -> bool {
    let parts: Vec<_> = name.split('/').collect();
    match parts[..] {
        ["projects", project, "topics", id] => {
            (1..=PROJECT_ID_BYTES_MAX).contains(&project.len()) && is_topic_id(id)
        }
        _ => false,
    }
}
