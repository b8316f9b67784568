//! `dispatch edit`: replaces the payload, the attributes, or a topic or key that was never valid.

use std::collections::BTreeMap;

use bytes::Bytes;
use clap::{ArgGroup, Args};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;
use walrelay_core::limits::{ORDERING_KEY_BYTES_MAX, is_topic_name};
use walrelay_core::{IncompleteMessage, LimitViolation, Message, MessagePart};
use walrelay_outbox_store::{DispatchDetail, NewDestination};
use walrelay_pg_client::{SqlClient, TableAccess};

use super::message::decode;
use super::rows::{DispatchRows, full_topic, in_session};
use crate::commands::failed_events::attributes::{KeyChange, replace, replace_repeated_key};
use crate::commands::failed_events::files::{read, read_attributes};
use crate::commands::failed_events::{Edited, options_of_edit, whole_id};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{ChangeMode, Checks};
use crate::error::Error;
use crate::options::values::event_id;
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions, EditFiles, ProjectOption};
use crate::output::text::shortened;
use crate::plan::Plan;

/// Most characters of a topic or key that an error message shows.
const SHOWN_CHARACTERS: usize = 64;

/// Replace payload, attributes, or an invalid topic or key, and retry the row.
///
/// Payload and attributes come from files.
///
/// What comes of it is held to Pub/Sub's limits first. The attributes that the relay writes stay: event_id,
/// source, commit_lsn, tx_index and replay_id always, because consumers tell events apart by them;
/// aggregate_id, aggregate_type, event_type, version, schema_version and occurred_at unless the file has
/// another value for them. All others are replaced by those of the file.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
    walrelay dispatch edit 6f1c9a9e-… --payload-file fixed.json\n  \
    walrelay dispatch edit 6f1c9a9e-… --set-key A-17\n  \
    walrelay dispatch edit 6f1c9a9e-… --attributes-file headers.json",
    group(
        ArgGroup::new("new")
            .args(["payload_file", "attributes_file", "set_topic", "set_key"])
            .required(true)
            .multiple(true)
    )
)]
pub(crate) struct Edit {
    /// Event id of the row.
    #[arg(value_name = "ID", value_parser = event_id)]
    id: String,
    #[command(flatten)]
    files: EditFiles,
    #[command(flatten)]
    change: ChangeArgs,
    /// Another topic, short or full name, for a row whose topic cannot exist.
    #[arg(long, value_name = "TOPIC")]
    set_topic: Option<String>,
    /// Another ordering key, for a row whose topic cannot exist or whose key is too long; an attribute that
    /// is too long because it has the same value gets it too.
    #[arg(long, value_name = "KEY")]
    set_key: Option<String>,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

/// Where an edit sends the row. None stays as it is.
struct NewRoute {
    /// Full name of the topic.
    topic: Option<String>,
    key: Option<String>,
}

impl Edit {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let topic = self.set_topic.as_deref();
        let topic = topic.map(|it| full_topic(checks, "set-topic", it, &self.project));
        let wanted = NewRoute { topic, key: self.set_key.clone() };
        let database = checks.database(&self.database)?;
        let options = options_of_edit(&self.change);
        Some(Plan::new(async move |shutdown| {
            in_session(&database, TableAccess::Update, shutdown, async |rows, client| {
                let edited = self.edit(rows, client, &wanted, options.mode);
                run_until_shutdown(edited, shutdown).await?.output(options)
            })
            .await
        }))
    }

