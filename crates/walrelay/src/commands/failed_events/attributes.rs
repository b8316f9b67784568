//! The attributes of a message after an edit.
//!
//! The relay's own attributes stay, because consumers drop duplicates by them. A file replaces the
//! other attributes, which came from the row's headers. The file may correct attributes that
//! describe the event, but not those that identify it.

use std::collections::BTreeMap;

use walrelay_core::ATTRIBUTE_VALUE_BYTES_MAX;
use walrelay_envelope::attribute::{self as name, cloudevents};

use crate::error::Error;

/// Attributes that identify the event and its WAL position. The event id comes first.
const IDENTITY: [&str; 6] = [
    name::EVENT_ID,
    name::SOURCE,
    name::COMMIT_LSN,
    name::TX_INDEX,
    name::REPLAY_ID,
    name::SYSTEM_IDENTIFIER,
];

/// The relay's other attributes, which describe the event.
const DESCRIPTION: [&str; 6] = [
    name::EVENT_TYPE,
    name::AGGREGATE_TYPE,
    name::AGGREGATE_ID,
    name::VERSION,
    name::SCHEMA_VERSION,
    name::OCCURRED_AT,
];

/// The same groups with `--attributes cloudevents`. The event id comes first here also.
const CLOUDEVENTS_IDENTITY: [&str; 7] = [
    cloudevents::ID,
    cloudevents::SPEC_VERSION,
    cloudevents::SOURCE,
    name::COMMIT_LSN,
    name::TX_INDEX,
    name::REPLAY_ID,
    name::SYSTEM_IDENTIFIER,
];
const CLOUDEVENTS_DESCRIPTION: [&str; 7] = [
    cloudevents::TYPE,
    cloudevents::SUBJECT,
    cloudevents::TIME,
    cloudevents::CONTENT_TYPE,
    name::AGGREGATE_TYPE,
    name::VERSION,
    name::SCHEMA_VERSION,
];

/// The relay's own attributes, grouped by whether an edit may change them.
struct RelayAttributes {
    identity: &'static [&'static str],
    description: &'static [&'static str],
}

impl RelayAttributes {
    fn of(attributes: &BTreeMap<String, String>) -> Self {
        match attributes.contains_key(cloudevents::SPEC_VERSION) {
            true => Self { identity: &CLOUDEVENTS_IDENTITY, description: &CLOUDEVENTS_DESCRIPTION },
            false => Self { identity: &IDENTITY, description: &DESCRIPTION },
        }
    }
}

/// Replaces the attributes that are not the relay's own with those of a file. Returns the relay's
/// own attributes that the file corrected.
///
/// # Errors
///
/// The file would turn the message into another event.
pub(in crate::commands) fn replace(
    attributes: &mut BTreeMap<String, String>,
    given: BTreeMap<String, String>,
) -> Result<Vec<String>, Error> {
    let RelayAttributes { identity, description } = RelayAttributes::of(attributes);
    let mut corrected = Vec::new();
    for (attribute, value) in &given {
        let known = attributes.get(attribute).filter(|known| !known.is_empty());
        if known == Some(value) || !name::is_ours(attribute) {
            continue;
        }
        match (description.contains(&attribute.as_str()), known) {
            (true, Some(_)) => corrected.push(attribute.clone()),
            (true, None) => {}
            // An event without an id may get one.
            (false, None) if identity[0] == attribute => {}
            (false, _) => return Err(reserved_attribute(attribute, identity)),
        }
    }
    attributes.retain(|known, _| {
        identity.contains(&known.as_str()) || description.contains(&known.as_str())
    });
    attributes.extend(given);
    // The router adds the same attribute, for Google's client libraries.
    if let Some(trace) = attributes.get(name::TRACEPARENT).cloned() {
        attributes.entry(name::GOOGCLIENT_TRACEPARENT.to_owned()).or_insert(trace);
    }
    Ok(corrected)
}

