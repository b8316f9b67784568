//! Collects and encodes the attributes of a message.
//!
//! All attributes live in one reused buffer, so a row costs no allocation here.

use std::fmt::Write as _;

use pgoutput_parser::{Lsn, Position};
use walrelay_envelope::attribute::{self as name, cloudevents};
use walrelay_protobuf::{field_len, put_field, put_header};

use crate::fault::{Fault, RouteError};
use crate::limits::{ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX};
use crate::routing::attribute_columns::AttributeColumns;
use crate::routing::columns::{Field, PayloadType};
use crate::routing::headers::{members, text_of, unreadable};
use crate::routing::row_view::RowView;
use crate::routing::timestamp::rfc3339;
use crate::routing::wire;

/// The naming style of attributes, `--attributes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style {
    /// `event_id`, `event_type`, `aggregate_type` …
    Default,
    /// The CloudEvents binding of Pub/Sub, binary mode: `ce-id`, `ce-type` …
    CloudEvents {
        /// `ce-source`. If empty, the name of the table.
        source: String,
    },
}

/// Whether messages carry the system identifier of their server, `--system-identifier`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemIdentifierMode {
    /// Messages do not carry the identifier.
    Untold,
    /// Messages carry the identifier in the attribute `system_identifier`.
    Told,
}

#[derive(Debug)]
pub(crate) struct Attributes {
    style: Style,
    replay_id: Option<String>,
    /// The system identifier of the server whose positions these are, if messages carry it.
    system_identifier: Option<String>,
    position: PositionText,
    entries: Entries,
}

impl Attributes {
    pub(crate) fn new(style: Style, replay_id: Option<String>) -> Self {
        let (position, entries) = (PositionText::default(), Entries::default());
        Self { style, replay_id, system_identifier: None, position, entries }
    }

    /// Adds this system identifier to each message from now on.
    pub(crate) fn set_system_identifier(&mut self, system_identifier: String) {
        self.system_identifier = Some(system_identifier);
    }

    /// Collects the attributes of a row. Returns a fault if Pub/Sub would refuse them.
    pub(crate) fn collect(&mut self, row: &RowView<'_, '_>) -> Result<Option<Fault>, RouteError> {
        let Self { style, replay_id, system_identifier, position, entries } = self;
        entries.clear();
        match style {
            Style::Default => entries.add_default(row)?,
            Style::CloudEvents { source } => entries.add_cloud_events(row, source)?,
        }
        position.write(row.position());
        entries.add(name::COMMIT_LSN, &position.commit_lsn);
        entries.add(name::TX_INDEX, &position.tx_index);
        if let Some(replay_id) = replay_id {
            entries.add(name::REPLAY_ID, replay_id);
        }
        if let Some(system_identifier) = system_identifier {
            entries.add(name::SYSTEM_IDENTIFIER, system_identifier);
        }
        for (place, name) in &row.layout.attributes {
            if let Some(value) = row.text_at(*place)? {
                entries.add_header(name, value);
            }
        }
        let headers = match row.text(Field::Headers)? {
            Some(headers) => entries.add_headers(headers, &row.names.attributes),
            None => None,
        };
        Ok(headers.or_else(|| entries.fault()))
    }

    /// The number of headers that were dropped because only the relay writes attributes of that name.
    pub(crate) const fn headers_left_out(&self) -> usize {
        self.entries.headers_left_out
    }

    /// The attribute fields of a `PubsubMessage`.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.entries.encoded
    }
}

/// A position as text. The rows of a transaction share the commit LSN, which is formatted once.
#[derive(Debug, Default)]
struct PositionText {
    of: Option<Lsn>,
    commit_lsn: String,
    tx_index: String,
}

impl PositionText {
    fn write(&mut self, position: Position) {
        // Writing to a String cannot fail.
        if self.of.replace(position.commit_lsn) != Some(position.commit_lsn) {
            self.commit_lsn.clear();
            let _ok = write!(self.commit_lsn, "{}", position.commit_lsn);
        }
        self.tx_index.clear();
        let _ok = write!(self.tx_index, "{}", position.tx_index);
    }
}

/// Encoded attributes, one map entry each.
#[derive(Debug, Default)]
struct Entries {
    encoded: Vec<u8>,
    count: usize,
    /// The first attribute that is longer than Pub/Sub allows.
    too_long: Option<Fault>,
    /// The number of headers whose names only the relay writes.
    headers_left_out: usize,
}

impl Entries {
    fn clear(&mut self) {
        self.encoded.clear();
        self.count = 0;
        self.too_long = None;
        self.headers_left_out = 0;
    }

