//! Reads rows of a table as text, without values that are too large for a message. Those values
//! never leave the server.
//!
//! A client that read such a row would hold the value in memory several times. The server therefore
//! measures the value and sends its length instead, as [`Column::TooLarge`]. Only large values have
//! the cost of measuring. A stored value of a few kilobytes cannot be too large with any
//! compression.

use pgoutput_parser::Column;
use tokio_postgres::SimpleQueryRow;
use walrelay_core::REQUEST_BYTES_MAX;
use walrelay_pg_client::SqlError;
use walrelay_pg_client::{TableColumn, quote_identifier, text_form_sql};

use crate::admin_error::AdminError;
use crate::rows::unsettled_rows::SourceTable;

/// A stored value up to this size never has a text of [`REQUEST_BYTES_MAX`]. The lz4 format stores
/// at least one byte for each 255, and JSON escapes a character with at most six.
const NEVER_TOO_LARGE: usize = REQUEST_BYTES_MAX / 255 / 6;

/// A larger stored value of any type has a text of more than [`REQUEST_BYTES_MAX`], because `jsonb`
/// takes at most four times its text. Such a value is not converted to text, which may fail near 1
/// GB.
const ALWAYS_TOO_LARGE: usize = REQUEST_BYTES_MAX * 4;

/// Type oids from pg_type.dat, which never change.
mod oid {
    pub(super) const BYTEA: u32 = 17;
    /// text, character and character varying.
    pub(super) const TEXTS: [u32; 3] = [25, 1042, 1043];
    /// bool, the integers and floats, dates and times, and uuid.
    pub(super) const OF_FIXED_SIZE: [u32; 13] =
        [16, 18, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 2950];
}

/// How the server sends text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEncoding {
    /// The server guarantees valid UTF-8.
    Utf8,
    /// The server has no encoding (`SQL_ASCII`), and refuses to send bytes that are not UTF-8.
    Unknown,
}

/// Returns SQL for a text in its sent form: hexadecimal digits if the server has no encoding.
pub(crate) fn sent_form_sql(value: &str, text: ServerEncoding) -> String {
    match text {
        ServerEncoding::Utf8 => value.to_owned(),
        ServerEncoding::Unknown => format!(
            "CASE WHEN ({value}) IS NOT NULL THEN pg_catalog.encode(pg_catalog.convert_to(\
             pg_catalog.format('%s', {value}), 'SQL_ASCII'), 'hex') END"
        ),
    }
}

impl ServerEncoding {
    /// Decodes the sent form of a column's value.
    pub(crate) fn sent(self, column: &TableColumn, sent: &[u8]) -> Result<Vec<u8>, AdminError> {
        match is_text(column) {
            true => self.decode_text(sent),
            false => Ok(sent.to_vec()),
        }
    }

    pub(crate) fn decode_text(self, sent: &[u8]) -> Result<Vec<u8>, AdminError> {
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let bytes = match self {
            Self::Utf8 => Some(sent.to_vec()),
            Self::Unknown => sent.chunks(2).map(byte).collect(),
        };
        bytes.ok_or_else(|| {
            AdminError::Sql(SqlError::UnexpectedValue {
                column: "a value in hexadecimal digits",
                value: String::new(),
                expected: "pairs of digits",
            })
        })
    }
}

/// Whether its text form depends on the encoding of the database.
fn is_text(column: &TableColumn) -> bool {
    column.type_oid != oid::BYTEA && !oid::OF_FIXED_SIZE.contains(&column.type_oid)
}

/// SQL for how many bytes the text of a column of the table `t` has, where that is too many; null where
/// it is not. None for a type whose values are never so large.
fn too_large(column: &TableColumn) -> Option<String> {
    let value = format!("t.{}", quote_identifier(&column.name));
    let above = |bytes: String| {
        format!(
            "nullif(greatest({bytes}::pg_catalog.int8, {REQUEST_BYTES_MAX}), {REQUEST_BYTES_MAX})"
        )
    };
    let length = |of: &str| format!("pg_catalog.octet_length({of})");
    match column.type_oid {
        fixed if oid::OF_FIXED_SIZE.contains(&fixed) => None,
        // Both are known without reading the value.
        oid::BYTEA => Some(format!("({} * 2 + 2)", above(length(&value)))),
        text if oid::TEXTS.contains(&text) => Some(above(length(&value))),
        _ => {
            let stored = format!("pg_catalog.pg_column_size({value})");
            let text = above(length(&text_form_sql(&value)));
            Some(format!(
                "(CASE WHEN {stored} > {ALWAYS_TOO_LARGE} THEN {stored}::pg_catalog.int8 \
                  WHEN {stored} > {NEVER_TOO_LARGE} THEN {text} END)"
            ))
        }
    }
}

