//! Turns an outbox row into a message: topic, ordering key, attributes, bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pgoutput_parser::{Insert, Relation};
use walrelay_protobuf::{field_len, put_field, put_header};

use crate::fault::{Fault, RouteError};
use crate::limits::{self, ORDERING_KEY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::message::{Message, Topic};
use crate::routing::attributes::{Attributes, Style, SystemIdentifierMode};
use crate::routing::columns::{ColumnNames, Field, Layout, MissingColumn, Part};
use crate::routing::omitted_parts::LeftOut;
use crate::routing::row_view::{Payload, RowView};
use crate::routing::template::Template;
use crate::routing::wire;
use crate::selection::ColumnFilter;

/// The settings that turn rows into messages.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// The project of every topic, unless the template names one.
    pub project: String,
    /// `--topic-template`.
    pub topic: Template,
    /// `--ordering-key`. An empty result means unordered.
    pub ordering_key: Template,
    /// `--column-…`.
    pub columns: ColumnNames,
    /// `--attributes`.
    pub style: Style,
    /// The mark on every message of an explicit replay.
    pub replay_id: Option<String>,
    /// `--system-identifier`.
    pub log_name: SystemIdentifierMode,
    /// The messages that `dispatch edit` has substituted for rows.
    pub edited: EditedMessages,
}

/// Messages that operators have edited, by the event id of the row. Clones share the map.
#[derive(Clone, Default)]
pub struct EditedMessages(Arc<BTreeMap<String, Vec<u8>>>);

impl EditedMessages {
    /// Takes edited messages by event id, each an encoded `PubsubMessage`.
    #[must_use]
    pub fn new(messages: BTreeMap<String, Vec<u8>>) -> Self {
        Self(Arc::new(messages))
    }

    /// The number of edited messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no edited message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for EditedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits payloads, because a configuration may be logged.
        f.debug_struct("EditedMessages").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

/// Turns inserts into messages. One router serves one connection.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    /// The resolved layouts of the relations described so far, one per outbox table.
    layouts: Vec<Layout>,
    /// Topics by expanded template text. [`Router::TOPICS_KEPT`] bounds the map.
    topics: BTreeMap<String, KnownTopic>,
    topic: String,
    ordering_key: String,
    attributes: Attributes,
}

/// A message, and the reason for which Pub/Sub would refuse it.
#[derive(Debug)]
pub struct Routed<'a> {
    /// The message as it would be published.
    pub message: Message,
    /// The reason why the message can never be published, if there is one.
    pub fault: Option<Fault>,
    /// Headers that were dropped because only the relay writes attributes of that name.
    pub headers_left_out: usize,
    /// The event type of the row, empty if the row has none.
    pub event_type: &'a str,
}

impl Router {
    /// The number of cached topics. Evicting a topic only costs a lookup. Without a bound, a
    /// template over a column of many values would grow the cache without limit (I6).
    const TOPICS_KEPT: usize = 4_096;

    /// Creates a router that knows no relation yet.
    #[must_use]
    pub fn new(config: RouterConfig) -> Self {
        Self {
            attributes: Attributes::new(config.style.clone(), config.replay_id.clone()),
            config,
            layouts: Vec::new(),
            topics: BTreeMap::new(),
            topic: String::new(),
            ordering_key: String::new(),
        }
    }

    /// Sets the server whose WAL is read from now on. With [`SystemIdentifierMode::Told`], messages carry its
    /// system identifier.
    #[must_use]
    pub fn of_server(mut self, system_identifier: String) -> Self {
        if self.config.log_name == SystemIdentifierMode::Told {
            self.attributes.set_system_identifier(system_identifier);
        }
        self
    }

    /// Learns a relation: finds its columns before its first row arrives.
    ///
    /// # Errors
    ///
    /// The table lacks a column that the configuration names.
    pub fn learn(&mut self, relation: &Relation) -> Result<(), MissingColumn> {
        let RouterConfig { columns, topic, ordering_key, .. } = &self.config;
        let layout = Layout::resolve(relation, columns, topic, ordering_key)?;
        match self.layouts.iter_mut().find(|known| known.relation_id == relation.id) {
            Some(known) => *known = layout,
            None => self.layouts.push(layout),
        }
        Ok(())
    }

