//! Maps the columns of an outbox table to fields.
//!
//! Columns are found by name in the latest Relation message. An `ALTER TABLE` during streaming
//! therefore only changes their indexes.

use std::fmt;

use pgoutput_parser::{Generation, Relation};

use crate::routing::attribute_columns::{ATTRIBUTE_COLUMNS_MAX, AttributeColumns};
use crate::routing::template::{TEMPLATE_COLUMNS_MAX, Template};

/// The names that the column of a field may have, in lookup order.
///
/// A column has several names while it is being renamed. Rows written before and after the rename
/// have their own Relation messages, and each message contains the name of its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnAliases(Vec<String>);

impl ColumnAliases {
    /// Parses `version` or `version,ver`. Ignores spaces around a name and empty names.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self(names.map(str::to_owned).collect())
    }

    /// Iterates over the names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for ColumnAliases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// The column names of the fields. `None` if the table has no such column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames {
    /// The event id, which consumers use to drop duplicates.
    pub id: ColumnAliases,
    /// The payload, published verbatim.
    pub payload: ColumnAliases,
    /// The type of the aggregate, which selects the topic.
    pub aggregate_type: Option<ColumnAliases>,
    /// The id of the aggregate, which is the ordering key.
    pub aggregate_id: Option<ColumnAliases>,
    /// The type of the event.
    pub event_type: Option<ColumnAliases>,
    /// The version, which increases within one aggregate.
    pub version: Option<ColumnAliases>,
    /// The version of the payload's schema.
    pub schema_version: Option<ColumnAliases>,
    /// The headers: an object of strings with further attributes.
    pub headers: Option<ColumnAliases>,
    /// The time of the event.
    pub occurred_at: Option<ColumnAliases>,
    /// Further columns, each of which becomes an attribute.
    pub attributes: AttributeColumns,
}

impl Default for ColumnNames {
    fn default() -> Self {
        let named = |name: &str| Some(ColumnAliases::parse(name));
        Self {
            id: ColumnAliases::parse("id"),
            payload: ColumnAliases::parse("payload"),
            aggregate_type: named("aggregatetype"),
            aggregate_id: named("aggregateid"),
            event_type: named("event_type"),
            version: named("version"),
            schema_version: named("schema_version"),
            headers: named("headers"),
            occurred_at: named("occurred_at"),
            attributes: AttributeColumns::default(),
        }
    }
}

/// The fields of an outbox row that have a meaning of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Event id.
    Id,
    /// Payload.
    Payload,
    /// Type of the aggregate.
    AggregateType,
    /// Id of the aggregate.
    AggregateId,
    /// Type of the event.
    EventType,
    /// Version within the aggregate.
    Version,
    /// Version of the payload's schema.
    SchemaVersion,
    /// Further attributes.
    Headers,
    /// Time of the event.
    OccurredAt,
}

impl Field {
    /// All fields, in the order of their places.
    pub const ALL: [Self; 9] = [
        Self::Id,
        Self::Payload,
        Self::AggregateType,
        Self::AggregateId,
        Self::EventType,
        Self::Version,
        Self::SchemaVersion,
        Self::Headers,
        Self::OccurredAt,
    ];

    /// The index of the field's value among the picked columns.
    pub(crate) const fn place(self) -> usize {
        self as usize
    }

    /// The name of the field on record. The column of the field has it in its option also.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Payload => "payload",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::Version => "version",
            Self::SchemaVersion => "schema_version",
            Self::Headers => "headers",
            Self::OccurredAt => "occurred_at",
        }
    }

    /// The field in words.
    const fn name(self) -> &'static str {
        match self {
            Self::Id => "event id",
            Self::Payload => "payload",
            Self::AggregateType => "aggregate type",
            Self::AggregateId => "aggregate id",
            Self::EventType => "event type",
            Self::Version => "version",
            Self::SchemaVersion => "schema version",
            Self::Headers => "headers",
            Self::OccurredAt => "time of the event",
        }
    }
}