/// The error for a file that sets an attribute which only the relay may write.
fn reserved_attribute(attribute: &str, identity: &[&str]) -> Error {
    match identity.contains(&attribute) {
        true => Error::unfit(
            format!("the attribute {attribute} says which event this is, and is kept"),
            "leave it out of the file; another event is written to the outbox, and this one discarded",
        ),
        false => Error::unfit(
            format!("only the relay writes attributes named {attribute}"),
            "leave it out of the file, or choose another name for it",
        ),
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct KeyChange<'a> {
    pub(in crate::commands) before: &'a str,
    pub(in crate::commands) after: &'a str,
}

/// Replaces overlong attribute values that repeat the old ordering key by the new key, because
/// Pub/Sub would refuse such a value. Returns the names of the changed attributes.
pub(in crate::commands) fn replace_repeated_key(
    attributes: &mut BTreeMap<String, String>,
    KeyChange { before, after }: KeyChange<'_>,
) -> Vec<String> {
    if before.len() <= ATTRIBUTE_VALUE_BYTES_MAX {
        return Vec::new();
    }
    let RelayAttributes { description, .. } = RelayAttributes::of(attributes);
    let mut followed = Vec::new();
    for name in description {
        if let Some(value) = attributes.get_mut(*name).filter(|value| *value == before) {
            after.clone_into(value);
            followed.push((*name).to_owned());
        }
    }
    followed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map<M: FromIterator<(String, String)>>(pairs: &[(&str, &str)]) -> M {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_file_replaces_headers_and_keeps_what_consumers_tell_events_apart_by() {
        let own = [("event_id", "e-1"), ("commit_lsn", "0/9"), ("tx_index", "0"), ("version", "3")];
        let mut attributes = map(&[&own[..], &[("tenant", "a"), ("ce-id", "header")]].concat());
        let given = map(&[("tenant", "b"), ("event_id", "e-1"), ("traceparent", "00-1")]);
        assert_eq!(replace(&mut attributes, given).unwrap(), Vec::<String>::new());
        let after = [("tenant", "b"), ("traceparent", "00-1"), ("googclient_traceparent", "00-1")];
        assert_eq!(attributes, map(&[&own[..], &after].concat()));
    }

    #[test]
    fn a_file_may_correct_what_describes_the_event_and_not_which_event_it_is() {
        let own = [("event_id", "e-1"), ("source", "public.app_outbox"), ("aggregate_id", "long")];
        let mut attributes = map(&own);
        let corrected = replace(&mut attributes, map(&[("aggregate_id", "short")])).unwrap();
        assert_eq!(corrected, ["aggregate_id"]);
        assert_eq!(attributes["aggregate_id"], "short");
        for identity in ["event_id", "source"] {
            let error = replace(&mut attributes, map(&[(identity, "another")])).unwrap_err();
            assert!(error.report().contains(&format!("the attribute {identity} says which")));
        }
        assert_eq!(attributes["event_id"], "e-1");
        // An event without an id may get one.
        let mut nameless = map(&[("event_type", "a")]);
        assert!(replace(&mut nameless, map(&[("event_id", "e-2")])).is_ok());
        assert_eq!(nameless["event_id"], "e-2");
    }

    #[test]
    fn of_cloudevents_those_of_the_binding_are_kept() {
        let own = [("ce-specversion", "1.0"), ("ce-id", "e-1"), ("ce-subject", "v-1")];
        let mut attributes = map(&[&own[..], &[("event_id", "a header")]].concat());
        assert!(replace(&mut attributes, map(&[("ce-id", "another")])).is_err());
        assert!(replace(&mut attributes, map(&[])).unwrap().is_empty());
        assert_eq!(attributes, map(&own));
    }

    #[test]
    fn a_file_gives_no_value_to_a_name_of_the_relays_that_the_message_lacks() {
        let plain = || map(&[("event_id", "e-1"), ("source", "public.app_outbox")]);
        let cloud = || map(&[("ce-specversion", "1.0"), ("ce-id", "e-1")]);
        for (attributes, forged) in [
            (plain(), "system_identifier"),
            (plain(), "replay_id"),
            (plain(), "commit_lsn"),
            (plain(), "ce-id"),
            (plain(), "content-type"),
            (cloud(), "event_id"),
            (cloud(), "source"),
            (cloud(), "system_identifier"),
        ] {
            let attributes: BTreeMap<String, String> = attributes;
            let mut changed = attributes.clone();
            let error = replace(&mut changed, map(&[(forged, "forged")])).unwrap_err();
            assert!(error.report().contains(forged), "{}", error.report());
            assert_eq!(changed, attributes, "{forged}");
        }
        // An attribute that the message has stays, unless the file changes it.
        let mut kept = map(&[("event_id", "e-1"), ("ce-id", "a header")]);
        assert!(replace(&mut kept, map(&[("ce-id", "a header")])).is_ok());
        assert_eq!(kept["ce-id"], "a header");
    }

    #[test]
    fn what_is_too_long_with_the_key_follows_it_and_nothing_else_does() {
        let long = "k".repeat(2_000);
        let mut attributes =
            map(&[("aggregate_id", &long), ("event_type", "a"), ("tenant", &long)]);
        assert_eq!(
            replace_repeated_key(&mut attributes, KeyChange { before: &long, after: "short" }),
            ["aggregate_id"]
        );
        assert_eq!(attributes["aggregate_id"], "short");
        assert_eq!(attributes["tenant"], long, "a header is told, and not guessed");
        assert!(
            replace_repeated_key(&mut attributes, KeyChange { before: "short", after: "other" })
                .is_empty()
        );
    }
}