    /// Builds the message of a row.
    ///
    /// # Errors
    ///
    /// The row cannot be read. Nothing may be confirmed past it.
    pub fn route<'a>(&mut self, insert: &'a Insert<'a>) -> Result<Routed<'a>, RouteError> {
        let index = self.layout_of(insert.relation)?;
        let edited = self.edited(insert, index)?;
        let layout = &self.layouts[index];
        let row = RowView::of(insert, layout, &self.config.columns);
        let event_type = row.text(Field::EventType)?.unwrap_or_default();
        if let Some(message) = edited {
            return Ok(Routed { message, fault: None, headers_left_out: 0, event_type });
        }

        let mut left_out = LeftOut::of(&row);
        expand(&layout.topic, &row, &mut self.topic)?;
        expand(&layout.ordering_key, &row, &mut self.ordering_key)?;
        if left_out.lacks_topic() {
            self.topic.clear();
        }
        if left_out.lacks_ordering_key() {
            self.ordering_key.clear();
        }
        let payload = row.payload()?;
        let fault = self.attributes.collect(&row)?;
        let given_id = row.text(Field::Id)?;
        let KnownTopic { topic, is_named } = topic_of(&mut self.topics, &self.config, &self.topic);
        let ordering_key = &self.ordering_key;
        let mut parts =
            MessageParts { payload, attributes: self.attributes.encoded(), ordering_key };
        let size = field_len(topic.len()) + field_len(parts.encoded_len());
        if size > REQUEST_BYTES_MAX && parts.payload.len() > 0 {
            left_out.add_payload(parts.payload.len(), layout.table.as_str(), size);
            parts.payload = Payload::NONE;
        }
        let event_id = given_id.unwrap_or_default();
        let body_len = parts.encoded_len() + left_out.encoded_len();
        let message = Message::build(topic, insert.position, event_id, body_len, |buffer| {
            let key_range = parts.append_to(buffer);
            left_out.append_to(buffer);
            key_range
        });
        let fault = left_out
            .take_fault()
            .or(fault)
            .or_else(|| fault_of_size(&message))
            .or_else(|| fault_of_key(ordering_key))
            .or_else(|| (!is_named).then(|| Fault::Topic { name: message.topic().to_string() }))
            .or_else(|| fault_of_id(given_id));
        let headers_left_out = self.attributes.headers_left_out();
        Ok(Routed { message, fault, headers_left_out, event_type })
    }

    /// The edited message that replaces the row's own message. `dispatch edit` has already checked
    /// it.
    fn edited(&mut self, insert: &Insert<'_>, index: usize) -> Result<Option<Message>, RouteError> {
        let RouterConfig { edited, columns, .. } = &self.config;
        if edited.is_empty() {
            return Ok(None);
        }
        let layout = &self.layouts[index];
        let row = RowView::of(insert, layout, columns);
        let event_id = row.text(Field::Id)?.unwrap_or_default();
        let Some(body) = edited.0.get(event_id) else { return Ok(None) };
        expand(&layout.topic, &row, &mut self.topic)?;
        let KnownTopic { topic, .. } = topic_of(&mut self.topics, &self.config, &self.topic);
        Ok(Message::from_encoded(topic, insert.position, event_id, body).ok())
    }

    /// Whether the row has the values that a selection names.
    pub fn matches(
        &mut self,
        insert: &Insert<'_>,
        matching: &ColumnFilter,
    ) -> Result<bool, RouteError> {
        if matching.is_everything() {
            return Ok(true);
        }
        let index = self.layout_of(insert.relation)?;
        let layout = &self.layouts[index];
        let row = RowView::of(insert, layout, &self.config.columns);
        Ok(matching.has(
            row.text(Field::AggregateType)?,
            row.text(Field::AggregateId)?,
            row.text(Field::EventType)?,
        ))
    }

