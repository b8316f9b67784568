//! Splits the headers object into names and values.
//!
//! A value keeps its text. Parsed as `f64`, a number would lose digits.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Deserializer;

const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The members by name, with the JSON text of each value. `null` has no members. Of equal names the
/// last one counts.
///
/// # Errors
///
/// The error names no value.
pub(crate) fn members(json: &str) -> Result<BTreeMap<String, &str>, String> {
    let mut found = BTreeMap::new();
    let text = json.trim_matches(WHITESPACE);
    if text == "null" {
        return Ok(found);
    }
    let Some(mut rest) = text.strip_prefix('{') else { return Err(not_an_object(json)) };
    rest = rest.trim_start_matches(WHITESPACE);
    if rest == "}" {
        return Ok(found);
    }
    loop {
        let (name, _, after_name) = first::<String>(rest)?;
        let (_, value, behind) = first::<IgnoredAny>(after_mark(after_name, ':')?)?;
        found.insert(name, value);
        if behind == "}" {
            return Ok(found);
        }
        rest = after_mark(behind, ',')?;
    }
}

/// Returns the text of a string value. Any other value is returned as JSON text. Returns `None` for
/// null.
///
/// # Errors
///
/// The string contains an escape of half a character.
pub(crate) fn text_of(value: &str) -> Result<Option<Cow<'_, str>>, String> {
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match inner {
        None if value == "null" => Ok(None),
        None => Ok(Some(Cow::Borrowed(value))),
        Some(plain) if !plain.contains('\\') => Ok(Some(Cow::Borrowed(plain))),
        Some(_) => serde_json::from_str(value).map(Some).map_err(|error| error.to_string()),
    }
}

/// Parses the first value of the text. Returns it, its own text, and the rest without whitespace.
fn first<'a, T: Deserialize<'a>>(text: &'a str) -> Result<(T, &'a str, &'a str), String> {
    let mut values = Deserializer::from_str(text).into_iter::<T>();
    let value = match values.next() {
        Some(value) => value.map_err(|error| unreadable(&error.to_string()))?,
        None => return Err(unreadable("it ends early")),
    };
    let (own, rest) = text.split_at(values.byte_offset());
    Ok((value, own.trim_start_matches(WHITESPACE), rest.trim_start_matches(WHITESPACE)))
}

fn after_mark(text: &str, mark: char) -> Result<&str, String> {
    text.strip_prefix(mark).ok_or_else(|| unreadable(&format!("a {mark:?} is missing")))
}

/// Describes a text that is not JSON. The parser's error names no value.
pub(crate) fn unreadable(error: &str) -> String {
    format!("the headers column cannot be read: {error}")
}

fn not_an_object(json: &str) -> String {
    match serde_json::from_str::<IgnoredAny>(json) {
        Ok(_) => "the headers column is not a JSON object".to_owned(),
        Err(error) => unreadable(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Vec<(String, Option<String>)> {
        let text = |value| text_of(value).unwrap().map(Cow::into_owned);
        members(json).unwrap().into_iter().map(|(name, value)| (name, text(value))).collect()
    }

    #[test]
    fn values_keep_their_text_and_strings_lose_their_quotes() {
        let json = r#" { "a" : "x" ,"b":"\u00e9\"","c": 1.10 , "d":{"k": [1e400, "}"]}, "e":null,"f":true } "#;
        let expected = [
            ("a", Some("x")),
            ("b", Some("\u{e9}\"")),
            ("c", Some("1.10")),
            ("d", Some(r#"{"k": [1e400, "}"]}"#)),
            ("e", None),
            ("f", Some("true")),
        ];
        let expected: Vec<_> =
            expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))).into();
        assert_eq!(read(json), expected);
        assert_eq!(read("{}"), []);
        assert_eq!(read("null"), []);
        assert_eq!(read(r#"{"a":1,"a":2}"#), [("a".to_owned(), Some("2".to_owned()))]);
    }

    #[test]
    fn a_text_that_is_not_a_json_object_is_refused() {
        for json in [
            "",
            "[1]",
            "{",
            "{\"a\"}",
            "{\"a\":1",
            "{\"a\":1,}",
            "{\"a\":1} x",
            "{1:2}",
            "{\"a\":1 \"b\":2}",
        ] {
            assert!(members(json).is_err(), "{json}");
        }
        assert!(text_of(r#""\ud800""#).is_err(), "half of a character");
    }
}