/// The setting that needs a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnUse {
    /// The column of a field.
    Field(Field),
    /// The template of topics.
    TopicTemplate,
    /// The template of ordering keys.
    OrderingKey,
    /// An attribute of its own.
    Attribute,
}

impl std::fmt::Display for ColumnUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Field(field) => field.name(),
            Self::TopicTemplate => "topic template",
            Self::OrderingKey => "ordering key",
            Self::Attribute => "attribute",
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ColumnNames {
    /// Returns the names that `of` has for each field, and columns that become attributes. Event id
    /// and payload have their standard names without one.
    #[must_use]
    pub fn named(
        of: impl Fn(Field) -> Option<ColumnAliases>,
        attributes: AttributeColumns,
    ) -> Self {
        let standard = Self::default();
        Self {
            id: of(Field::Id).unwrap_or(standard.id),
            payload: of(Field::Payload).unwrap_or(standard.payload),
            aggregate_type: of(Field::AggregateType),
            aggregate_id: of(Field::AggregateId),
            event_type: of(Field::EventType),
            version: of(Field::Version),
            schema_version: of(Field::SchemaVersion),
            headers: of(Field::Headers),
            occurred_at: of(Field::OccurredAt),
            attributes,
        }
    }

    /// The names that the field's column may have, if the table has such a column.
    #[must_use]
    pub fn of(&self, field: Field) -> Option<&ColumnAliases> {
        match field {
            Field::Id => Some(&self.id),
            Field::Payload => Some(&self.payload),
            Field::AggregateType => self.aggregate_type.as_ref(),
            Field::AggregateId => self.aggregate_id.as_ref(),
            Field::EventType => self.event_type.as_ref(),
            Field::Version => self.version.as_ref(),
            Field::SchemaVersion => self.schema_version.as_ref(),
            Field::Headers => self.headers.as_ref(),
            Field::OccurredAt => self.occurred_at.as_ref(),
        }
    }

    /// The column names for a name in a template, which is a column if the field has none.
    fn named_in_template(&self, name: &str) -> ColumnAliases {
        self.resolve(name).unwrap_or_else(|| ColumnAliases(vec![name.to_owned()]))
    }

    /// The column names for a name in a template. The template may use a field's standard name or
    /// the name of any column.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Option<ColumnAliases> {
        match name {
            "id" => Some(self.id.clone()),
            "payload" => Some(self.payload.clone()),
            "aggregatetype" | "aggregate_type" => self.aggregate_type.clone(),
            "aggregateid" | "aggregate_id" => self.aggregate_id.clone(),
            "event_type" => self.event_type.clone(),
            "version" => self.version.clone(),
            "schema_version" => self.schema_version.clone(),
            "headers" => self.headers.clone(),
            "occurred_at" => self.occurred_at.clone(),
            _ => Some(ColumnAliases(vec![name.to_owned()])),
        }
    }
}

/// The columns picked out of a row: the fields, and further columns of the templates and attributes.
pub(crate) const PLACES: usize = Field::ALL.len() + TEMPLATE_COLUMNS_MAX + ATTRIBUTE_COLUMNS_MAX;

/// The layout of one relation's rows, resolved once for each Relation message.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) relation_id: u32,
    pub(crate) generation: Generation,
    /// The place of column `i` of the tuple. Past the end for a column that is not read.
    pub(crate) places: Vec<usize>,
    /// The place of each field's value. Fields that share a column share its place.
    pub(crate) fields: [usize; Field::ALL.len()],
    pub(crate) payload: PayloadType,
    pub(crate) occurred_at_is_timestamp: bool,
    /// `schema.table`, for errors and the CloudEvents source.
    pub(crate) table: String,
    pub(crate) topic: Vec<Part>,
    pub(crate) ordering_key: Vec<Part>,
    /// The places of the columns that become attributes, each with the name of its attribute.
    pub(crate) attributes: Vec<(usize, String)>,
}