    /// The event id of a row, empty if the row has none.
    ///
    /// # Errors
    ///
    /// The row cannot be read. Nothing may be confirmed past it.
    pub fn event_id<'a>(&'a mut self, insert: &'a Insert<'a>) -> Result<&'a str, RouteError> {
        let index = self.layout_of(insert.relation)?;
        let layout = &self.layouts[index];
        let row = RowView::of(insert, layout, &self.config.columns);
        Ok(row.text(Field::Id)?.unwrap_or_default())
    }

    fn layout_of(&mut self, relation: &Relation) -> Result<usize, RouteError> {
        let known = |layout: &Layout| {
            layout.relation_id == relation.id && layout.generation == relation.generation
        };
        if let Some(index) = self.layouts.iter().position(known) {
            return Ok(index);
        }
        self.learn(relation)?;
        Ok(self.layouts.iter().position(known).unwrap_or_default())
    }
}

/// The parts of a message before encoding.
struct MessageParts<'a> {
    payload: Payload<'a>,
    /// The encoded attribute fields.
    attributes: &'a [u8],
    ordering_key: &'a str,
}

impl MessageParts<'_> {
    fn encoded_len(&self) -> usize {
        let field = |len: usize| if len == 0 { 0 } else { field_len(len) };
        field(self.payload.len()) + self.attributes.len() + field(self.ordering_key.len())
    }

    /// Appends the message and returns the range of its ordering key in the buffer.
    fn append_to(&self, buffer: &mut Vec<u8>) -> Range<usize> {
        if self.payload.len() > 0 {
            put_header(buffer, wire::MESSAGE_DATA, self.payload.len());
            self.payload.append_to(buffer);
        }
        buffer.extend_from_slice(self.attributes);
        if self.ordering_key.is_empty() {
            return 0..0;
        }
        put_field(buffer, wire::MESSAGE_ORDERING_KEY, self.ordering_key.as_bytes());
        buffer.len() - self.ordering_key.len()..buffer.len()
    }
}

#[derive(Debug, Clone)]
struct KnownTopic {
    topic: Topic,
    /// Whether Pub/Sub accepts the name.
    is_named: bool,
}

/// Longer topic texts are not cached. No topic has such a name, but a row may hold any text.
const TOPIC_BYTES_KEPT: usize = 1_024;

fn topic_of(
    topics: &mut BTreeMap<String, KnownTopic>,
    config: &RouterConfig,
    expanded: &str,
) -> KnownTopic {
    if let Some(known) = topics.get(expanded) {
        return known.clone();
    }
    let topic: Topic = config.topic.full_topic_name(&config.project, expanded).into();
    let known = KnownTopic { is_named: limits::is_topic_name(&topic), topic };
    // An invalid name may be as long as a row, so it is not cached.
    if !known.is_named {
        return known;
    }
    if expanded.len() > TOPIC_BYTES_KEPT {
        return known;
    }
    if topics.len() >= Router::TOPICS_KEPT {
        topics.clear();
    }
    topics.insert(expanded.to_owned(), known.clone());
    known
}

pub(crate) fn fault_of_size(message: &Message) -> Option<Fault> {
    let size = field_len(message.topic().len()) + message.size();
    limit("the message in bytes", size, REQUEST_BYTES_MAX)
}

pub(crate) fn fault_of_key(ordering_key: &str) -> Option<Fault> {
    limit("the ordering key in bytes", ordering_key.len(), ORDERING_KEY_BYTES_MAX)
}

fn limit(what: &str, size: usize, max: usize) -> Option<Fault> {
    (size > max).then(|| Fault::Limit { what: what.to_owned(), size, max })
}

fn fault_of_id(event_id: Option<&str>) -> Option<Fault> {
    match event_id {
        None => Some(Fault::NoId),
        Some("") => Some(Fault::EmptyId),
        Some(_) => None,
    }
}

fn expand(parts: &[Part], row: &RowView<'_, '_>, out: &mut String) -> Result<(), RouteError> {
    out.clear();
    for part in parts {
        match part {
            Part::Literal(text) => out.push_str(text),
            Part::Place(place) => out.push_str(row.text_at(*place)?.unwrap_or_default()),
        }
    }
    Ok(())
}
