//! The rules of the protobuf wire format that a `PubsubMessage` needs.
//!
//! Source: protobuf.dev "Encoding". The field numbers are from google/pubsub/v1/pubsub.proto.

use std::ops::Range;

use walrelay_protobuf::{Fields, Malformed, Value, take_varint};

/// `PublishRequest.messages`.
pub(crate) const REQUEST_MESSAGES: u8 = 2;
/// `PubsubMessage.data`.
pub(crate) const MESSAGE_DATA: u8 = 1;
/// `PubsubMessage.attributes`, a map with one field per entry.
pub(crate) const MESSAGE_ATTRIBUTES: u8 = 2;
/// `PubsubMessage.ordering_key`.
pub(crate) const MESSAGE_ORDERING_KEY: u8 = 5;
pub(crate) const ENTRY_KEY: u8 = 1;
pub(crate) const ENTRY_VALUE: u8 = 2;

/// Converts an offset within a message buffer. Postgres limits rows far below 4 GiB.
pub(crate) fn offset(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("a message of {value} bytes cannot exist"))
}

/// The contents of the length-delimited fields of an encoded message, each with its number.
pub(crate) fn contents(
    message: &[u8],
) -> impl Iterator<Item = Result<(u8, &[u8]), Malformed>> + Clone {
    Fields::of(message).filter_map(|field| match field {
        // Every known number is below 16.
        Ok((number, Value::Bytes(content))) => Some(Ok((u8::try_from(number).ok()?, content))),
        Ok((_, Value::Number(_) | Value::Fixed(_))) => None,
        Err(malformed) => Some(Err(malformed)),
    })
}

/// The key and value of an attribute, from the content of its field. Encoders omit empty texts, so
/// a missing key or value is empty.
pub(crate) fn attribute(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut key, mut value) = ("", "");
    for field in contents(entry) {
        let (number, content) = field?;
        let text = match number {
            ENTRY_KEY => &mut key,
            ENTRY_VALUE => &mut value,
            _ => continue,
        };
        *text = std::str::from_utf8(content).map_err(|_| Malformed)?;
    }
    Ok((key, value))
}

/// The value of an attribute, from the content of its field, if the attribute has this name.
pub(crate) fn value_of<'a>(entry: &'a [u8], name: &str) -> Option<&'a str> {
    let (mut is_it, mut value) = (name.is_empty(), "");
    for field in contents(entry) {
        let (number, content) = field.ok()?;
        if number == ENTRY_KEY {
            is_it = content == name.as_bytes();
            // Encoders write the name first.
            if !is_it {
                return None;
            }
        } else if number == ENTRY_VALUE {
            value = std::str::from_utf8(content).ok()?;
        }
    }
    is_it.then_some(value)
}

/// Checks an encoded `PubsubMessage` and returns the range of its ordering key, empty if it has
/// none.
///
/// This reads everything that a view of a [`Message`](crate::Message) reads, so that views cannot
/// fail.
pub(crate) fn check(body: &[u8]) -> Result<Range<usize>, Malformed> {
    let mut key = 0..0;
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next() {
        match field? {
            (number, Value::Bytes(entry)) if number == u64::from(MESSAGE_ATTRIBUTES) => {
                attribute(entry)?;
            }
            (number, Value::Bytes(text)) if number == u64::from(MESSAGE_ORDERING_KEY) => {
                std::str::from_utf8(text).map_err(|_| Malformed)?;
                let end = body.len() - fields.rest().len();
                key = end - text.len()..end;
            }
            (_, Value::Bytes(_) | Value::Number(_) | Value::Fixed(_)) => {}
        }
    }
    Ok(key)
}

/// A field without its content: its number, and the length that it announces.
pub(crate) type AnnouncedField = (u8, usize);

/// Finds the end of the fields that have content, and the fields announced after them. Returns
/// `None` if no field is announced or the bytes are malformed.
pub(crate) fn announced(body: &[u8]) -> Option<(usize, Vec<AnnouncedField>)> {
    let mut fields = Fields::of(body);
    let mut rest = body;
    while fields.next()?.is_ok() {
        rest = fields.rest();
    }
    let end = body.len() - rest.len();
    let mut announced = Vec::new();
    while !rest.is_empty() {
        let tag = take_varint(&mut rest).ok()?;
        let length = usize::try_from(take_varint(&mut rest).ok()?).ok()?;
        if tag & 7 != 2 || length <= rest.len() {
            return None;
        }
        announced.push((u8::try_from(tag >> 3).ok()?, length));
    }
    Some((end, announced))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ordering_key_is_found_behind_other_fields() {
        // data "hi", publish_time (field 4, empty), ordering key "k1".
        let body = [0x0A, 2, b'h', b'i', 0x22, 0, 0x2A, 2, b'k', b'1'];
        assert_eq!(check(&body), Ok(8..10));
        assert_eq!(check(&body[..6]), Ok(0..0));
        assert_eq!(check(&body[..9]), Err(Malformed));
    }

    #[test]
    fn fields_of_other_kinds_are_stepped_over() {
        // A varint, 8 fixed bytes, 4 fixed bytes, then the ordering key "k".
        let body = [8, 0x96, 1, 9, 1, 2, 3, 4, 5, 6, 7, 8, 13, 1, 2, 3, 4, 0x2A, 1, b'k'];
        assert_eq!(check(&body), Ok(19..20));
        for end in [2, 5, 11, 13, 16] {
            assert_eq!(check(&body[..end]), Err(Malformed), "cut at {end}");
        }
        assert_eq!(check(&[3, 0]), Err(Malformed), "a group");
    }

    #[test]
    fn attributes_that_are_no_text_are_malformed() {
        assert_eq!(check(&[0x12, 3, 0x0A, 1, 0xFF]), Err(Malformed));
        assert_eq!(check(&[0x12, 3, 0x0A, 2, b'k']), Err(Malformed));
        assert_eq!(check(&[0x12, 3, 0x0A, 1, b'k']), Ok(0..0));
    }
}
