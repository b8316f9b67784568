//! The JSON of `-o json`: one serializable struct per command, documented in
//! docs/reference/json.md.

use std::io;

use serde::Serialize;

use crate::error::Error;

/// Formats the result of a command as indented JSON.
pub(crate) fn json_text(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(failed)
}

/// Formats a result as JSON in one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(failed)
}

fn failed(source: serde_json::Error) -> Error {
    let (action, source) = ("write JSON".to_owned(), io::Error::other(source));
    Error::Io { action, source }
}
