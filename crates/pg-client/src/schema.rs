//! The schema of walrelay's own tables, functions, types and views.
//!
//! Every statement in the source names these objects as `public.app_…`. The text of a statement is
//! adapted once, before a name or a condition of the user is written into it. Text of the user is
//! therefore never changed. Decision record: docs/decisions/sql-and-schema.md.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::names::{IDENTIFIER_BYTES_MAX, QualifiedName, quote_identifier};

/// The schema that the source names, and the default.
const DEFAULT: &str = "public";

/// Beginnings of the names of our objects. In a `format` of SQL, `%I` is such a name.
const OWN_NAMES: [&str; 4] = ["app_outbox", "app_inbox", "app_event_ledger", "%I"];

/// The schema of this process. Unset means [`DEFAULT`].
static CHOSEN: OnceLock<Schema> = OnceLock::new();

/// The schema of a process that has set none.
static PUBLIC: Schema = Schema::PUBLIC;

/// The schema of this process, for statements that are formatted: `{SCHEMA}.app_outbox`.
pub const SCHEMA: ProcessSchema = ProcessSchema;

/// A schema for walrelay's own objects. Prints as SQL, quoted if needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    name: Cow<'static, str>,
    quoted: Cow<'static, str>,
}

/// Prints the schema of this process as SQL, quoted if needed.
#[derive(Debug, Clone, Copy)]
pub struct ProcessSchema;

impl fmt::Display for ProcessSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&schema().quoted)
    }
}

/// The text does not name a schema that walrelay can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a schema name for walrelay: {reason}")]
pub struct ParseSchemaError {
    name: String,
    reason: &'static str,
}

/// The process uses another schema already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this process uses schema {used} already, so it cannot use schema {refused}")]
pub struct SchemaAlreadySet {
    used: Schema,
    refused: Schema,
}

impl Schema {
    /// The schema `public`.
    pub const PUBLIC: Self = Self { name: Cow::Borrowed(DEFAULT), quoted: Cow::Borrowed(DEFAULT) };

    /// Returns the name, as in `pg_namespace`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether this is the default schema, which exists in every database.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.name == DEFAULT
    }

    /// Returns a table of this schema.
    #[must_use]
    pub fn table(&self, table: &str) -> QualifiedName {
        QualifiedName::new(self.name(), table)
    }

    /// Returns the text with this schema in place of `public` wherever it qualifies one of our
    /// objects: `public.app_outbox`, `public.%I`, `'public'::regnamespace`,
    /// `to_regnamespace('public')` and `SCHEMA public`. For `public` the text is not copied.
    #[must_use]
    pub fn qualify<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_public() {
            return Cow::Borrowed(text);
        }
        let mut qualified = String::with_capacity(text.len() + text.len() / 8);
        let mut copied = 0;
        for (at, _) in text.match_indices(DEFAULT) {
            let (before, after) = (&text[..at], &text[at + DEFAULT.len()..]);
            if is_qualifier(before, after) {
                qualified.push_str(&text[copied..at]);
                qualified.push_str(&self.quoted);
                copied = at + DEFAULT.len();
            }
        }
        qualified.push_str(&text[copied..]);
        Cow::Owned(qualified)
    }
}

/// Returns whether the word between the two texts names the schema of our objects.
fn is_qualifier(before: &str, after: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_$\".".contains(c);
    if before.ends_with(continues) {
        return false;
    }
    if let Some(name) = after.strip_prefix('.') {
        return OWN_NAMES.iter().any(|own| name.starts_with(own));
    }
    let is_literal = before.ends_with('\'') && after.starts_with('\'');
    let is_schema_literal =
        after.starts_with("'::") || (before.ends_with("to_regnamespace('") && is_literal);
    let is_schema_word = before
        .strip_suffix("SCHEMA ")
        .is_some_and(|before| !before.ends_with(continues) && !after.starts_with(continues));
    (is_literal && is_schema_literal) || is_schema_word
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.quoted)
    }
}

impl FromStr for Schema {
    type Err = ParseSchemaError;

    /// Takes the name as the catalog has it, without folding or unquoting.
    ///
    /// Some characters are refused, because the name is written into function bodies, into literals
    /// and into format strings of SQL. No escape suits all three.
    fn from_str(name: &str) -> Result<Self, ParseSchemaError> {
        let refuse = |reason| Err(ParseSchemaError { name: name.to_owned(), reason });
        if name.is_empty() || name.len() > IDENTIFIER_BYTES_MAX {
            return refuse("it must have 1 to 63 bytes");
        }
        if name.contains(|c: char| c.is_control() || "'\"\\$%".contains(c)) {
            return refuse("it must not contain a quote, a backslash, $, % or a control character");
        }
        if name.starts_with("pg_") || name == "information_schema" {
            return refuse("the server reserves it");
        }
        Ok(Self { quoted: Cow::Owned(quote_identifier(name)), name: Cow::Owned(name.to_owned()) })
    }
}

/// Sets the schema of our objects for this process. Call it before the first statement.
pub fn set_schema(wanted: Schema) -> Result<(), SchemaAlreadySet> {
    let used = CHOSEN.get_or_init(|| wanted.clone());
    match *used == wanted {
        true => Ok(()),
        false => Err(SchemaAlreadySet { used: used.clone(), refused: wanted }),
    }
}

/// Returns the schema of our objects in this process.
#[must_use]
pub fn schema() -> &'static Schema {
    CHOSEN.get().unwrap_or(&PUBLIC)
}