    /// Checks an edit, changes the row and makes it due. A dry run only checks.
    ///
    /// # Errors
    ///
    /// A file cannot be read, the row does not exist or is published, or its topic or key is valid and
    /// stays. Or Pub/Sub would refuse the edited message.
    async fn edit(
        &self,
        rows: &DispatchRows,
        client: &mut SqlClient,
        wanted: &NewRoute,
        mode: ChangeMode,
    ) -> Result<Edited, Error> {
        let files = Files::read(&self.files)?;
        let store = &rows.store;
        let id = &whole_id(rows, client, &self.id).await?;
        let detail = store.show(client, id).await?;
        let route = route(wanted, &detail)?;
        let EditedMessage { message, changed } = files.apply_to(&detail, route.as_ref())?;
        match (mode, &route) {
            (ChangeMode::DryRun, _) => {}
            (ChangeMode::Ask | ChangeMode::Agreed, None) => {
                store.edit(client, id, &message).await?;
            }
            (ChangeMode::Ask | ChangeMode::Agreed, Some(route)) => {
                store.reroute(client, id, &message, route).await?;
            }
        }
        Ok(Edited { id: id.clone(), described: changed })
    }
}

/// Refuses a message that Pub/Sub would refuse: the row would be dead again at once, and its key
/// would continue without it.
fn refuse_over_limit(detail: &DispatchDetail, topic: &str, body: &[u8]) -> Result<(), Error> {
    let row = &detail.row;
    let message = Message::from_encoded(topic.into(), row.position, &row.event_id, body);
    let message = message.map_err(|_| undecodable(detail))?;
    let Some(LimitViolation { part, fault }) = LimitViolation::of(&message) else { return Ok(()) };
    Err(Error::unfit(
        format!("{} would be dead again, and is left as it is: {fault}", row.event_id),
        match part {
            MessagePart::Topic => "give it another topic as well: --set-topic order.events",
            MessagePart::OrderingKey => "give it a shorter key as well: --set-key A-17",
            MessagePart::Attributes => {
                "give it shorter or fewer ones: --attributes-file takes a JSON object of those that it keeps and of what is \
                 to be corrected; `walrelay dispatch show ID --output json` has all it has now"
            }
            MessagePart::Payload => "give it another payload as well: --payload-file fixed.json",
        },
    ))
}

fn undecodable(detail: &DispatchDetail) -> Error {
    Error::unfit(
        format!("the stored message of {} cannot be decoded", detail.row.event_id),
        "discard the row and publish the event again",
    )
}

/// Hint for a row that keeps its valid ordering key.
const KEPT: &str =
    "only an invalid value can be changed; discard the row and emit the event again, in order";

/// Hint for a row that keeps its topic, which may only be missing.
const KEPT_TOPIC: &str = "create that topic, and the row is published; if the name is a mistake, fix its cause, discard the row and emit \
     the event again, in order";

/// Returns the row's new topic and key, if the edit asks for one. Only invalid values may change: a
/// row that has a place in the order of a key keeps it.
fn route(wanted: &NewRoute, detail: &DispatchDetail) -> Result<Option<NewDestination>, Error> {
    let row = &detail.row;
    if wanted.topic.is_none() && wanted.key.is_none() {
        return Ok(None);
    }
    let refused = |what: &str, value: &str, hint| {
        Error::unfit(
            format!(
                "{} has a valid {what}, {:?}, which it keeps",
                row.event_id,
                shortened(value, SHOWN_CHARACTERS)
            ),
            hint,
        )
    };
    let has_topic = is_topic_name(&row.topic);
    // The column holds at most as much of a key as an index accepts. The message holds the whole
    // key.
    let whole = match IncompleteMessage::of(&detail.message)
        .and_then(|incomplete| incomplete.lacks(MessagePart::OrderingKey))
    {
        Some(bytes) => bytes,
        None => decode(detail).map_or(0, |message| message.ordering_key.len()),
    };
    let has_key = whole.max(row.ordering_key.len()) <= ORDERING_KEY_BYTES_MAX;
    let topic = match &wanted.topic {
        Some(topic) if has_topic && *topic != row.topic => {
            return Err(refused("topic", &row.topic, KEPT_TOPIC));
        }
        Some(topic) if !is_topic_name(topic) => {
            return Err(Error::unfit(
                format!("{topic:?} cannot name a topic"),
                "3 to 255 letters, digits and -_.~+%, beginning with a letter and not with goog",
            ));
        }
        Some(topic) => topic.clone(),
        None => row.topic.clone(),
    };
    let ordering_key = match &wanted.key {
        // A row without a valid topic was never in any order, so it may get any key.
        Some(key) if has_key && has_topic && *key != row.ordering_key => {
            return Err(refused("ordering key", &row.ordering_key, KEPT));
        }
        Some(key) if key.len() > ORDERING_KEY_BYTES_MAX => {
            return Err(Error::unfit(
                format!("the ordering key has {} bytes", key.len()),
                "Pub/Sub takes 1,024",
            ));
        }
        Some(key) => key.clone(),
        // The column holds only the beginning of the key, which would be another key.
        None if !has_key => {
            return Err(Error::unfit(
                format!(
                    "{} would be dead again, and is left as it is: the ordering key has {whole} bytes",
                    row.event_id
                ),
                "give it a shorter key as well: --set-key A-17",
            ));
        }
        None => row.ordering_key.clone(),
    };
    Ok(Some(NewDestination { topic, ordering_key }))
}

