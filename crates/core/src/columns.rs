//! Which column of an outbox table means what.
//!
//! Columns are found by name in the latest Relation message, so an `ALTER TABLE` in mid-stream
//! changes nothing but where they stand.

use pgoutput_parser::{Generation, Relation};

use crate::template::Template;

/// The columns' names; `None` where the table has no such column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames {
    /// Event id, the consumers' dedupe key.
    pub id: String,
    /// Payload, published verbatim.
    pub payload: String,
    /// Type of the aggregate; routes to a topic.
    pub aggregate_type: Option<String>,
    /// Id of the aggregate; the ordering key.
    pub aggregate_id: Option<String>,
    /// What happened.
    pub event_type: Option<String>,
    /// Increases within one aggregate.
    pub version: Option<String>,
    /// Version of the payload's shape.
    pub schema_version: Option<String>,
    /// Object of strings: further attributes.
    pub headers: Option<String>,
    /// When it happened.
    pub occurred_at: Option<String>,
}

impl Default for ColumnNames {
    fn default() -> Self {
        let named = |name: &str| Some(name.to_owned());
        Self {
            id: "id".to_owned(),
            payload: "payload".to_owned(),
            aggregate_type: named("aggregatetype"),
            aggregate_id: named("aggregateid"),
            event_type: named("event_type"),
            version: named("version"),
            schema_version: named("schema_version"),
            headers: named("headers"),
            occurred_at: named("occurred_at"),
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
    /// What happened.
    EventType,
    /// Version within the aggregate.
    Version,
    /// Version of the payload's shape.
    SchemaVersion,
    /// Further attributes.
    Headers,
    /// When it happened.
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

    /// Where the field's value stands among the picked columns.
    pub(crate) const fn place(self) -> usize {
        self as usize
    }

    /// The option that names the column.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::Id => "--column-id",
            Self::Payload => "--column-payload",
            Self::AggregateType => "--column-aggregate-type",
            Self::AggregateId => "--column-aggregate-id",
            Self::EventType => "--column-event-type",
            Self::Version => "--column-version",
            Self::SchemaVersion => "--column-schema-version",
            Self::Headers => "--column-headers",
            Self::OccurredAt => "--column-occurred-at",
        }
    }
}

impl ColumnNames {
    /// The column's name in the table, if the table has one.
    #[must_use]
    pub fn of(&self, field: Field) -> Option<&str> {
        match field {
            Field::Id => Some(&self.id),
            Field::Payload => Some(&self.payload),
            Field::AggregateType => self.aggregate_type.as_deref(),
            Field::AggregateId => self.aggregate_id.as_deref(),
            Field::EventType => self.event_type.as_deref(),
            Field::Version => self.version.as_deref(),
            Field::SchemaVersion => self.schema_version.as_deref(),
            Field::Headers => self.headers.as_deref(),
            Field::OccurredAt => self.occurred_at.as_deref(),
        }
    }

    /// The name in the table of what a template calls `name`: a field by its standard name, or any
    /// column by its own.
    #[must_use]
    pub fn resolve<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        match name {
            "id" => Some(&self.id),
            "payload" => Some(&self.payload),
            "aggregatetype" | "aggregate_type" => self.aggregate_type.as_deref(),
            "aggregateid" | "aggregate_id" => self.aggregate_id.as_deref(),
            "event_type" => self.event_type.as_deref(),
            "version" => self.version.as_deref(),
            "schema_version" => self.schema_version.as_deref(),
            "headers" => self.headers.as_deref(),
            "occurred_at" => self.occurred_at.as_deref(),
            _ => Some(name),
        }
    }
}

/// Columns picked out of a row: the fields, and what templates name beside them.
pub(crate) const PLACES: usize = Field::ALL.len() + TEMPLATE_COLUMNS_MAX;

/// Columns that the templates may name beside the fields; topics and keys are short.
pub(crate) const TEMPLATE_COLUMNS_MAX: usize = 7;

/// How the rows of one relation are read, resolved once for each description of it.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) relation_id: u32,
    pub(crate) generation: Generation,
    /// Where column `i` of the tuple goes; past the end for a column nobody wants.
    pub(crate) places: Vec<usize>,
    pub(crate) payload: PayloadType,
    pub(crate) occurred_at_is_timestamp: bool,
    /// `schema.table`, for errors and the CloudEvents source.
    pub(crate) table: String,
    pub(crate) topic: Vec<Part>,
    pub(crate) ordering_key: Vec<Part>,
}

/// How the payload's text form becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadType {
    /// `\x…`, the server's `bytea_output = hex`.
    Bytea,
    /// JSON text, as it is.
    Json,
    /// Any other text, as it is.
    Text,
}

/// A piece of a template, resolved for one relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Literal(String),
    Place(usize),
}

/// A table does not have a column that the configuration needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table {table} has no column \"{column}\"; name the right one with {option}")]
pub struct MissingColumn {
    /// `schema.table`.
    pub table: String,
    /// The column that was looked for.
    pub column: String,
    /// The option that names it.
    pub option: &'static str,
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
        let index_of = |column: &str| relation.columns.iter().position(|c| c.name == column);
        let missing = |column: &str, option| MissingColumn {
            table: table.clone(),
            column: column.to_owned(),
            option,
        };
        let nowhere = PLACES;
        let mut places = vec![nowhere; relation.columns.len()];
        let mut type_of = [0; Field::ALL.len()];
        for field in Field::ALL {
            let Some(column) = names.of(field) else { continue };
            let index = index_of(column).ok_or_else(|| missing(column, field.option()))?;
            places[index] = field.place();
            type_of[field.place()] = relation.columns[index].type_oid;
        }
        let mut extra = Field::ALL.len();
        let mut place_of = |name: &str, option| -> Result<usize, MissingColumn> {
            let column = names.resolve(name).unwrap_or(name);
            let index = index_of(column).ok_or_else(|| missing(column, option))?;
            if places[index] == nowhere {
                places[index] = extra;
                extra += 1;
            }
            Ok(places[index])
        };
        let mut resolve = |template: &Template, option| -> Result<Vec<Part>, MissingColumn> {
            let part = |part: &Result<&str, &str>| match part {
                Ok(literal) => Ok(Part::Literal((*literal).to_owned())),
                Err(name) => place_of(name, option).map(Part::Place),
            };
            template.parts().iter().map(part).collect()
        };
        let topic = resolve(topic, "--topic")?;
        let ordering_key = resolve(ordering_key, "--ordering-key")?;
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
            table,
            topic,
            ordering_key,
        })
    }
}
