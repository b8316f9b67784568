//! Parses the columns that become attributes, such as `tenant_id,region:geo`.

use std::collections::BTreeSet;
use std::fmt;

use walrelay_envelope::attribute::{self, RESERVED_PREFIX};

use crate::limits::ATTRIBUTE_KEY_BYTES_MAX;

/// The number of columns that may become attributes. Each takes a place in every row that is read.
pub(crate) const ATTRIBUTE_COLUMNS_MAX: usize = 16;

/// The columns that become attributes, each with the name of its attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributeColumns(Vec<(String, String)>);

/// The text does not name columns that can become attributes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeColumnsError {
    /// An entry lacks the column or the attribute.
    #[error("columns with commas between them, each `column` or `column:attribute`")]
    NoName,
    /// There are too many columns.
    #[error("at most {ATTRIBUTE_COLUMNS_MAX} columns")]
    TooMany,
    /// Consumers take the attribute for the relay's.
    #[error(
        "another name for the attribute {0}, as in column:attribute: only the relay writes attributes of that name"
    )]
    Ours(String),
    /// Pub/Sub refuses the name of the attribute.
    #[error(
        "another name for the attribute {0}, as in column:attribute: Pub/Sub reserves names that begin with {RESERVED_PREFIX}"
    )]
    Reserved(String),
    /// Pub/Sub refuses the name of the attribute.
    #[error("names of attributes of at most {ATTRIBUTE_KEY_BYTES_MAX} bytes")]
    TooLong,
    /// Two columns have the same attribute.
    #[error("each attribute once: {0} has two columns")]
    Twice(String),
}

impl AttributeColumns {
    /// Parses columns with commas between them, each `column` or `column:attribute`. An empty text
    /// names no column.
    ///
    /// # Errors
    ///
    /// An attribute cannot have the name, or the text names too many columns.
    pub fn parse(text: &str) -> Result<Self, AttributeColumnsError> {
        let entries = text.split(',').filter(|_| !text.trim().is_empty());
        let columns = entries.map(column).collect::<Result<Vec<_>, _>>()?;
        if columns.len() > ATTRIBUTE_COLUMNS_MAX {
            return Err(AttributeColumnsError::TooMany);
        }
        let mut names = BTreeSet::new();
        match columns.iter().find(|(_, attribute)| !names.insert(attribute)) {
            Some((_, attribute)) => Err(AttributeColumnsError::Twice(attribute.clone())),
            None => Ok(Self(columns)),
        }
    }

    /// Iterates over the columns, each with the name of its attribute.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(column, attribute)| (column.as_str(), attribute.as_str()))
    }
}

fn column(entry: &str) -> Result<(String, String), AttributeColumnsError> {
    let (column, attribute) = entry.split_once(':').unwrap_or((entry, entry));
    let (column, name) = (column.trim(), attribute.trim());
    if column.is_empty() || name.is_empty() {
        return Err(AttributeColumnsError::NoName);
    }
    if name.len() > ATTRIBUTE_KEY_BYTES_MAX {
        return Err(AttributeColumnsError::TooLong);
    }
    if attribute::is_ours(name) {
        return Err(AttributeColumnsError::Ours(name.to_owned()));
    }
    if name.starts_with(RESERVED_PREFIX) {
        return Err(AttributeColumnsError::Reserved(name.to_owned()));
    }
    Ok((column.to_owned(), name.to_owned()))
}

impl fmt::Display for AttributeColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (column, attribute)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{column}:{attribute}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_its_own_name_or_that_behind_the_colon() {
        let columns = AttributeColumns::parse(" tenant_id, region : geo,a:x:y").unwrap();
        let named: Vec<_> = columns.iter().collect();
        assert_eq!(named, [("tenant_id", "tenant_id"), ("region", "geo"), ("a", "x:y")]);
        assert_eq!(AttributeColumns::parse(&columns.to_string()), Ok(columns));
        assert_eq!(AttributeColumns::parse(" "), Ok(AttributeColumns::default()));
    }

    #[test]
    fn a_name_that_no_attribute_of_a_column_can_have_is_refused_with_the_reason() {
        let long = format!("a:{}", "x".repeat(257));
        let many = (0..17).map(|n| format!("c{n}")).collect::<Vec<_>>().join(",");
        for (text, reason) in [
            ("a,", "columns with commas"),
            (":a", "columns with commas"),
            ("a:", "columns with commas"),
            ("version", "attribute version"),
            ("a:commit_lsn", "only the relay"),
            ("a:ce-id", "only the relay"),
            ("a:googclient_x", "begin with goog"),
            ("a:goog", "begin with goog"),
            (&long, "at most 256 bytes"),
            ("a,b:a", "a has two columns"),
            (&many, "at most 16"),
        ] {
            let error = AttributeColumns::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
