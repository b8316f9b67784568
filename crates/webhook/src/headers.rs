//! The headers that describe an event: CloudEvents in binary mode.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::IgnoredAny;
use walrelay_envelope::attribute::{self, cloudevents};
use walrelay_inbox::Event;

use crate::target::encoded;

/// The ordering key, as the partitioning extension of CloudEvents names it.
const PARTITION_KEY: &str = "ce-partitionkey";

/// The publisher's own attributes that CloudEvents have no name for. The others have a header of their own.
const EXTENSIONS: [&str; 7] = [
    attribute::AGGREGATE_TYPE,
    attribute::VERSION,
    attribute::SCHEMA_VERSION,
    attribute::COMMIT_LSN,
    attribute::TX_INDEX,
    attribute::SYSTEM_IDENTIFIER,
    attribute::REPLAY_ID,
];

/// The trace context, whose headers have no prefix.
const TRACE: [&str; 2] = [attribute::TRACEPARENT, "tracestate"];

/// The headers of the publisher's own attributes. Receivers trust them, and `Commit-Lsn` of a producer would
/// otherwise become the header of `commit_lsn`.
static OWN_HEADERS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let headers = attribute::RESERVED_NAMES.iter().filter_map(|name| extension(name));
    headers.map(|header| header.to_string()).collect()
});

/// Returns the headers of an event, without those of the signature.
pub(crate) fn describe(event: &Event) -> HeaderMap {
    let attributes = event.attributes.to_map();
    let either = |names: [&str; 2]| {
        names.into_iter().find_map(|name| attributes.get(name)).filter(|value| !value.is_empty())
    };
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            headers.insert(name, encoded(value, ""));
        }
    };
    set(cloudevents::SPEC_VERSION, Some("1.0"));
    set(cloudevents::ID, Some(&event.event_id));
    // CloudEvents need a source and a type, which messages of other publishers may lack.
    let source = either([attribute::SOURCE, cloudevents::SOURCE]);
    set(cloudevents::SOURCE, Some(source.map_or("pubsub", String::as_str)));
    set(cloudevents::TYPE, Some(event.event_type.as_deref().unwrap_or("message")));
    set(cloudevents::SUBJECT, event.aggregate_id.as_deref());
    set(cloudevents::TIME, either([attribute::OCCURRED_AT, cloudevents::TIME]).map(String::as_str));
    set(PARTITION_KEY, Some(&event.ordering_key));
    for name in TRACE {
        set(name, attributes.get(name).map(String::as_str));
    }
    headers.insert(CONTENT_TYPE, content_type(event, &attributes));
    for (name, value) in &attributes {
        let is_own = attribute::is_ours(name);
        let is_handled = is_own && !EXTENSIONS.contains(&name.as_str())
            || TRACE.contains(&name.as_str())
            || name.starts_with(attribute::RESERVED_PREFIX);
        let Some(header) = extension(name).filter(|_| !is_handled) else { continue };
        if is_own || !OWN_HEADERS.contains(header.as_str()) {
            headers.entry(header).or_insert_with(|| encoded(value, ""));
        }
    }
    headers
}

/// Returns the header of another attribute. The names of CloudEvents have only lower-case letters and digits.
fn extension(name: &str) -> Option<HeaderName> {
    let name = name.strip_prefix("ce-").unwrap_or(name);
    let kept: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let kept = kept.to_ascii_lowercase();
    // These names are of the event's form, and no attribute may pretend to be one of them.
    let is_of_form = matches!(&*kept, "" | "data" | "database64" | "datacontenttype");
    if is_of_form { None } else { HeaderName::try_from(format!("ce-{kept}")).ok() }
}

fn content_type(event: &Event, attributes: &BTreeMap<String, String>) -> HeaderValue {
    let given = attributes.get(cloudevents::CONTENT_TYPE).filter(|value| !value.is_empty());
    let given = given.and_then(|value| HeaderValue::from_str(value).ok());
    given.unwrap_or_else(|| {
        HeaderValue::from_static(match serde_json::from_slice::<IgnoredAny>(&event.data) {
            Ok(IgnoredAny) => "application/json",
            Err(_) => "application/octet-stream",
        })
    })
}