/// The replacements that `edit` puts into a message.
#[derive(Default)]
struct Files {
    payload: Option<Bytes>,
    attributes: Option<BTreeMap<String, String>>,
}

#[derive(Debug)]
struct EditedMessage {
    message: Vec<u8>,
    /// The relay's own attributes that changed.
    changed: Vec<String>,
}

impl Files {
    fn read(EditFiles { payload_file, attributes_file }: &EditFiles) -> Result<Self, Error> {
        let attributes = attributes_file.as_ref().map(|path| read_attributes(path)).transpose()?;
        let payload = payload_file.as_ref().map(|path| read(path)).transpose()?.map(Bytes::from);
        Ok(Self { payload, attributes })
    }

    /// Refuses to publish a message whose missing part the edit does not supply. Such a part was
    /// too large to be recorded.
    fn refuse_missing_part(
        &self,
        detail: &DispatchDetail,
        route: Option<&NewDestination>,
    ) -> Result<(), Error> {
        let Some(incomplete) = IncompleteMessage::of(&detail.message) else { return Ok(()) };
        let lacking = incomplete.lacks.iter().find(|(part, _)| match part {
            MessagePart::Payload => self.payload.is_none(),
            MessagePart::Attributes => self.attributes.is_none(),
            MessagePart::OrderingKey | MessagePart::Topic => route.is_none(),
        });
        let Some((part, bytes)) = lacking else { return Ok(()) };
        let (what, hint) = match part {
            MessagePart::Payload => {
                ("payload", "give it a payload that fits: --payload-file fixed.json")
            }
            MessagePart::Attributes => (
                "attributes",
                "give it what is missing: --attributes-file takes a JSON object of strings; `walrelay dispatch show ID` \
                 names the column",
            ),
            MessagePart::OrderingKey => ("ordering key", "give it a key as well: --set-key A-17"),
            MessagePart::Topic => ("topic", "give it a topic as well: --set-topic order.events"),
        };
        let id = &detail.row.event_id;
        let what = format!("{id} was recorded without its {what} of {bytes} bytes");
        Err(Error::unfit(what, hint))
    }

