//! The wanted columns of one row, in the formats that the connection requested.

use pgoutput_parser::{Column, Insert, Position};

use crate::fault::RouteError;
use crate::limits::REQUEST_BYTES_MAX;
use crate::routing::columns::{ColumnNames, Field, Layout, PLACES, PayloadType};

/// The largest value that is read from a column other than payload and headers, in bytes.
///
/// Pub/Sub takes 1,024 bytes of an attribute or a key. Values up to this larger size are recorded,
/// so that an operator can see and correct them.
const FIELD_BYTES_MAX: usize = 64 << 10;

/// The largest headers JSON that is parsed, in bytes. The maximum number of attributes takes less,
/// even with every character escaped. Parsing more would take memory that no message needs.
const HEADERS_BYTES_MAX: usize = 1 << 20;

/// The largest event id that a message names, in bytes. A UUID has 36.
const EVENT_ID_BYTES_MAX: usize = 128;

pub(crate) struct RowView<'a, 'r> {
    pub(crate) picked: [Option<Column<'a>>; PLACES],
    pub(crate) layout: &'r Layout,
    pub(crate) insert: &'a Insert<'a>,
    pub(crate) names: &'r ColumnNames,
}

impl<'a, 'r> RowView<'a, 'r> {
    pub(crate) fn of(insert: &'a Insert<'a>, layout: &'r Layout, names: &'r ColumnNames) -> Self {
        let mut picked = insert.tuple.pick(&layout.places);
        if insert.tuple.encoded_bytes() > FIELD_BYTES_MAX {
            mark_too_large(&mut picked, layout);
        }
        Self { picked, layout, insert, names }
    }

    /// Whether a value may be missing because it is too large.
    pub(crate) fn may_lack_values(&self) -> bool {
        let tuple = &self.insert.tuple;
        tuple.is_condensed() || tuple.encoded_bytes() > FIELD_BYTES_MAX
    }

    pub(crate) fn position(&self) -> Position {
        self.insert.position
    }

    pub(crate) fn table(&self) -> &str {
        &self.layout.table
    }

    pub(crate) fn payload_type(&self) -> PayloadType {
        self.layout.payload
    }

    pub(crate) fn occurred_at_is_timestamp(&self) -> bool {
        self.layout.occurred_at_is_timestamp
    }

    /// The text of a field, or `None` if it is null or the table has no such column.
    pub(crate) fn text(&self, field: Field) -> Result<Option<&'a str>, RouteError> {
        self.text_at(self.layout.fields[field.place()])
    }

    pub(crate) fn text_at(&self, place: usize) -> Result<Option<&'a str>, RouteError> {
        match self.bytes_at(place)? {
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.bad_value(place, "is not UTF-8")),
            },
            None => Ok(None),
        }
    }

    fn bytes_at(&self, place: usize) -> Result<Option<&'a [u8]>, RouteError> {
        match self.picked.get(place).copied().flatten() {
            Some(Column::Text(bytes)) => Ok(Some(bytes)),
            Some(Column::Null) | None => Ok(None),
            Some(Column::Binary(_)) => {
                Err(self.bad_value(place, "came in binary form, which was not asked for"))
            }
            // This is not null: `left_out` makes the row dead.
            Some(Column::TooLarge { .. }) => Ok(None),
            Some(Column::UnchangedToast) => Err(self.bad_value(place, "came without its value")),
        }
    }

    pub(crate) fn payload(&self) -> Result<Payload<'a>, RouteError> {
        let place = self.layout.fields[Field::Payload.place()];
        let bytes = self.bytes_at(place)?.unwrap_or_default();
        if self.layout.payload != PayloadType::Bytea || bytes.is_empty() {
            return Ok(Payload::Verbatim(bytes));
        }
        match bytes.strip_prefix(b"\\x") {
            Some(hex) if hex.len() % 2 == 0 && hex.iter().all(u8::is_ascii_hexdigit) => {
                Ok(Payload::Hex(hex))
            }
            _ => Err(self.bad_value(place, "is not hex, the bytea_output this connection set")),
        }
    }

    #[cold]
    fn bad_value(&self, place: usize, problem: &'static str) -> RouteError {
        RouteError::Value {
            position: self.insert.position,
            table: self.layout.table.clone(),
            event_id: self.readable_event_id(),
            column: self.column_name(place),
            problem,
        }
    }

    /// The event id for a message, if it is short text.
    fn readable_event_id(&self) -> Option<String> {
        let place = self.layout.fields[Field::Id.place()];
        let Some(Column::Text(id)) = self.picked.get(place).copied().flatten() else {
            return None;
        };
        let id = std::str::from_utf8(id).ok()?;
        (id.len() <= EVENT_ID_BYTES_MAX).then(|| id.to_owned())
    }

    pub(crate) fn column_name(&self, place: usize) -> String {
        let column = self.layout.places.iter().position(|p| *p == place);
        let column = column.and_then(|index| self.insert.relation.columns.get(index));
        column.map_or_else(|| self.names.id.to_string(), |column| column.name.clone())
    }
}

/// Marks values that are too large before any value is read.
#[cold]
fn mark_too_large(picked: &mut [Option<Column<'_>>; PLACES], layout: &Layout) {
    for (place, column) in picked.iter_mut().enumerate() {
        if let Some(Column::Text(value)) = column
            && value.len() > bytes_max(layout, place)
        {
            *column = Some(Column::TooLarge { bytes: value.len() });
        }
    }
}

/// The largest value that is read from the column at a place, in bytes.
fn bytes_max(layout: &Layout, place: usize) -> usize {
    if layout.fields[Field::Headers.place()] == place {
        return HEADERS_BYTES_MAX;
    }
    if layout.fields[Field::Payload.place()] != place {
        return FIELD_BYTES_MAX;
    }
    match layout.payload {
        PayloadType::Bytea => 2 * REQUEST_BYTES_MAX + 2,
        PayloadType::Json | PayloadType::Text => REQUEST_BYTES_MAX,
    }
}

/// The payload as the message will contain it.
pub(crate) enum Payload<'a> {
    Verbatim(&'a [u8]),
    /// Pairs of hexadecimal digits, already checked.
    Hex(&'a [u8]),
}

impl Payload<'_> {
    pub(crate) const NONE: Self = Self::Verbatim(&[]);

    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Verbatim(bytes) => bytes.len(),
            Self::Hex(digits) => digits.len() / 2,
        }
    }

    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>) {
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => digit.to_ascii_lowercase() - b'a' + 10,
        };
        match self {
            Self::Verbatim(bytes) => buffer.extend_from_slice(bytes),
            Self::Hex(digits) => {
                buffer.extend(digits.chunks_exact(2).map(|p| nibble(p[0]) << 4 | nibble(p[1])));
            }
        }
    }
}
