//! The filter of a subscription, which selects messages by their attributes.
//!
//! ```text
//! filter    = term { "AND" term } | term { "OR" term }      both kinds only with parentheses
//! term      = { "NOT" | "-" } ( condition | "(" filter ")" )
//! condition = "attributes:" name                            the attribute exists
//!           | "attributes." name ( "=" | "!=" ) string
//!           | "hasPrefix(" "attributes." name "," string ")"
//! name      = letters, digits, "-" and "_" | string
//! ```
//!
//! Source: "Filter messages from a subscription" of Pub/Sub's documentation. The operators are
//! upper case. Names and values are compared exactly. An absent attribute differs from every value.

use std::error::Error;
use std::fmt;

const FILTER_BYTES_MAX: usize = 256;

/// A filter of a subscription, parsed: conditions on attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionFilter(Expression);

/// The text is not a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseFilterError(String);

impl fmt::Display for ParseFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ParseFilterError {}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    Has(String),
    Equals(String, String),
    HasPrefix(String, String),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl SubscriptionFilter {
    /// Parses a filter. Returns `None` for the empty filter, which matches every message.
    ///
    /// # Errors
    ///
    /// The text is longer than 256 bytes or no filter. The error names the byte.
    pub fn parse(text: &str) -> Result<Option<Self>, ParseFilterError> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(ParseFilterError(format!(
                "the filter has {} bytes; at most {FILTER_BYTES_MAX} are allowed",
                text.len()
            )));
        }
        if text.trim().is_empty() {
            return Ok(None);
        }
        let mut parser = Parser { text, at: 0 };
        let parsed = parser.filter().and_then(|expression| match parser.rest() {
            "" => Ok(expression),
            _ => Err(parser.expected("AND, OR or the end")),
        });
        let refused = |problem| ParseFilterError(format!("filter {text:?}: {problem}"));
        parsed.map(|expression| Some(Self(expression))).map_err(refused)
    }

    /// Returns whether the filter depends on this attribute.
    #[must_use]
    pub fn depends_on(&self, attribute: &str) -> bool {
        self.0.depends_on(attribute)
    }

    /// Returns whether a message with these attributes passes the filter. If a name occurs several
    /// times, the last value counts, as in every reader of protobuf maps.
    #[must_use]
    pub fn matches(&self, attributes: &[(&str, &str)]) -> bool {
        self.0.holds(attributes)
    }
}

impl Expression {
    fn depends_on(&self, attribute: &str) -> bool {
        match self {
            Self::Has(name) | Self::Equals(name, _) | Self::HasPrefix(name, _) => name == attribute,
            Self::Not(inner) => inner.depends_on(attribute),
            Self::All(inner) | Self::Any(inner) => {
                inner.iter().any(|one| one.depends_on(attribute))
            }
        }
    }

    fn holds(&self, attributes: &[(&str, &str)]) -> bool {
        let value = |name: &str| {
            attributes.iter().rev().find(|(key, _)| *key == name).map(|(_, value)| *value)
        };
        match self {
            Self::Has(name) => value(name).is_some(),
            Self::Equals(name, expected) => value(name) == Some(expected),
            Self::HasPrefix(name, prefix) => {
                value(name).is_some_and(|value| value.starts_with(prefix))
            }
            Self::Not(inner) => !inner.holds(attributes),
            Self::All(inner) => inner.iter().all(|one| one.holds(attributes)),
            Self::Any(inner) => inner.iter().any(|one| one.holds(attributes)),
        }
    }
}

