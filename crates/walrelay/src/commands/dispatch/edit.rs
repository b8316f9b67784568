//! `dispatch edit`: another payload, other attributes, or a way for a row that never had one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message as _;
use walrelay_core::limits::{ORDERING_KEY_BYTES_MAX, is_topic_name};
use walrelay_postgres::{DispatchDetail, DispatchRoute, DispatchStore, SqlClient};

use super::show::decode;
use crate::config::DispatchEdit;
use crate::error::Error;
use crate::output::shortened;

/// Largest file taken as a payload: a message of Pub/Sub may have 10,000,000 bytes.
const FILE_BYTES_MAX: u64 = 10_000_000;

/// Characters of a topic or key in a sentence.
const SHOWN_CHARACTERS: usize = 64;

/// Changes the row and makes it due.
///
/// # Errors
///
/// A file cannot be used, the row is not there or published, or it has a topic or key that it keeps.
pub(super) async fn edit(
    store: &DispatchStore,
    client: &mut SqlClient,
    edit: &DispatchEdit,
) -> Result<String, Error> {
    let files = Files::read(edit.payload_file.as_ref(), edit.attributes_file.as_ref())?;
    let id = &edit.id;
    let detail = store.show(client, id).await?;
    let route = route(edit, &detail)?;
    let key = route.as_ref().map(|route| route.ordering_key.as_str());
    let message = files.put_into(&detail, key)?;
    match &route {
        None => store.edit(client, id, &message).await?,
        Some(route) => store.reroute(client, id, (&message, route)).await?,
    }
    Ok(format!("{id} is edited and due now\n"))
}

/// Where the row goes instead, when that was asked for. Only what was never valid may be changed: a row
/// that had its place in the order of a key keeps it.
fn route(edit: &DispatchEdit, detail: &DispatchDetail) -> Result<Option<DispatchRoute>, Error> {
    let row = &detail.row;
    if edit.topic.is_none() && edit.key.is_none() {
        return Ok(None);
    }
    let refused = |what: &str, value: &str| Error::Unfit {
        what: format!(
            "{} has a valid {what}, {:?}, which it keeps",
            row.event_id,
            shortened(value, SHOWN_CHARACTERS)
        ),
        hint: "only what was never valid can be changed; discard the row and write the event anew, in order",
    };
    let has_topic = is_topic_name(&row.topic);
    // The column holds no more of a key than an index takes; the message has the whole.
    let whole = decode(detail).map_or(0, |message| message.ordering_key.len());
    let has_key = whole.max(row.ordering_key.len()) <= ORDERING_KEY_BYTES_MAX;
    let topic = match &edit.topic {
        Some(topic) if has_topic && *topic != row.topic => {
            return Err(refused("topic", &row.topic));
        }
        Some(topic) if !is_topic_name(topic) => {
            return Err(Error::Unfit {
                what: format!("{topic:?} cannot name a topic"),
                hint: "3 to 255 letters, digits and -_.~+%, beginning with a letter and not with goog",
            });
        }
        Some(topic) => topic.clone(),
        None => row.topic.clone(),
    };
    let ordering_key = match &edit.key {
        // A row without a topic was in no order either, so it may have any key.
        Some(key) if has_key && has_topic && *key != row.ordering_key => {
            return Err(refused("ordering key", &row.ordering_key));
        }
        Some(key) if key.len() > ORDERING_KEY_BYTES_MAX => {
            return Err(Error::Unfit {
                what: format!("the ordering key has {} bytes", key.len()),
                hint: "Pub/Sub takes 1,024",
            });
        }
        Some(key) => key.clone(),
        None => row.ordering_key.clone(),
    };
    Ok(Some(DispatchRoute { topic, ordering_key }))
}

/// What `edit` puts into a message.
#[derive(Default)]
struct Files {
    payload: Option<Bytes>,
    attributes: Option<BTreeMap<String, String>>,
}