/// The conversion of the payload's text form into bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadType {
    /// `\x…`, from `bytea_output = hex`.
    Bytea,
    /// JSON text, unchanged.
    Json,
    /// Any other text, unchanged.
    Text,
}

/// A piece of a template, resolved for one relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Literal(String),
    Place(usize),
}

/// The table lacks a column that the configuration needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table {table} has no column \"{column}\", which the {used_by} needs")]
pub struct MissingColumn {
    /// `schema.table`.
    pub table: String,
    /// The missing column, under each of its names.
    pub column: String,
    /// The setting that needs the column.
    pub used_by: ColumnUse,
}

/// Type oids of pg_type.dat, which never change.
mod oid {
    pub(super) const BYTEA: u32 = 17;
    pub(super) const JSON: u32 = 114;
    pub(super) const TIMESTAMP: u32 = 1114;
    pub(super) const TIMESTAMPTZ: u32 = 1184;
    pub(super) const JSONB: u32 = 3802;
}

impl Layout {
    pub(crate) fn resolve(
        relation: &Relation,
        names: &ColumnNames,
        topic: &Template,
        ordering_key: &Template,
    ) -> Result<Self, MissingColumn> {
        let table = format!("{}.{}", relation.namespace, relation.name);
        let index_of = |wanted: &ColumnAliases, used_by| {
            let index_of = |name| relation.columns.iter().position(|column| column.name == name);
            wanted.iter().find_map(index_of).ok_or_else(|| MissingColumn {
                table: table.clone(),
                column: wanted.0.join("\" or \""),
                used_by,
            })
        };
        let nowhere = PLACES;
        let mut places = vec![nowhere; relation.columns.len()];
        let mut fields = Field::ALL.map(Field::place);
        let mut type_of = [0; Field::ALL.len()];
        for field in Field::ALL {
            let Some(columns) = names.of(field) else { continue };
            let index = index_of(columns, ColumnUse::Field(field))?;
            if places[index] == nowhere {
                places[index] = field.place();
            }
            fields[field.place()] = places[index];
            type_of[field.place()] = relation.columns[index].type_oid;
        }
        let mut extra = Field::ALL.len();
        let mut place_of = |columns: &ColumnAliases, used_by| -> Result<usize, MissingColumn> {
            let index = index_of(columns, used_by)?;
            if places[index] == nowhere {
                places[index] = extra;
                extra += 1;
            }
            Ok(places[index])
        };
        let mut resolve = |template: &Template, used_by| -> Result<Vec<Part>, MissingColumn> {
            let part = |part: &Result<&str, &str>| match part {
                Ok(literal) => Ok(Part::Literal((*literal).to_owned())),
                Err(name) => place_of(&names.named_in_template(name), used_by).map(Part::Place),
            };
            template.parts().iter().map(part).collect()
        };
        let topic = resolve(topic, ColumnUse::TopicTemplate)?;
        let ordering_key = resolve(ordering_key, ColumnUse::OrderingKey)?;
        // Rows from before the column was added have no such value, and must not stop the relay.
        let attribute = |(column, name): (&str, &str)| {
            let columns = ColumnAliases(vec![column.to_owned()]);
            Some((place_of(&columns, ColumnUse::Attribute).ok()?, name.to_owned()))
        };
        let attributes = names.attributes.iter().filter_map(attribute).collect();
        let is_timestamp = |type_oid| matches!(type_oid, oid::TIMESTAMPTZ | oid::TIMESTAMP);
        Ok(Self {
            relation_id: relation.id,
            generation: relation.generation,
            payload: match type_of[Field::Payload.place()] {
                oid::BYTEA => PayloadType::Bytea,
                oid::JSON | oid::JSONB => PayloadType::Json,
                _ => PayloadType::Text,
            },
            occurred_at_is_timestamp: is_timestamp(type_of[Field::OccurredAt.place()]),
            places,
            fields,
            table,
            topic,
            ordering_key,
            attributes,
        })
    }
}