/// Returns a table of the schema of this process.
#[must_use]
pub fn own_table(table: &str) -> QualifiedName {
    schema().table(table)
}

/// Returns the script that creates the schema of this process, unless it is there. `None` for
/// `public`, which belongs to the database.
#[must_use]
pub fn schema_sql() -> Option<&'static str> {
    (!schema().is_public()).then(|| sql!("schema.sql", "create_schema"))
}

/// Statement text of the source, in the schema of this process. [`sql!`](crate::sql) and
/// [`in_schema!`](crate::in_schema) keep one for each statement.
#[derive(Debug)]
pub struct SchemaText {
    source: &'static str,
    qualified: OnceLock<String>,
}

impl SchemaText {
    /// Creates the text from the source.
    #[must_use]
    pub const fn new(source: &'static str) -> Self {
        Self { source, qualified: OnceLock::new() }
    }

    /// Returns the text for the schema of this process, which is the source itself for `public`.
    pub fn get(&'static self) -> &'static str {
        let chosen = schema();
        match chosen.is_public() {
            true => self.source,
            false => self.qualified.get_or_init(|| chosen.qualify(self.source).into_owned()),
        }
    }
}

/// A statement with a name in Rust: `static CLAIM: SqlText = SqlText::new(|| sql!(…));`.
#[derive(Debug, Clone, Copy)]
pub struct SqlText(fn() -> &'static str);

impl SqlText {
    /// Creates the statement from the function that returns its text.
    #[must_use]
    pub const fn new(text: fn() -> &'static str) -> Self {
        Self(text)
    }
}

impl Deref for SqlText {
    type Target = str;

    fn deref(&self) -> &'static str {
        (self.0)()
    }
}

impl fmt::Display for SqlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Returns a literal statement in the schema of this process, as `&'static str`.
#[macro_export]
macro_rules! in_schema {
    ($text:literal) => {{
        static TEXT: $crate::SchemaText = $crate::SchemaText::new($text);
        TEXT.get()
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted() -> Schema {
        "My-Events".parse().unwrap()
    }

    #[test]
    fn the_default_schema_copies_nothing() {
        let text = "SELECT FROM public.app_outbox";
        assert!(matches!(Schema::PUBLIC.qualify(text), Cow::Borrowed(same) if same == text));
        let named: Schema = "public".parse().unwrap();
        assert!(named.is_public() && matches!(named.qualify(text), Cow::Borrowed(_)));
    }

    #[test]
    fn every_form_that_qualifies_an_own_object_is_adapted() {
        for (source, expected) in [
            ("SELECT FROM public.app_outbox", "SELECT FROM \"My-Events\".app_outbox"),
            ("public.app_inbox_take($1)", "\"My-Events\".app_inbox_take($1)"),
            ("VIEW public.app_event_ledger", "VIEW \"My-Events\".app_event_ledger"),
            ("to_regclass('public.app_outbox')", "to_regclass('\"My-Events\".app_outbox')"),
            ("(events public.app_inbox_event[])", "(events \"My-Events\".app_inbox_event[])"),
            ("format('TABLE public.%I', a)", "format('TABLE \"My-Events\".%I', a)"),
            ("'public'::regnamespace", "'\"My-Events\"'::regnamespace"),
            ("to_regnamespace('public')", "to_regnamespace('\"My-Events\"')"),
            ("'SCHEMA public'", "'SCHEMA \"My-Events\"'"),
            ("GRANT USAGE ON SCHEMA public TO a;", "GRANT USAGE ON SCHEMA \"My-Events\" TO a;"),
        ] {
            assert_eq!(quoted().qualify(source), expected);
        }
    }

    #[test]
    fn nothing_else_named_public_is_touched() {
        for text in [
            "SELECT FROM public.orders",
            "SELECT FROM \"public\".app_outbox",
            "other.public.app_outbox",
            "not_public.app_outbox",
            "republic.app_outbox",
            "FROM publication.app_outbox",
            "CASE role WHEN 'public' THEN 'PUBLIC' END",
            "REVOKE ALL ON TABLE a FROM PUBLIC, public",
            "the schema public is served",
            "ON SCHEMA public_data TO a",
            "'proto_version', '1', 'publication_names', $2",
        ] {
            assert_eq!(quoted().qualify(text), text);
        }
    }

    #[test]
    fn a_plain_name_needs_no_quotes() {
        let plain: Schema = "app_events".parse().unwrap();
        assert_eq!(plain.qualify("a public.app_outbox, b"), "a app_events.app_outbox, b");
        assert_eq!(plain.table("app_outbox").to_string(), "app_events.app_outbox");
        assert_eq!(quoted().table("app_outbox").to_string(), "\"My-Events\".app_outbox");
    }

    #[test]
    fn a_name_that_no_literal_or_format_string_can_contain_is_refused() {
        let too_long = "a".repeat(64);
        for name in [
            "",
            "a'b",
            "a\"b",
            "a\\b",
            "a$b",
            "a%b",
            "a\nb",
            "pg_mine",
            "information_schema",
            &too_long,
        ] {
            assert!(name.parse::<Schema>().is_err(), "{name:?} was accepted");
        }
        for name in ["My-Events", "select", "ü x", "app_events"] {
            assert_eq!(name.parse::<Schema>().unwrap().name(), name);
        }
    }
}
