//! The attributes of a message, gathered and encoded without a map.
//!
//! All of them live as text in one reused buffer, so a row costs no allocation here.

use std::fmt::Write as _;
use std::ops::Range;

use walrelay_envelope::attribute::{self as name, cloudevents};

use crate::columns::{Field, PayloadType};
use crate::fault::{Fault, RouteError};
use crate::limits::{ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX};
use crate::picked::Picked;
use crate::timestamp::rfc3339;
use crate::wire;

/// How a row's fields are named as attributes, `--attributes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style {
    /// `event_id`, `event_type`, `aggregate_type` …
    Default,
    /// The CloudEvents binding of Pub/Sub, binary mode: `ce-id`, `ce-type` …
    CloudEvents {
        /// `ce-source`; the table's name where empty.
        source: String,
    },
}

#[derive(Debug)]
pub(crate) struct Attributes {
    style: Style,
    replay_id: Option<String>,
    text: String,
    entries: Vec<Entry>,
}

/// A key and its value, as ranges of the text.
#[derive(Debug, Clone)]
struct Entry {
    key: Range<usize>,
    value: Range<usize>,
}

impl Entry {
    fn content_len(&self) -> usize {
        wire::field_len(self.key.len()) + wire::field_len(self.value.len())
    }
}

impl Attributes {
    pub(crate) fn new(style: Style, replay_id: Option<String>) -> Self {
        Self { style, replay_id, text: String::new(), entries: Vec::new() }
    }

    /// Gathers the attributes of a row; says what Pub/Sub would refuse about them.
    pub(crate) fn collect(&mut self, row: &Picked<'_>) -> Result<Option<Fault>, RouteError> {
        self.text.clear();
        self.entries.clear();
        match self.style.clone() {
            Style::Default => self.collect_default(row)?,
            Style::CloudEvents { source } => self.collect_cloud_events(row, &source)?,
        }
        let position = row.position();
        self.add_with(name::COMMIT_LSN, |text| {
            // Writing to a String cannot fail.
            let _ok = write!(text, "{}", position.commit_lsn);
        });
        self.add_with(name::TX_INDEX, |text| {
            let _ok = write!(text, "{}", position.tx_index);
        });
        if let Some(replay_id) = self.replay_id.clone() {
            self.add(name::REPLAY_ID, &replay_id);
        }
        let headers = match row.text(Field::Headers)? {
            Some(headers) => self.add_headers(headers),
            None => None,
        };
        Ok(headers.or_else(|| self.fault()))
    }

    fn collect_default(&mut self, row: &Picked<'_>) -> Result<(), RouteError> {
        const NAMES: [(&str, Field); 6] = [
            (name::EVENT_ID, Field::Id),
            (name::EVENT_TYPE, Field::EventType),
            (name::AGGREGATE_TYPE, Field::AggregateType),
            (name::AGGREGATE_ID, Field::AggregateId),
            (name::VERSION, Field::Version),
            (name::SCHEMA_VERSION, Field::SchemaVersion),
        ];
        for (key, field) in NAMES {
            if let Some(value) = row.text(field)? {
                self.add(key, value);
            }
        }
        self.add(name::SOURCE, row.table());
        self.add_time(name::OCCURRED_AT, row)
    }

    fn collect_cloud_events(&mut self, row: &Picked<'_>, source: &str) -> Result<(), RouteError> {
        // CloudEvents 1.0, Pub/Sub protocol binding, binary mode.
        self.add(cloudevents::SPEC_VERSION, "1.0");
        const NAMES: [(&str, Field); 3] = [
            (cloudevents::ID, Field::Id),
            (cloudevents::TYPE, Field::EventType),
            (cloudevents::SUBJECT, Field::AggregateId),
        ];
        for (key, field) in NAMES {
            if let Some(value) = row.text(field)? {
                self.add(key, value);
            }
        }
        self.add(cloudevents::SOURCE, if source.is_empty() { row.table() } else { source });
        self.add_time(cloudevents::TIME, row)?;
        self.add(
            cloudevents::CONTENT_TYPE,
            match row.payload_type() {
                PayloadType::Json => "application/json",
                PayloadType::Text => "text/plain; charset=utf-8",
                PayloadType::Bytea => "application/octet-stream",
            },
        );
        Ok(())
    }