    fn add_default(&mut self, row: &RowView<'_, '_>) -> Result<(), RouteError> {
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

    fn add_cloud_events(&mut self, row: &RowView<'_, '_>, source: &str) -> Result<(), RouteError> {
        // CloudEvents 1.0, Pub/Sub protocol binding, binary mode.
        self.add(cloudevents::SPEC_VERSION, "1.0");
        // Fields without a CloudEvents name keep the default name, because a consumer orders by the
        // version.
        const NAMES: [(&str, Field); 6] = [
            (cloudevents::ID, Field::Id),
            (cloudevents::TYPE, Field::EventType),
            (cloudevents::SUBJECT, Field::AggregateId),
            (name::AGGREGATE_TYPE, Field::AggregateType),
            (name::VERSION, Field::Version),
            (name::SCHEMA_VERSION, Field::SchemaVersion),
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

    fn add_time(&mut self, key: &str, row: &RowView<'_, '_>) -> Result<(), RouteError> {
        let Some(value) = row.text(Field::OccurredAt)? else { return Ok(()) };
        match row.occurred_at_is_timestamp().then(|| rfc3339(value.as_bytes())).flatten() {
            Some(rfc) => self.add_bytes(key, &rfc),
            // A bigint of milliseconds or `infinity` is copied unchanged.
            None => self.add(key, value),
        }
        Ok(())
    }

    /// Adds every member of the headers object, except those with a reserved name or the name of a
    /// column's attribute. Such a name is dropped even if the relay does not write it. Otherwise a
    /// consumer would mistake the header's value for the relay's or the column's.
    fn add_headers(&mut self, json: &str, columns: &AttributeColumns) -> Option<Fault> {
        let members = match members(json) {
            Ok(members) => members,
            Err(error) => return Some(Fault::Headers(error)),
        };
        for (key, value) in members {
            if name::is_ours(&key) || columns.iter().any(|(_, attribute)| attribute == key) {
                self.headers_left_out += 1;
                continue;
            }
            if key.is_empty() {
                return Some(Fault::Headers("a header has no name".to_owned()));
            }
            if key.starts_with(name::RESERVED_PREFIX) {
                return Some(Fault::Headers(format!(
                    "header \"{key}\" cannot be an attribute: names starting with \"{}\" are reserved",
                    name::RESERVED_PREFIX
                )));
            }
            match text_of(value) {
                Ok(Some(text)) => self.add_header(&key, &text),
                Ok(None) => {}
                Err(error) => return Some(Fault::Headers(unreadable(&error))),
            }
        }
        None
    }

    fn add_header(&mut self, key: &str, value: &str) {
        self.add(key, value);
        if key == name::TRACEPARENT {
            // Google's client libraries read this name. The service ignores both names.
            self.add(name::GOOGCLIENT_TRACEPARENT, value);
        }
    }

    fn add(&mut self, key: &str, value: &str) {
        self.add_bytes(key, value.as_bytes());
    }

    /// Adds one attribute. `value` must be UTF-8.
    fn add_bytes(&mut self, key: &str, value: &[u8]) {
        if self.too_long.is_none() {
            self.too_long = fault_of_attribute(key, value.len());
        }
        self.count += 1;
        let content_len = field_len(key.len()) + field_len(value.len());
        put_header(&mut self.encoded, wire::MESSAGE_ATTRIBUTES, content_len);
        put_field(&mut self.encoded, wire::ENTRY_KEY, key.as_bytes());
        put_field(&mut self.encoded, wire::ENTRY_VALUE, value);
    }

    fn fault(&mut self) -> Option<Fault> {
        fault_of_count(self.count).or_else(|| self.too_long.take())
    }
}

/// The fault of a message with too many attributes.
pub(crate) fn fault_of_count(count: usize) -> Option<Fault> {
    (count > ATTRIBUTES_MAX).then(|| Fault::Limit {
        what: "the number of attributes".to_owned(),
        size: count,
        max: ATTRIBUTES_MAX,
    })
}

/// The fault of an attribute that is longer than Pub/Sub allows.
pub(crate) fn fault_of_attribute(key: &str, value_len: usize) -> Option<Fault> {
    let is_long = key.len() > ATTRIBUTE_KEY_BYTES_MAX || value_len > ATTRIBUTE_VALUE_BYTES_MAX;
    is_long.then(|| too_long(key, value_len))
}

#[cold]
fn too_long(key: &str, value_len: usize) -> Fault {
    if key.len() > ATTRIBUTE_KEY_BYTES_MAX {
        return Fault::Limit {
            what: "an attribute's name in bytes".to_owned(),
            size: key.len(),
            max: ATTRIBUTE_KEY_BYTES_MAX,
        };
    }
    Fault::Limit {
        what: format!("attribute \"{key}\" in bytes"),
        size: value_len,
        max: ATTRIBUTE_VALUE_BYTES_MAX,
    }
}
