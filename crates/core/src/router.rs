//! From an outbox row to a message: topic, ordering key, attributes, bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pgoutput_parser::{Column, Insert, Relation};

use crate::attributes::{Attributes, LogName, Style};
use crate::columns::{ColumnNames, Field, Layout, MissingColumn, PLACES, Part};
use crate::fault::{Fault, RouteError};
use crate::limits::{self, ORDERING_KEY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::message::{Message, Topic};
use crate::picked::Picked;
use crate::selection::Matching;
use crate::template::Template;
use crate::wire;

/// How rows become messages.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// The project topics live in, unless a topic is named in full.
    pub project: String,
    /// `--topic`.
    pub topic: Template,
    /// `--ordering-key`; an empty result means unordered.
    pub ordering_key: Template,
    /// `--column-…`.
    pub columns: ColumnNames,
    /// `--attributes`.
    pub style: Style,
    /// Marks messages of an explicit replay.
    pub replay_id: Option<String>,
    /// `--system-identifier`.
    pub log_name: LogName,
    /// Messages that `dispatch edit` has put in the place of their rows' own.
    pub edited: EditedMessages,
}

/// Messages that people have edited, by the event id of the row that each of them replaces. A copy shares them.
#[derive(Clone, Default)]
pub struct EditedMessages(Arc<BTreeMap<String, Vec<u8>>>);

impl EditedMessages {
    /// These, each an encoded `PubsubMessage`.
    #[must_use]
    pub fn new(messages: BTreeMap<String, Vec<u8>>) -> Self {
        Self(Arc::new(messages))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for EditedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No payload: a configuration may end up in a log.
        f.debug_struct("EditedMessages").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

/// Turns inserts into messages. One per connection.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    /// Resolved layouts of the relations described so far; there are as many as outbox tables.
    layouts: Vec<Layout>,
    /// Topics by what the template gave. Bounded: see [`Router::TOPICS_KEPT`].
    topics: BTreeMap<String, KnownTopic>,
    topic: String,
    ordering_key: String,
    attributes: Attributes,
}

/// A message, and what Pub/Sub would hold against it.
#[derive(Debug)]
pub struct Routed {
    /// The message as it would be published.
    pub message: Message,
    /// Why it never can be, if so.
    pub fault: Option<Fault>,
}

impl Router {
    /// Topics remembered; forgetting one only costs a lookup. Without a bound a template over a
    /// column of many values would grow for ever (I6).
    const TOPICS_KEPT: usize = 4_096;

    /// A router that knows no relation yet.
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

    /// Reads the log of this server from now on; messages say so where that was asked for.
    #[must_use]
    pub fn of_server(mut self, system_identifier: String) -> Self {
        if self.config.log_name == LogName::Told {
            self.attributes.tell_log_name(system_identifier);
        }
        self
    }

    /// A relation was described: its columns are looked up before its first row.
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