    fn add_time(&mut self, key: &str, row: &Picked<'_>) -> Result<(), RouteError> {
        let Some(value) = row.text(Field::OccurredAt)? else { return Ok(()) };
        let rfc = row.occurred_at_is_timestamp().then(|| rfc3339(value.as_bytes())).flatten();
        match rfc.as_ref().map(|bytes| std::str::from_utf8(bytes)) {
            Some(Ok(text)) => self.add(key, text),
            // A bigint of milliseconds, `infinity`: as it is.
            Some(Err(_)) | None => self.add(key, value),
        }
        Ok(())
    }

    /// Every member of the headers object; ours keep their names.
    fn add_headers(&mut self, json: &str) -> Option<Fault> {
        let members = match serde_json::from_str(json) {
            Ok(serde_json::Value::Object(members)) => members,
            Ok(serde_json::Value::Null) => return None,
            _ => return Some(Fault::Headers("the headers column is not a JSON object".to_owned())),
        };
        for (key, value) in members {
            if self.has(&key) {
                continue;
            }
            if key.is_empty() || key.starts_with(name::RESERVED_PREFIX) {
                return Some(Fault::Headers(format!(
                    "header \"{key}\" cannot be an attribute: names starting with \"{}\" are reserved",
                    name::RESERVED_PREFIX
                )));
            }
            match value.as_str() {
                Some(text) => self.add_header(&key, text),
                None if value.is_null() => {}
                None => self.add_header(&key, &value.to_string()),
            }
        }
        None
    }

    fn add_header(&mut self, key: &str, value: &str) {
        self.add(key, value);
        if key == name::TRACEPARENT {
            // What Google's client libraries look for; the service ignores both.
            self.add(name::GOOGCLIENT_TRACEPARENT, value);
        }
    }

    fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| self.text[entry.key.clone()] == *key)
    }

    fn add(&mut self, key: &str, value: &str) {
        self.add_with(key, |text| text.push_str(value));
    }

    fn add_with(&mut self, key: &str, write_value: impl FnOnce(&mut String)) {
        let start = self.text.len();
        self.text.push_str(key);
        let middle = self.text.len();
        write_value(&mut self.text);
        self.entries.push(Entry { key: start..middle, value: middle..self.text.len() });
    }

    fn fault(&self) -> Option<Fault> {
        let limit = |what: String, size, max| Some(Fault::Limit { what, size, max });
        if self.entries.len() > ATTRIBUTES_MAX {
            return limit(
                "the number of attributes".to_owned(),
                self.entries.len(),
                ATTRIBUTES_MAX,
            );
        }
        self.entries.iter().find_map(|entry| {
            let (key, value) = (entry.key.len(), entry.value.len());
            if key > ATTRIBUTE_KEY_BYTES_MAX {
                return limit(
                    "an attribute's name in bytes".to_owned(),
                    key,
                    ATTRIBUTE_KEY_BYTES_MAX,
                );
            }
            let name = &self.text[entry.key.clone()];
            (value > ATTRIBUTE_VALUE_BYTES_MAX).then(|| Fault::Limit {
                what: format!("attribute \"{name}\" in bytes"),
                size: value,
                max: ATTRIBUTE_VALUE_BYTES_MAX,
            })
        })
    }

    pub(crate) fn encoded_len(&self) -> usize {
        self.entries.iter().map(|entry| wire::field_len(entry.content_len())).sum()
    }

    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>) {
        let text = self.text.as_bytes();
        for entry in &self.entries {
            buffer.push(wire::MESSAGE_ATTRIBUTES);
            wire::put_varint(buffer, entry.content_len());
            wire::put_field(buffer, wire::ENTRY_KEY, &text[entry.key.clone()]);
            wire::put_field(buffer, wire::ENTRY_VALUE, &text[entry.value.clone()]);
        }
    }
}