impl Files {
    fn read(payload: Option<&PathBuf>, attributes: Option<&PathBuf>) -> Result<Self, Error> {
        let attributes = match attributes {
            Some(path) => Some(read_attributes(path)?),
            None => None,
        };
        let payload = payload.map(|path| read(path)).transpose()?.map(Bytes::from);
        Ok(Self { payload, attributes })
    }

    /// The row's message with these parts replaced; its ordering key stays unless another is given.
    fn put_into(self, detail: &DispatchDetail, key: Option<&str>) -> Result<Vec<u8>, Error> {
        let mut message = decode(detail).ok_or_else(|| Error::Unfit {
            what: format!("the stored message of {} cannot be decoded", detail.row.event_id),
            hint: "discard the row and publish the event again",
        })?;
        if let Some(payload) = self.payload {
            message.data = payload;
        }
        if let Some(attributes) = self.attributes {
            message.attributes = attributes;
        }
        if let Some(key) = key {
            message.ordering_key = key.to_owned();
        }
        Ok(message.encode_to_vec())
    }
}

pub(in crate::commands) fn read_attributes(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    serde_json::from_slice(&read(path)?).map_err(|error| Error::Unfit {
        what: format!("{}: {error}", path.display()),
        hint: "write a JSON object whose values are all strings",
    })
}

pub(in crate::commands) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::File { path: path.display().to_string(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Error::Unfit {
            what: format!("{} has {bytes} bytes", path.display()),
            hint: "a message of Pub/Sub has at most 10,000,000",
        });
    }
    std::fs::read(path).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;

    use super::super::show::tests::detail;
    use super::*;

    fn asked(topic: Option<&str>, key: Option<&str>) -> DispatchEdit {
        DispatchEdit {
            id: "e-1".into(),
            payload_file: None,
            attributes_file: None,
            topic: topic.map(str::to_owned),
            key: key.map(str::to_owned),
        }
    }

    #[test]
    fn an_edit_replaces_what_was_given_and_keeps_the_rest() {
        let files = Files { payload: Some(Bytes::from_static(b"new")), attributes: None };
        let edited = files.put_into(&detail(b"old"), None).unwrap();
        let edited = PubsubMessage::decode(edited.as_slice()).unwrap();
        assert_eq!(edited.data.as_ref(), b"new");
        assert_eq!(edited.ordering_key, "order\n7");
        assert_eq!(edited.attributes["event_id"], "e-1");
        let keyed = Files::default().put_into(&detail(b"old"), Some("k")).unwrap();
        assert_eq!(PubsubMessage::decode(keyed.as_slice()).unwrap().ordering_key, "k");
    }

    #[test]
    fn topic_and_key_change_only_where_they_never_were_valid() {
        let good = "projects/p/topics/orders.events";
        let valid = detail(b"x");
        assert!(route(&asked(None, None), &valid).unwrap().is_none());
        assert!(route(&asked(Some(good), None), &valid).is_err(), "it has a topic");
        assert!(route(&asked(None, Some("other")), &valid).is_err(), "it has a key");

        let mut lost = detail(b"x");
        lost.row.topic = "projects/p/topics/not a topic".into();
        let routed = route(&asked(Some(good), Some("k")), &lost).unwrap().unwrap();
        assert_eq!((routed.topic.as_str(), routed.ordering_key.as_str()), (good, "k"));
        assert!(route(&asked(Some("projects/p/topics/a b"), None), &lost).is_err());

        // As it is recorded: the column holds the beginning, the message the whole.
        let mut long = detail(b"x");
        long.row.ordering_key = "k".repeat(1_024);
        let whole =
            PubsubMessage { ordering_key: "k".repeat(2_000), ..decode(&long).unwrap_or_default() };
        long.message = whole.encode_to_vec();
        let shortened = route(&asked(None, Some("k")), &long).unwrap().unwrap();
        assert_eq!(
            (shortened.topic, shortened.ordering_key.as_str()),
            (long.row.topic.clone(), "k")
        );
        assert!(route(&asked(None, Some(&"k".repeat(1_025))), &long).is_err());
    }
}