    /// Returns the row's message with these parts replaced. Its ordering key stays unless `route`
    /// has another.
    fn apply_to(
        self,
        detail: &DispatchDetail,
        route: Option<&NewDestination>,
    ) -> Result<EditedMessage, Error> {
        let mut message: PubsubMessage = decode(detail).ok_or_else(|| undecodable(detail))?;
        self.refuse_missing_part(detail, route)?;
        if detail.row.lacks_headers() && self.attributes.is_none() {
            return Err(Error::unfit(
                format!(
                    "{} was recorded without its headers, which could not be read",
                    detail.row.event_id
                ),
                "give it headers with --attributes-file; a file with {} in it publishes it without any",
            ));
        }
        if let Some(payload) = self.payload {
            message.data = payload;
        }
        let mut changed = match self.attributes {
            Some(given) => replace(&mut message.attributes, given)?,
            None => Vec::new(),
        };
        if let Some(NewDestination { ordering_key, .. }) = route {
            let before = std::mem::replace(&mut message.ordering_key, ordering_key.clone());
            changed.extend(replace_repeated_key(
                &mut message.attributes,
                KeyChange { before: &before, after: ordering_key },
            ));
        }
        let topic = route.map_or(&detail.row.topic, |route| &route.topic);
        let message = message.encode_to_vec();
        refuse_over_limit(detail, topic, &message)?;
        Ok(EditedMessage { message, changed })
    }
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;

    use super::super::message::tests::{detail, detail_without_payload};
    use super::*;

    fn asked(topic: Option<&str>, key: Option<&str>) -> NewRoute {
        NewRoute { topic: topic.map(str::to_owned), key: key.map(str::to_owned) }
    }

    fn edited(files: Files, detail: &DispatchDetail, key: Option<&str>) -> PubsubMessage {
        let route = key.map(|key| NewDestination {
            topic: detail.row.topic.clone(),
            ordering_key: key.to_owned(),
        });
        let edited = files.apply_to(detail, route.as_ref()).unwrap();
        PubsubMessage::decode(edited.message.as_slice()).unwrap()
    }

    #[test]
    fn an_edit_replaces_what_was_given_and_keeps_the_rest() {
        let files = Files { payload: Some(Bytes::from_static(b"new")), attributes: None };
        let new = edited(files, &detail(b"old"), None);
        assert_eq!(new.data.as_ref(), b"new");
        assert_eq!(new.ordering_key, "order\n7");
        assert_eq!(new.attributes["event_id"], "e-1");
        assert_eq!(edited(Files::default(), &detail(b"old"), Some("k")).ordering_key, "k");
    }

    /// A row as the default settings record it: its aggregate id is its key.
    fn with_long_key(attributes: &[(&str, &str)]) -> DispatchDetail {
        let mut row = detail(b"x");
        let mut message = decode(&row).unwrap();
        message.ordering_key = "k".repeat(2_000);
        let long = [("aggregate_id", message.ordering_key.as_str())];
        let all = long.iter().chain(attributes);
        message.attributes.extend(all.map(|(name, value)| ((*name).into(), (*value).into())));
        row.row.ordering_key = "k".repeat(1_024);
        row.message = message.encode_to_vec();
        row
    }

    #[test]
    fn a_key_that_was_too_long_is_mended_with_the_attribute_that_holds_it() {
        let row = with_long_key(&[("tenant", "a")]);
        let mended = edited(Files::default(), &row, Some("A-17"));
        assert_eq!(mended.ordering_key, "A-17");
        assert_eq!(mended.attributes["aggregate_id"], "A-17");
        assert_eq!(mended.attributes["event_id"], "e-1");
        assert_eq!(mended.attributes["tenant"], "a");
    }

    #[test]
    fn an_edit_that_pubsub_would_refuse_is_refused_with_the_cause_and_what_helps() {
        let long = "t".repeat(2_000);
        let refused = |files: Files, row: &DispatchDetail, key: Option<&str>| {
            let topic = row.row.topic.clone();
            let route = key.map(|key| NewDestination { topic, ordering_key: key.to_owned() });
            files.apply_to(row, route.as_ref()).unwrap_err().report()
        };
        let payload = || Files { payload: Some(Bytes::from_static(b"new")), attributes: None };
        let mut lost = detail(b"x");
        lost.row.topic = "projects/p/topics/not a topic".into();
        let large = Files { payload: Some(vec![b'x'; 10_000_000].into()), attributes: None };
        for (told, cause, recipe) in [
            (
                refused(payload(), &with_long_key(&[]), None),
                "the ordering key in bytes is 2000",
                "--set-key",
            ),
            (
                refused(payload(), &with_long_key(&[("tenant", &long)]), Some("k")),
                "attribute \"tenant\" in bytes is 2000",
                "--attributes-file",
            ),
            (refused(payload(), &lost, None), "is no topic name", "--set-topic"),
            (refused(Files::default(), &lost, Some("k")), "is no topic name", "--set-topic"),
            (refused(large, &detail(b"x"), None), "the message in bytes", "--payload-file"),
        ] {
            assert!(told.contains(cause) && told.contains(recipe), "{told}");
        }
    }

