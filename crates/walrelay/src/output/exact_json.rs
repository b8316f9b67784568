//! JSON of users, shown with every number as it is written: a parsed number would lose digits.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// Returns data as JSON without whitespace, other text as a JSON string, and binary data as its size.
pub(crate) fn data_json(data: &[u8]) -> Box<RawValue> {
    match std::str::from_utf8(data) {
        Ok(text) => exact(text).unwrap_or_else(|| raw(&text)),
        Err(_) => raw(&BinaryData { binary_bytes: data.len() }),
    }
}

/// Data that are no text.
#[derive(Serialize)]
struct BinaryData {
    binary_bytes: usize,
}

/// Returns the value of a null, a string or another small value as JSON.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Returns JSON without its whitespace. `None` for text that is not JSON.
fn exact(text: &str) -> Option<Box<RawValue>> {
    serde_json::from_str::<&RawValue>(text).ok()?;
    let mut compact = String::with_capacity(text.len());
    for (character, place) in JsonCharacters::of(text) {
        if place != CharacterPlace::Outside || !character.is_ascii_whitespace() {
            compact.push(character);
        }
    }
    RawValue::from_string(compact).ok()
}

/// Returns the text of a JSON string, or any other value with line breaks and indentation.
pub(crate) fn readable(json: &RawValue) -> String {
    match serde_json::from_str(json.get()) {
        Ok(text) => text,
        Err(_) => indented(json.get()),
    }
}

fn push_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.push_str(&"  ".repeat(depth));
}

/// Indents JSON without whitespace.
fn indented(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut characters = JsonCharacters::of(json).peekable();
    while let Some((character, place)) = characters.next() {
        let next = characters.peek().map(|(next, _)| *next);
        match (place, character) {
            (CharacterPlace::Outside, '{' | '[') => {
                text.push(character);
                if !matches!(next, Some('}' | ']')) {
                    depth += 1;
                    push_line(&mut text, depth);
                }
            }
            (CharacterPlace::Outside, '}' | ']') => {
                if !text.ends_with(['{', '[']) {
                    depth = depth.saturating_sub(1);
                    push_line(&mut text, depth);
                }
                text.push(character);
            }
            (CharacterPlace::Outside, ',') => {
                text.push(character);
                push_line(&mut text, depth);
            }
            (CharacterPlace::Outside, ':') => text.push_str(": "),
            (CharacterPlace::Outside | CharacterPlace::String | CharacterPlace::Escape, _) => {
                text.push(character);
            }
        }
    }
    text
}

/// Where a character of JSON is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CharacterPlace {
    /// Between strings.
    Outside,
    /// Within a string, its quotes included.
    String,
    /// Within a string, behind a backslash.
    Escape,
}

impl CharacterPlace {
    /// Returns the place of the next character, and whether this one ends a string.
    const fn enter(self, character: char) -> (Self, bool) {
        match (self, character) {
            (Self::Outside, '"') | (Self::Escape, _) => (Self::String, false),
            (Self::Outside, _) => (Self::Outside, false),
            (Self::String, '\\') => (Self::Escape, false),
            (Self::String, '"') => (Self::Outside, true),
            (Self::String, _) => (Self::String, false),
        }
    }
}

/// The characters of valid JSON, each with its place.
struct JsonCharacters<'a> {
    rest: std::str::Chars<'a>,
    place: CharacterPlace,
}

impl<'a> JsonCharacters<'a> {
    fn of(json: &'a str) -> Self {
        Self { rest: json.chars(), place: CharacterPlace::Outside }
    }
}

impl Iterator for JsonCharacters<'_> {
    type Item = (char, CharacterPlace);

    fn next(&mut self) -> Option<(char, CharacterPlace)> {
        let character = self.rest.next()?;
        let (next, ends_string) = self.place.enter(character);
        self.place = next;
        Some((character, if ends_string { CharacterPlace::String } else { next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_every_digit_and_strings_every_space() {
        let json = r#" { "total" : 123456789012345678901234567890, "huge": 1e400,
            "text": "a \" b \\", "list": [ 0.10000000000000000555, {} , [ ] ] } "#;
        let exact = r#"{"total":123456789012345678901234567890,"huge":1e400,"text":"a \" b \\","list":[0.10000000000000000555,{},[]]}"#;
        assert_eq!(data_json(json.as_bytes()).get(), exact);
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        assert_eq!(data_json(deep.as_bytes()).get(), deep);
    }

    #[test]
    fn text_that_is_not_json_is_a_string_and_binary_data_are_their_size() {
        for (data, shown) in [
            (&b"plain"[..], r#""plain""#),
            (b"1 2", r#""1 2""#),
            (b"", r#""""#),
            (b"\"quoted\"", r#""quoted""#),
            (&[0xff, 0xfe], r#"{"binary_bytes":2}"#),
        ] {
            assert_eq!(data_json(data).get(), shown);
        }
    }

    #[test]
    fn a_person_reads_json_in_lines_and_a_string_as_its_text() {
        let shown = |json: &str| readable(&data_json(json.as_bytes()));
        assert_eq!(
            shown(r#"{"a":[1,{"b":"x,{:"}],"c":{},"d":[]}"#),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x,{:\"\n    }\n  ],\n  \"c\": {},\n  \"d\": []\n}"
        );
        assert_eq!(shown("plain"), "plain");
        assert_eq!(shown(r#""a\nb""#), "a\nb");
    }
}