    /// The message of a row.
    ///
    /// # Errors
    ///
    /// The row cannot be read; nothing may be confirmed past it.
    pub fn route(&mut self, insert: &Insert<'_>) -> Result<Routed, RouteError> {
        let index = self.layout_of(insert.relation)?;
        if let Some(message) = self.edited(insert, index)? {
            return Ok(Routed { message, fault: None });
        }
        let layout = &self.layouts[index];
        let picked: [Option<Column<'_>>; PLACES] = insert.tuple.pick(&layout.places);
        let row = Picked { picked, layout, insert, names: &self.config.columns };

        expand(&layout.topic, &row, &mut self.topic)?;
        expand(&layout.ordering_key, &row, &mut self.ordering_key)?;
        let payload = row.payload()?;
        let fault = self.attributes.collect(&row)?;
        let given_id = row.text(Field::Id)?;
        let event_id = given_id.unwrap_or_default();

        let data_len = payload.len();
        let key_field = match self.ordering_key.len() {
            0 => 0,
            len => wire::field_len(len),
        };
        let data_field = if data_len == 0 { 0 } else { wire::field_len(data_len) };
        let attributes = self.attributes.encoded();
        let body_len = data_field + attributes.len() + key_field;
        let KnownTopic { topic, is_named } =
            topic_of(&mut self.topics, &self.config.project, &self.topic);
        let ordering_key = &self.ordering_key;
        let message = Message::build(topic, insert.position, event_id, body_len, |buffer| {
            if data_len > 0 {
                buffer.push(wire::MESSAGE_DATA);
                wire::put_varint(buffer, data_len);
                payload.append_to(buffer);
            }
            buffer.extend_from_slice(attributes);
            if ordering_key.is_empty() {
                return 0..0;
            }
            wire::put_field(buffer, wire::MESSAGE_ORDERING_KEY, ordering_key.as_bytes());
            buffer.len() - ordering_key.len()..buffer.len()
        });
        let fault = fault
            .or_else(|| fault_of_size(&message))
            .or_else(|| fault_of_key(ordering_key))
            .or_else(|| (!is_named).then(|| Fault::Topic { name: message.topic().to_string() }))
            .or_else(|| fault_of_id(given_id));
        Ok(Routed { message, fault })
    }

    /// The message that replaces the row's own. It was checked when it was edited.
    fn edited(&mut self, insert: &Insert<'_>, index: usize) -> Result<Option<Message>, RouteError> {
        let RouterConfig { edited, columns, project, .. } = &self.config;
        if edited.is_empty() {
            return Ok(None);
        }
        let layout = &self.layouts[index];
        let picked: [Option<Column<'_>>; PLACES] = insert.tuple.pick(&layout.places);
        let row = Picked { picked, layout, insert, names: columns };
        let event_id = row.text(Field::Id)?.unwrap_or_default();
        let Some(body) = edited.0.get(event_id) else { return Ok(None) };
        expand(&layout.topic, &row, &mut self.topic)?;
        let KnownTopic { topic, .. } = topic_of(&mut self.topics, project, &self.topic);
        Ok(Message::from_encoded(topic, insert.position, event_id, body).ok())
    }

    /// Whether a row has the values that a selection names.
    ///
    /// # Errors
    ///
    /// The row cannot be read.
    pub fn matches(
        &mut self,
        insert: &Insert<'_>,
        matching: &Matching,
    ) -> Result<bool, RouteError> {
        if matching.is_everything() {
            return Ok(true);
        }
        let index = self.layout_of(insert.relation)?;
        let layout = &self.layouts[index];
        let picked: [Option<Column<'_>>; PLACES] = insert.tuple.pick(&layout.places);
        let row = Picked { picked, layout, insert, names: &self.config.columns };
        Ok(matching.has(
            row.text(Field::AggregateType)?,
            row.text(Field::AggregateId)?,
            row.text(Field::EventType)?,
        ))
    }

    /// The event id of a row; empty if it has none.
    ///
    /// # Errors
    ///
    /// The row cannot be read; nothing may be confirmed past it.
    pub fn event_id<'a>(&'a mut self, insert: &'a Insert<'a>) -> Result<&'a str, RouteError> {
        let index = self.layout_of(insert.relation)?;
        let layout = &self.layouts[index];
        let picked = insert.tuple.pick(&layout.places);
        let row = Picked { picked, layout, insert, names: &self.config.columns };
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

/// A topic that rows go to.
#[derive(Debug, Clone)]
struct KnownTopic {
    topic: Topic,
    /// Whether Pub/Sub can have one of this name.
    is_named: bool,
}

fn topic_of(
    topics: &mut BTreeMap<String, KnownTopic>,
    project: &str,
    expanded: &str,
) -> KnownTopic {
    if let Some(known) = topics.get(expanded) {
        return known.clone();
    }
    if topics.len() >= Router::TOPICS_KEPT {
        topics.clear();
    }
    let topic: Topic = if expanded.starts_with("projects/") {
        expanded.into()
    } else {
        format!("projects/{project}/topics/{expanded}").into()
    };
    let known = KnownTopic { is_named: limits::is_topic_name(&topic), topic };
    topics.insert(expanded.to_owned(), known.clone());
    known
}

pub(crate) fn fault_of_size(message: &Message) -> Option<Fault> {
    let size = wire::field_len(message.topic().len()) + message.size();
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

fn expand(parts: &[Part], row: &Picked<'_>, out: &mut String) -> Result<(), RouteError> {
    out.clear();
    for part in parts {
        match part {
            Part::Literal(text) => out.push_str(text),
            Part::Place(place) => out.push_str(row.text_at(*place)?.unwrap_or_default()),
        }
    }
    Ok(())
}
