//! Production's limits on a `PublishRequest`, checked on the raw bytes.
//!
//! Sources: "Pub/Sub quotas and limits" (resource limits) and the comments of
//! google/pubsub/v1/pubsub.proto.

use tonic::Status;
use walrelay_protobuf::{Fields, Malformed, Value};

/// The maximum bytes of one encoded request. The limit for a single message is the same number.
pub const REQUEST_BYTES_MAX: usize = 10_000_000;
pub const REQUEST_MESSAGES_MAX: usize = 1_000;
pub const ATTRIBUTES_MAX: usize = 100;
pub const ATTRIBUTE_KEY_BYTES_MAX: usize = 256;
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 1_024;
pub const ORDERING_KEY_BYTES_MAX: usize = 1_024;

/// A request within production's limits. All fields borrow from the bytes of the request.
#[derive(Debug)]
pub(crate) struct PublishRequest<'a> {
    pub(crate) topic: &'a str,
    /// The common key of all messages. Empty means unordered.
    pub(crate) ordering_key: &'a str,
    /// Each message as the client encoded it.
    pub(crate) messages: Vec<&'a [u8]>,
}

impl<'a> PublishRequest<'a> {
    pub(crate) fn parse(request: &'a [u8]) -> Result<Self, Status> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(too_large(request.len()));
        }
        let mut topic = "";
        let mut messages = Vec::new();
        for field in Fields::of(request) {
            match field.map_err(malformed)? {
                (1, Value::Bytes(name)) => topic = text(name, || "the topic name".to_owned())?,
                (2, Value::Bytes(message)) => messages.push(message),
                _ => {}
            }
        }
        let count = messages.len();
        if count == 0 {
            return Err(refused("the request has no messages"));
        }
        if count > REQUEST_MESSAGES_MAX {
            return Err(refused(format!(
                "the request has {count} messages; at most {REQUEST_MESSAGES_MAX} are allowed"
            )));
        }
        let mut ordering_key = None;
        for (index, message) in messages.iter().enumerate() {
            let key = check_message(index, message)?;
            match ordering_key {
                None => ordering_key = Some(key),
                Some(first) if first == key => {}
                Some(_) => return Err(mixed_keys(index)),
            }
        }
        Ok(Self { topic, ordering_key: ordering_key.unwrap_or_default(), messages })
    }
}

/// Returns the attributes of a message, in their order in the bytes. Unreadable ones are left out,
/// because the message was checked before.
pub(crate) fn attributes(message: &[u8]) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for field in Fields::of(message) {
        if let Ok((2, Value::Bytes(entry))) = field
            && let Ok((key, value)) = entry_of(entry)
            && let (Ok(key), Ok(value)) = (std::str::from_utf8(key), std::str::from_utf8(value))
        {
            found.push((key, value));
        }
    }
    found
}

/// Returns one attribute of a message. If a name occurs several times the last value counts, as in
/// every reader of protobuf maps.
pub(crate) fn attribute<'a>(message: &'a [u8], name: &str) -> Option<&'a str> {
    attributes(message).into_iter().rev().find(|(key, _)| *key == name).map(|(_, value)| value)
}

pub(crate) fn data(message: &[u8]) -> &[u8] {
    let mut data: &[u8] = &[];
    for field in Fields::of(message) {
        if let Ok((1, Value::Bytes(bytes))) = field {
            data = bytes;
        }
    }
    data
}

/// Returns the error for a request whose length alone exceeds the limit, before the request is
/// read.
pub(crate) fn too_large(bytes: usize) -> Status {
    refused(format!(
        "the request payload size of {bytes} bytes exceeds the limit of {REQUEST_BYTES_MAX} bytes"
    ))
}

fn check_message(index: usize, message: &[u8]) -> Result<&str, Status> {
    let mut has_data = false;
    let mut attribute_count = 0;
    let mut ordering_key = "";
    for field in Fields::of(message) {
        match field.map_err(malformed)? {
            (1, Value::Bytes(data)) => has_data = !data.is_empty(),
            (2, Value::Bytes(entry)) => {
                attribute_count += 1;
                check_attribute(index, entry)?;
            }
            (5, Value::Bytes(key)) => {
                ordering_key = text(key, || format!("the ordering key of message {index}"))?;
            }
            _ => {}
        }
    }
    if !has_data && attribute_count == 0 {
        return Err(refused(format!(
            "message {index} is empty: it needs data or at least one attribute"
        )));
    }
    if attribute_count > ATTRIBUTES_MAX {
        return Err(refused(format!(
            "message {index} has {attribute_count} attributes; at most {ATTRIBUTES_MAX} are allowed"
        )));
    }
    if ordering_key.len() > ORDERING_KEY_BYTES_MAX {
        return Err(refused(format!(
            "the ordering key of message {index} has {} bytes; at most {ORDERING_KEY_BYTES_MAX} are \
             allowed",
            ordering_key.len()
        )));
    }
    Ok(ordering_key)
}

fn check_attribute(index: usize, entry: &[u8]) -> Result<(), Status> {
    let (key, value) = entry_of(entry).map_err(malformed)?;
    let key = text(key, || format!("an attribute key of message {index}"))?;
    let value = text(value, || format!("an attribute value of message {index}"))?;
    if key.is_empty() || key.len() > ATTRIBUTE_KEY_BYTES_MAX {
        return Err(refused(format!(
            "an attribute key of message {index} has {} bytes; 1 to {ATTRIBUTE_KEY_BYTES_MAX} are \
             allowed",
            key.len()
        )));
    }
    if key.starts_with("goog") && !key.starts_with("googclient_") {
        return Err(refused(format!(
            "attribute key {key:?} of message {index} begins with the reserved prefix \"goog\""
        )));
    }
    if value.len() > ATTRIBUTE_VALUE_BYTES_MAX {
        return Err(refused(format!(
            "the value of attribute {key:?} of message {index} has {} bytes; at most \
             {ATTRIBUTE_VALUE_BYTES_MAX} are allowed",
            value.len()
        )));
    }
    Ok(())
}