impl SourceTable {
    /// Returns the select list of table `t`. It has the columns, null where the value is too large,
    /// and then a column with the sizes of these values, such as `3:140000000,5:20000000`.
    pub(crate) fn selected(&self, text: ServerEncoding) -> String {
        let mut selected = String::new();
        let mut sizes: Vec<String> = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            let value = format!("t.{}", quote_identifier(&column.name));
            match too_large(column) {
                None => selected.push_str(&format!("{value}, ")),
                Some(bytes) => {
                    let kept = format!("CASE WHEN {bytes} IS NULL THEN {value} END");
                    let sent = match is_text(column) {
                        true => sent_form_sql(&kept, text),
                        false => kept,
                    };
                    selected.push_str(&format!("{sent}, "));
                    sizes.push(format!("'{index}:' || {bytes}"));
                }
            }
        }
        let sizes = sizes.join(", ");
        selected.push_str(&format!(
            "pg_catalog.array_to_string(ARRAY[{sizes}]::pg_catalog.text[], ',')"
        ));
        selected
    }

    /// Returns the values of a row that [`UnsettledRows::rows`](crate::UnsettledRows::rows) returns.
    ///
    /// # Errors
    ///
    /// The row does not belong to this table.
    pub fn values<'a>(&self, row: &'a SimpleQueryRow) -> Result<Vec<Column<'a>>, AdminError> {
        let text = |index: usize| match row.get(index) {
            Some(text) => Column::Text(str::as_bytes(text)),
            None => Column::Null,
        };
        let mut values: Vec<Column<'a>> = (0..self.columns.len()).map(text).collect();
        let too_large = row.get(self.columns.len()).unwrap_or_default();
        for named in too_large.split(',').filter(|named| !named.is_empty()) {
            let Some((value, bytes)) = measured(&mut values, named) else {
                return Err(AdminError::Sql(SqlError::UnexpectedValue {
                    column: "the sizes of values that are too large",
                    value: named.to_owned(),
                    expected: "a column and its bytes",
                }));
            };
            *value = Column::TooLarge { bytes };
        }
        Ok(values)
    }
}

/// Returns the column that `3:140000000` names, and its size in bytes.
fn measured<'v, 'a>(
    values: &'v mut [Column<'a>],
    named: &str,
) -> Option<(&'v mut Column<'a>, usize)> {
    let (index, bytes) = named.split_once(':')?;
    let value = values.get_mut(index.parse::<usize>().ok()?)?;
    Some((value, bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(type_oid: u32) -> TableColumn {
        TableColumn { name: "a\"b".to_owned(), type_oid, type_modifier: -1 }
    }

    #[test]
    fn a_value_is_measured_without_being_read_where_its_type_allows() {
        assert_eq!(too_large(&column(2950)), None);
        let text = too_large(&column(25)).unwrap();
        assert!(text.contains(r#"octet_length(t."a""b")"#) && !text.contains("concat"));
        let bytea = too_large(&column(17)).unwrap();
        assert!(bytea.ends_with("* 2 + 2)"), "{bytea}");
        let jsonb = too_large(&column(3802)).unwrap();
        assert!(jsonb.starts_with("(CASE WHEN pg_catalog.pg_column_size("), "{jsonb}");
    }

    #[test]
    fn digits_are_the_bytes_of_a_text_where_the_server_knows_no_encoding() {
        let (text, uuid) = (column(25), column(2950));
        assert_eq!(ServerEncoding::Unknown.sent(&text, b"fffe61").unwrap(), b"\xff\xfea");
        assert_eq!(ServerEncoding::Unknown.sent(&uuid, b"fffe61").unwrap(), b"fffe61");
        assert_eq!(ServerEncoding::Utf8.sent(&text, b"fffe61").unwrap(), b"fffe61");
        assert!(ServerEncoding::Unknown.sent(&text, b"fx").is_err());
    }

    #[test]
    fn a_column_that_is_named_with_its_bytes_is_found_and_nothing_else_is() {
        let mut values = [Column::Null, Column::Text(b"x")];
        assert_eq!(measured(&mut values, "1:140000000").unwrap().1, 140_000_000);
        for named in ["2:5", "1", "x:5", "1:", ""] {
            assert!(measured(&mut values, named).is_none(), "{named}");
        }
    }
}