/// A parser that reads from left to right. [`FILTER_BYTES_MAX`] limits the depth of the recursion.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn filter(&mut self) -> Result<Expression, String> {
        let first = self.term()?;
        let mut terms = vec![first];
        let operator = match () {
            () if self.takes_word("AND") => "AND",
            () if self.takes_word("OR") => "OR",
            () => return Ok(terms.remove(0)),
        };
        terms.push(self.term()?);
        while self.takes_word(operator) {
            terms.push(self.term()?);
        }
        if self.takes_word("AND") || self.takes_word("OR") {
            return Err("AND and OR are mixed: put one of them in parentheses".to_owned());
        }
        Ok(if operator == "AND" { Expression::All(terms) } else { Expression::Any(terms) })
    }

    fn term(&mut self) -> Result<Expression, String> {
        if self.takes_word("NOT") || self.takes("-") {
            return Ok(Expression::Not(Box::new(self.term()?)));
        }
        if self.takes("(") {
            let inner = self.filter()?;
            self.require(")")?;
            return Ok(inner);
        }
        if self.takes("hasPrefix") {
            self.require("(")?;
            self.require("attributes.")?;
            let name = self.name()?;
            self.require(",")?;
            let prefix = self.string()?;
            self.require(")")?;
            return Ok(Expression::HasPrefix(name, prefix));
        }
        if self.takes("attributes:") {
            return Ok(Expression::Has(self.name()?));
        }
        if !self.takes("attributes.") {
            return Err(self.expected("attributes:, attributes., hasPrefix(, NOT or ("));
        }
        let name = self.name()?;
        if self.takes("!=") {
            let equals = Expression::Equals(name, self.string()?);
            return Ok(Expression::Not(Box::new(equals)));
        }
        self.require("=")?;
        Ok(Expression::Equals(name, self.string()?))
    }

    fn name(&mut self) -> Result<String, String> {
        // No space is allowed in front of a name.
        if self.text[self.at..].starts_with('"') {
            return self.string();
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = &self.text[self.at..];
        let name = &rest[..rest.find(|c| !is_plain(c)).unwrap_or(rest.len())];
        if name.is_empty() {
            return Err(self.expected("the name of an attribute"));
        }
        self.at += name.len();
        Ok(name.to_owned())
    }

    fn string(&mut self) -> Result<String, String> {
        if !self.takes("\"") {
            return Err(self.expected("a string in double quotes"));
        }
        let mut value = Vec::new();
        loop {
            let character = self.character().ok_or("a string has no closing quote")?;
            match character {
                '"' => break,
                '\\' => value.extend(self.escape()?),
                other => value.extend(other.to_string().into_bytes()),
            }
        }
        String::from_utf8(value).map_err(|_| "a string is not valid UTF-8".to_owned())
    }

    /// Parses an escape sequence after its backslash into bytes. Hexadecimal and octal escapes give
    /// single bytes.
    fn escape(&mut self) -> Result<Vec<u8>, String> {
        let from = self.at;
        let character = self.character().ok_or("a string has no closing quote")?;
        let byte = |code: u32| u8::try_from(code).ok().map(|byte| vec![byte]);
        let text = |code: u32| char::from_u32(code).map(|c| c.to_string().into_bytes());
        let escaped = match character {
            '"' | '\'' | '\\' | '?' | '`' => text(character.into()),
            'a' => byte(0x07),
            'b' => byte(0x08),
            't' => byte(0x09),
            'n' => byte(0x0A),
            'v' => byte(0x0B),
            'f' => byte(0x0C),
            'r' => byte(0x0D),
            'x' | 'X' => self.digits(2, 16).and_then(byte),
            'u' => self.digits(4, 16).and_then(text),
            'U' => self.digits(8, 16).and_then(text),
            '0'..='7' => {
                self.at = from;
                self.digits(3, 8).and_then(byte)
            }
            _ => None,
        };
        escaped.ok_or_else(|| format!("byte {from}: an unknown escape sequence"))
    }

    fn digits(&mut self, count: usize, radix: u32) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + count)?;
        self.at += count;
        u32::from_str_radix(digits, radix).ok()
    }

    fn character(&mut self) -> Option<char> {
        let character = self.text[self.at..].chars().next()?;
        self.at += character.len_utf8();
        Some(character)
    }

    /// Returns the unread text after spaces.
    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    /// Reads an operator that is a whole word.
    fn takes_word(&mut self, word: &str) -> bool {
        let rest = self.rest().strip_prefix(word);
        let found = rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()));
        if found {
            self.at += word.len();
        }
        found
    }

    fn require(&mut self, symbol: &str) -> Result<(), String> {
        match self.takes(symbol) {
            true => Ok(()),
            false => Err(self.expected(symbol)),
        }
    }

    fn expected(&mut self, what: &str) -> String {
        match self.rest() {
            "" => format!("it ends where {what} is expected"),
            _ => format!("byte {}: expected {what}", self.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(filter: &str, attributes: &[(&str, &str)]) -> bool {
        let filter = SubscriptionFilter::parse(filter).unwrap();
        filter.is_none_or(|filter| filter.matches(attributes))
    }

    #[test]
    fn conditions_look_at_one_attribute() {
        for (filter, attributes, expected) in [
            ("", &[][..], true),
            ("  ", &[], true),
            ("attributes:a", &[("a", "")], true),
            ("attributes:a", &[("A", "")], false),
            ("attributes:\"iana.org/tag\"", &[("iana.org/tag", "en")], true),
            ("attributes.a = \"1\"", &[("a", "1")], true),
            ("attributes.a=\"1\"", &[("a", "2")], false),
            ("attributes.a = \"\"", &[], false),
            ("attributes.ce-type = \"x\"", &[("ce-type", "x")], true),
            ("attributes.\"a b\" = \"1\"", &[("a b", "1")], true),
            ("attributes.a != \"1\"", &[("a", "1")], false),
            ("attributes.a != \"1\"", &[("a", "2")], true),
            ("attributes.a != \"1\"", &[], true),
            ("hasPrefix(attributes.a, \"Or\")", &[("a", "Order")], true),
            ("hasPrefix( attributes.a , \"Or\" )", &[("a", "order")], false),
            ("hasPrefix(attributes.a, \"\")", &[], false),
            ("attributes.a = \"2\"", &[("a", "1"), ("a", "2")], true),
        ] {
            assert_eq!(matches(filter, attributes), expected, "{filter} on {attributes:?}");
        }
    }

    #[test]
    fn operators_combine_conditions() {
        let a = &[("a", "1")][..];
        let both = &[("a", "1"), ("b", "2")][..];
        for (filter, attributes, expected) in [
            ("attributes:a AND attributes:b", both, true),
            ("attributes:a AND attributes:b AND attributes:c", both, false),
            ("attributes:a OR attributes:b", a, true),
            ("attributes:b OR attributes:c OR attributes:a", a, true),
            ("NOT attributes:a", a, false),
            ("-attributes:b", a, true),
            ("NOT NOT attributes:a", a, true),
            ("NOT attributes:b AND attributes:a", a, true),
            ("NOT (attributes:b OR attributes:a)", a, false),
            ("attributes:a AND (attributes:b OR attributes.a = \"1\")", a, true),
            ("((attributes:a))AND(attributes:b)", both, true),
            ("attributes:a-AND", &[("a-AND", "")], true),
        ] {
            assert_eq!(matches(filter, attributes), expected, "{filter} on {attributes:?}");
        }
    }

    #[test]
    fn strings_may_have_escapes() {
        for (text, value) in [
            (r#"a\"b\\c"#, "a\"b\\c"),
            (r"\x41\101\u00fc\U0001F600\t", "AAü😀\t"),
            (r"\xc3\xbc", "ü"),
        ] {
            assert!(matches(&format!("attributes.a = \"{text}\""), &[("a", value)]), "{text}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in [
            "nonsense(",
            "attributes",
            "attributes:",
            "attributes: a",
            "attributes.a",
            "attributes.a =",
            "attributes.a = 1",
            "attributes.a = \"1",
            "attributes.a > \"1\"",
            "attributes.a = attributes.b",
            "\"1\" = attributes.a",
            "attributes.a = \"\\q\"",
            "attributes.a = \"\\xff\"",
            "attributes.a = \"\\777\"",
            "attributes.a = \"\\ud800\"",
            "attributes:ü",
            "attributes:\\u00fc",
            "attributes:a attributes:b",
            "attributes:a AND",
            "attributes:a and attributes:b",
            "not attributes:a",
            "attributes:a AND attributes:b OR attributes:c",
            "(attributes:a",
            "attributes:a)",
            "()",
            "hasPrefix(attributes.a)",
            "hasPrefix(attributes.a, \"a\", \"b\")",
            "hasPrefix(attributes.a, attributes.b)",
            "data = \"a\"",
        ] {
            assert!(SubscriptionFilter::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_filter_may_have_256_bytes() {
        let filter = |bytes: usize| format!("attributes.a = \"{}\"", "x".repeat(bytes - 17));
        assert!(SubscriptionFilter::parse(&filter(256)).is_ok());
        assert!(SubscriptionFilter::parse(&filter(257)).is_err());
        // Deeply nested, but harmless to the stack.
        assert!(SubscriptionFilter::parse(&"(".repeat(256)).is_err());
        assert!(SubscriptionFilter::parse(&format!("{}attributes:a", "-".repeat(244))).is_ok());
    }
}