#[cfg(test)]
mod tests {
    use walrelay_pubsub::MessageRef;

    use super::*;

    fn described(attributes: &[(&str, &str)], data: &[u8]) -> BTreeMap<String, String> {
        let event = Event::of_message(MessageRef {
            data,
            attributes: attributes.to_vec(),
            message_id: "m-1",
            publish_time: None,
            ordering_key: "A-17",
        });
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        describe(&event).iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    #[test]
    fn no_attribute_of_a_producer_takes_a_header_of_the_publisher() {
        let found = described(
            &[
                ("Commit-Lsn", "forged"),
                ("-version", "forged"),
                ("Tx-Index", "forged"),
                ("commit_lsn", "0/1"),
                ("Tenant", "t"),
            ],
            b"",
        );
        assert_eq!(found.get("ce-commitlsn").map(String::as_str), Some("0/1"));
        assert_eq!(found.get("ce-tenant").map(String::as_str), Some("t"));
        assert!(!found.values().any(|value| value == "forged"), "{found:?}");
    }

    fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn both_styles_of_attributes_make_the_same_headers() {
        let own = [
            ("event_id", "e.1"),
            ("event_type", "OrderPlaced"),
            ("aggregate_id", "A 17"),
            ("aggregate_type", "order"),
            ("source", "public.app_outbox"),
            ("occurred_at", "2023-11-14T22:13:20.000001Z"),
            ("version", "7"),
            ("commit_lsn", "16/B374D848"),
            ("traceparent", "00-1-01"),
            ("googclient_traceparent", "00-1-01"),
        ];
        let cloud = [
            ("ce-id", "e.1"),
            ("ce-type", "OrderPlaced"),
            ("ce-subject", "A 17"),
            ("aggregate_type", "order"),
            ("ce-source", "public.app_outbox"),
            ("ce-time", "2023-11-14T22:13:20.000001Z"),
            ("ce-specversion", "1.0"),
            ("content-type", "application/json"),
            ("version", "7"),
            ("commit_lsn", "16/B374D848"),
            ("traceparent", "00-1-01"),
        ];
        let headers = expected(&[
            ("ce-specversion", "1.0"),
            ("ce-id", "e.1"),
            ("ce-type", "OrderPlaced"),
            ("ce-subject", "A%2017"),
            ("ce-source", "public.app_outbox"),
            ("ce-time", "2023-11-14T22:13:20.000001Z"),
            ("ce-partitionkey", "A-17"),
            ("ce-aggregatetype", "order"),
            ("ce-version", "7"),
            ("ce-commitlsn", "16/B374D848"),
            ("content-type", "application/json"),
            ("traceparent", "00-1-01"),
        ]);
        assert_eq!(described(&own, b"{}"), headers);
        assert_eq!(described(&cloud, b"{}"), headers);
    }

    #[test]
    fn an_attribute_cannot_pretend_to_be_another_header() {
        let attributes = [
            ("webhook-signature", "v1,forged"),
            ("authorization", "Bearer x"),
            ("Host", "elsewhere"),
            ("i_d", "another"),
            ("data", "no"),
            ("ü", "no"),
            ("region", "eu\r\nx: y"),
        ];
        let headers = expected(&[
            ("ce-specversion", "1.0"),
            ("ce-id", "m-1"),
            ("ce-type", "message"),
            ("ce-source", "pubsub"),
            ("ce-partitionkey", "A-17"),
            ("ce-webhooksignature", "v1,forged"),
            ("ce-authorization", "Bearer%20x"),
            ("ce-host", "elsewhere"),
            ("ce-region", "eu%0D%0Ax:%20y"),
            ("content-type", "application/octet-stream"),
        ]);
        assert_eq!(described(&attributes, b"\xff"), headers);
    }
}