    #[test]
    fn a_row_that_lacks_its_headers_is_edited_with_headers_only() {
        let mut row = detail(b"x");
        row.row.error_code = Some("BAD_HEADERS".into());
        let told = Files::default().apply_to(&row, None).unwrap_err().report();
        assert!(
            told.contains("without its headers") && told.contains("--attributes-file"),
            "{told}"
        );
        let given = Files { payload: None, attributes: Some(BTreeMap::new()) };
        assert_eq!(edited(given, &row, None).attributes["event_id"], "e-1");
    }

    #[test]
    fn a_row_that_lacks_its_payload_is_published_with_one_that_fits_and_not_without() {
        let row = detail_without_payload();
        let told = Files::default().apply_to(&row, None).unwrap_err().report();
        assert!(told.contains("without its payload of 140000000 bytes"), "{told}");
        assert!(told.contains("--payload-file"), "{told}");
        let files = || Files { payload: Some(Bytes::from_static(b"small")), attributes: None };
        let new = edited(files(), &row, None);
        assert_eq!((new.data.as_ref(), new.ordering_key.as_str()), (&b"small"[..], "order\n7"));
        assert_eq!(new.attributes["event_id"], "e-1");
        // Field 5 with a length of 70,000 bytes: the key is missing also.
        let mut keyless = detail_without_payload();
        let at = keyless.message.len() - 5;
        keyless.message.splice(at..at, [0x2A, 0xF0, 0xA2, 0x04]);
        let keyless_told = files().apply_to(&keyless, None).unwrap_err().report();
        assert!(keyless_told.contains("without its ordering key of 70000 bytes"), "{keyless_told}");
        assert!(route(&asked(None, Some("k")), &keyless).unwrap().is_some());
        assert_eq!(edited(files(), &keyless, Some("k")).ordering_key, "k");
    }

    #[test]
    fn topic_and_key_change_only_where_they_never_were_valid() {
        let good = "projects/p/topics/orders.events";
        let valid = detail(b"x");
        assert!(route(&asked(None, None), &valid).unwrap().is_none());
        assert!(route(&asked(Some(good), None), &valid).is_err(), "it has a topic");
        assert!(route(&asked(None, Some("other")), &valid).is_err(), "it has a key");
        let wrong = route(&asked(Some("projects/p/topics/other"), None), &valid).unwrap_err();
        assert!(wrong.report().contains("create that topic"), "{}", wrong.report());

        let mut lost = detail(b"x");
        lost.row.topic = "projects/p/topics/not a topic".into();
        let routed = route(&asked(Some(good), Some("k")), &lost).unwrap().unwrap();
        assert_eq!((routed.topic.as_str(), routed.ordering_key.as_str()), (good, "k"));
        assert!(route(&asked(Some("projects/p/topics/a b"), None), &lost).is_err());

        let mut both = with_long_key(&[]);
        both.row.topic.clone_from(&lost.row.topic);
        let cut = route(&asked(Some(good), None), &both).unwrap_err().report();
        assert!(
            cut.contains("the ordering key has 2000 bytes") && cut.contains("--set-key"),
            "{cut}"
        );
        assert!(route(&asked(Some(good), Some("k")), &both).is_ok());

        // As the relay records the row: the column holds the beginning of the key, the message the
        // whole.
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
