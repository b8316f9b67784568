//! Names of tables, and the quoting of names and texts in SQL.
//!
//! DDL takes no parameters, so `init` has to write names into statements.

use std::fmt;
use std::str::FromStr;

/// Maximum bytes of an identifier. The server silently shortens a longer one, which then means
/// another name.
pub(crate) const IDENTIFIER_BYTES_MAX: usize = 63;

/// A table with its schema. Prints as SQL, quoted if needed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    schema: String,
    table: String,
}

impl QualifiedName {
    /// Creates a name from its two parts as the catalog has them, without folding or unquoting.
    #[must_use]
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Self {
        Self { schema: schema.into(), table: table.into() }
    }

    /// Returns the schema, as in `pg_namespace`.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the table, as in `pg_class`.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quote_identifier(&self.schema), quote_identifier(&self.table))
    }
}

/// The text does not name a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a table name: {reason}; write schema.table, with \"double quotes\" where SQL needs them"
)]
pub struct ParseNameError {
    name: String,
    reason: &'static str,
}

impl FromStr for QualifiedName {
    type Err = ParseNameError;

    /// Parses a name as SQL does. Unquoted parts are folded to lower case, and the default schema
    /// is `public`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let refuse = |reason| ParseNameError { name: name.to_owned(), reason };
        let (first, rest) = take_identifier(name).map_err(refuse)?;
        let Some(rest) = rest.strip_prefix('.') else {
            return match rest {
                "" => Ok(Self::new("public", first)),
                _ => Err(refuse("there is something after the name")),
            };
        };
        let (second, rest) = take_identifier(rest).map_err(refuse)?;
        match rest {
            "" => Ok(Self::new(first, second)),
            _ => Err(refuse("there is something after the name")),
        }
    }
}

/// Returns the identifier at the front of `text`, and the text after it.
fn take_identifier(text: &str) -> Result<(String, &str), &'static str> {
    let (identifier, rest) = match text.strip_prefix('"') {
        Some(quoted) => take_quoted(quoted)?,
        None => {
            let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
            let (plain, rest) = text.split_at(end);
            if plain.starts_with(|c: char| c.is_ascii_digit() || c == '$') {
                return Err("a part that starts with a digit needs quotes");
            }
            (plain.to_ascii_lowercase(), rest)
        }
    };
    match identifier.len() {
        0 => Err("a part is empty"),
        1..=IDENTIFIER_BYTES_MAX if !identifier.contains('\0') => Ok((identifier, rest)),
        1..=IDENTIFIER_BYTES_MAX => Err("a part holds a zero byte"),
        _ => Err("a part is longer than 63 bytes"),
    }
}

/// Parses the rest of a quoted identifier. `""` means one quote.
fn take_quoted(mut rest: &str) -> Result<(String, &str), &'static str> {
    let mut identifier = String::new();
    loop {
        let (piece, after) = rest.split_once('"').ok_or("a quote is not closed")?;
        identifier.push_str(piece);
        match after.strip_prefix('"') {
            Some(after_pair) => {
                identifier.push('"');
                rest = after_pair;
            }
            None => return Ok((identifier, after)),
        }
    }
}

fn is_plain(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphanumeric()
}

/// Quotes an identifier for SQL if needed.
///
/// Quotes every name that is not plainly lower case, and every reserved word. The list of reserved
/// words grows with each version of the server.
#[must_use]
pub fn quote_identifier(identifier: &str) -> String {
    let is_safe = identifier.starts_with(|c: char| c == '_' || c.is_ascii_lowercase())
        && identifier.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
        && !RESERVED.contains(&identifier);
    if is_safe { identifier.to_owned() } else { format!("\"{}\"", identifier.replace('"', "\"\"")) }
}

/// Returns the text as an SQL literal, safe with any `standard_conforming_strings`.
#[must_use]
pub fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        format!(" E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

/// Returns names of tables as SQL literals, for the elements of an array.
#[must_use]
pub fn table_literals(tables: &[QualifiedName]) -> String {
    let tables = tables.iter().map(|table| quote_literal(&table.to_string()));
    tables.collect::<Vec<_>>().join(", ")
}

/// Words that cannot be an unquoted table or column name, up to Postgres 18.
const RESERVED: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "both",
    "case",
    "cast",
    "char",
    "character",
    "check",
    "coalesce",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "dec",
    "decimal",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "exists",
    "extract",
    "false",
    "fetch",
    "float",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "greatest",
    "group",
    "grouping",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "inout",
    "int",
    "integer",
    "intersect",
    "interval",
    "into",
    "is",
    "isnull",
    "join",
    "json",
    "json_array",
    "json_arrayagg",
    "json_exists",
    "json_object",
    "json_objectagg",
    "json_query",
    "json_scalar",
    "json_serialize",
    "json_table",
    "json_value",
    "lateral",
    "leading",
    "least",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "merge_action",
    "national",
    "natural",
    "nchar",
    "none",
    "normalize",
    "not",
    "notnull",
    "null",
    "nullif",
    "numeric",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "out",
    "outer",
    "overlaps",
    "overlay",
    "placing",
    "position",
    "precision",
    "primary",
    "real",
    "references",
    "returning",
    "right",
    "row",
    "select",
    "session_user",
    "setof",
    "similar",
    "smallint",
    "some",
    "substring",
    "symmetric",
    "system_user",
    "table",
    "tablesample",
    "then",
    "time",
    "timestamp",
    "to",
    "trailing",
    "treat",
    "trim",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "values",
    "varchar",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
    "xmlattributes",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlnamespaces",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
    "xmltable",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let name: QualifiedName = text.parse().unwrap();
        (name.schema().to_owned(), name.table().to_owned())
    }

    #[test]
    fn names_are_read_as_sql_reads_them() {
        let pair = |schema: &str, table: &str| (schema.to_owned(), table.to_owned());
        assert_eq!(parsed("app_outbox"), pair("public", "app_outbox"));
        assert_eq!(parsed("Billing.App_Outbox"), pair("billing", "app_outbox"));
        assert_eq!(parsed("\"Billing\".\"a.b \"\"c\"\"\""), pair("Billing", "a.b \"c\""));
        assert_eq!(parsed("\"x\""), pair("public", "x"));
    }

    #[test]
    fn what_names_no_table_is_refused() {
        let too_long = "a".repeat(64);
        for text in [
            "", ".", "a.", ".a", "a.b.c", "a b", "a;drop", "\"a", "\"\"", "1a", "a.\"b\"c",
            &too_long,
        ] {
            assert!(text.parse::<QualifiedName>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_printed_name_reads_back_as_itself() {
        for (schema, table) in
            [("public", "app_outbox"), ("User", "select"), ("a.b", "c\"d'e\\f"), ("ü", "x y")]
        {
            let name = QualifiedName::new(schema, table);
            assert_eq!(name.to_string().parse::<QualifiedName>(), Ok(name));
        }
    }

    #[test]
    fn literals_cannot_be_left() {
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal("a\\' b"), " E'a\\\\'' b'");
    }
}
