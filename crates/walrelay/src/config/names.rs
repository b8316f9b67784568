//! Names of things in Postgres, as options give them.

use std::fmt;

/// Longest identifier Postgres keeps (NAMEDATALEN - 1); it cuts longer ones silently.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// A table and the schema it stands in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QualifiedName {
    /// The schema.
    pub schema: String,
    /// The table.
    pub table: String,
}

impl QualifiedName {
    /// Reads `table` (in `public`), `schema.table`, or either with parts in double quotes.
    ///
    /// Unquoted parts are folded to lower case, as Postgres does.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (first, rest) = identifier(text.trim())?;
        if rest.is_empty() {
            return Some(Self { schema: "public".into(), table: first });
        }
        let (table, rest) = identifier(rest.strip_prefix('.')?)?;
        rest.is_empty().then_some(Self { schema: first, table })
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

/// Whether Postgres accepts this as the name of a slot.
#[must_use]
pub(super) fn is_slot_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

/// Whether this can name a publication or a column, taken verbatim.
#[must_use]
pub(super) fn is_identifier(text: &str) -> bool {
    (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && !text.contains('\0')
}

/// The identifier at the start of `text`, and what follows it.
fn identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(quoted) => quoted_identifier(quoted)?,
        None => {
            let end = text.find(['.', '"']).unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            if name.contains(char::is_whitespace) {
                return None;
            }
            (name.to_lowercase(), rest)
        }
    };
    is_identifier(&name).then_some((name, rest))
}

/// What stands before the closing quote; a doubled quote stands for one.
fn quoted_identifier(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, String)> {
        QualifiedName::parse(text).map(|name| (name.schema, name.table))
    }

    #[test]
    fn tables_are_read_as_postgres_reads_them() {
        let pair = |schema: &str, table: &str| Some((schema.to_owned(), table.to_owned()));
        assert_eq!(parsed("app_outbox"), pair("public", "app_outbox"));
        assert_eq!(parsed("Video.App_Outbox"), pair("video", "app_outbox"));
        assert_eq!(parsed("\"My.Schema\".\"Out\"\"box\""), pair("My.Schema", "Out\"box"));
        for wrong in ["", ".", "a.", ".b", "a.b.c", "\"open", "a b", "\"a\"b"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn slot_names_are_lower_case_letters_digits_and_underscores() {
        assert!(is_slot_name("walrelay_2"));
        assert!(!is_slot_name("Walrelay"));
        assert!(!is_slot_name("wal-relay"));
        assert!(!is_slot_name(""));
        assert!(!is_slot_name(&"x".repeat(64)));
    }
}