fn entry_of(entry: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    for field in Fields::of(entry) {
        match field? {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, Value::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((key, value))
}

fn text(bytes: &[u8], what: impl FnOnce() -> String) -> Result<&str, Status> {
    std::str::from_utf8(bytes).map_err(|_| refused(format!("{} is not valid UTF-8", what())))
}

fn mixed_keys(index: usize) -> Status {
    refused(format!(
        "message {index} has another ordering key than message 0: all messages of a request must \
         have the same one"
    ))
}

fn refused(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

fn malformed(_: Malformed) -> Status {
    refused("the request is not a well-formed protobuf message")
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
    use prost::Message as _;

    use super::*;

    fn message(data: &[u8], attributes: &[(&str, &str)], key: &str) -> proto::PubsubMessage {
        proto::PubsubMessage {
            data: data.to_vec().into(),
            attributes: attributes
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ordering_key: key.to_owned(),
            ..Default::default()
        }
    }

    fn request(messages: Vec<proto::PubsubMessage>) -> Vec<u8> {
        proto::PublishRequest { topic: "projects/p/topics/orders".to_owned(), messages }
            .encode_to_vec()
    }

    fn refusal(messages: Vec<proto::PubsubMessage>) -> String {
        let status = PublishRequest::parse(&request(messages)).expect_err("production refuses it");
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        status.message().to_owned()
    }

    #[test]
    fn a_request_within_all_limits_is_taken_as_it_is() {
        let bytes = request(vec![
            message(b"a", &[("event_type", "OrderPaid")], "A-17"),
            message(b"", &[("googclient_traceparent", "00-1-2-01")], "A-17"),
        ]);
        let parsed = PublishRequest::parse(&bytes).unwrap();
        assert_eq!(parsed.topic, "projects/p/topics/orders");
        assert_eq!(parsed.ordering_key, "A-17");
        assert_eq!(parsed.messages.len(), 2);
        assert_eq!(attribute(parsed.messages[0], "event_type"), Some("OrderPaid"));
        assert_eq!(attribute(parsed.messages[1], "event_type"), None);
        assert_eq!(data(parsed.messages[0]), b"a");
    }

    #[test]
    fn two_ordering_keys_in_one_request_are_refused_and_empty_counts_as_one() {
        let text = refusal(vec![message(b"a", &[], "k1"), message(b"b", &[], "k2")]);
        assert!(text.contains("message 1 has another ordering key"), "{text}");
        refusal(vec![message(b"a", &[], "k1"), message(b"b", &[], "")]);
        refusal(vec![message(b"a", &[], ""), message(b"b", &[], "k1")]);
    }

    #[test]
    fn an_empty_list_and_an_empty_message_are_refused() {
        assert!(refusal(vec![]).contains("no messages"));
        assert!(refusal(vec![message(b"", &[], "only-a-key")]).contains("message 0 is empty"));
    }

    #[test]
    fn the_limits_hold_at_their_edges() {
        let long = |length| "x".repeat(length);
        let taken = |m: proto::PubsubMessage| PublishRequest::parse(&request(vec![m])).is_ok();
        assert!(taken(message(b"a", &[(&long(256), &long(1024))], &long(1024))));
        assert!(!taken(message(b"a", &[(&long(257), "v")], "")));
        assert!(!taken(message(b"a", &[("", "v")], "")));
        assert!(!taken(message(b"a", &[("k", &long(1025))], "")));
        assert!(!taken(message(b"a", &[], &long(1025))));
        assert!(!taken(message(b"a", &[("goog-x", "v")], "")));
        assert!(!taken(message(b"a", &[("google", "v")], "")));
        assert!(taken(message(b"a", &[("goo", "v")], "")));

        let many = |count: usize| {
            let names: Vec<String> = (0..count).map(|n| format!("k{n}")).collect();
            let pairs: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "v")).collect();
            message(b"a", &pairs, "")
        };
        assert!(taken(many(100)));
        assert!(!taken(many(101)));

        let thousand = vec![message(b"a", &[], ""); 1000];
        assert!(PublishRequest::parse(&request(thousand)).is_ok());
        assert!(refusal(vec![message(b"a", &[], ""); 1001]).contains("1001 messages"));
    }

    #[test]
    fn a_request_may_have_ten_million_bytes_and_no_more() {
        let overhead = request(vec![message(&vec![1; 9_000_000], &[], "")]).len() - 9_000_000;
        let largest = vec![message(&vec![1; REQUEST_BYTES_MAX - overhead], &[], "")];
        assert!(PublishRequest::parse(&request(largest)).is_ok());
        let larger = vec![message(&vec![1; REQUEST_BYTES_MAX - overhead + 1], &[], "")];
        assert!(refusal(larger).contains("exceeds the limit of 10000000 bytes"));
    }

    #[test]
    fn any_bytes_give_an_answer() {
        let good = request(vec![message(b"a", &[("k", "v")], "key")]);
        for end in 0..good.len() {
            drop(PublishRequest::parse(&good[..end]));
        }
        for at in 0..good.len() {
            for byte in 0..=255 {
                let mut bytes = good.clone();
                bytes[at] = byte;
                drop(PublishRequest::parse(&bytes));
            }
        }
    }
}
