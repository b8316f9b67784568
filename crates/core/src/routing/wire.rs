//! The rules of the protobuf wire format that a `PubsubMessage` needs.
//!
//! Source: protobuf.dev "Encoding". The field numbers are from google/pubsub/v1/pubsub.proto.

use std::ops::Range;

/// `PublishRequest.messages`, length-delimited.
pub(crate) const REQUEST_MESSAGES: u8 = 2 << 3 | 2;
/// `PubsubMessage.data`, length-delimited.
pub(crate) const MESSAGE_DATA: u8 = 1 << 3 | 2;
/// `PubsubMessage.attributes`, a map with one length-delimited field per entry.
pub(crate) const MESSAGE_ATTRIBUTES: u8 = 2 << 3 | 2;
/// `PubsubMessage.ordering_key`, length-delimited.
pub(crate) const MESSAGE_ORDERING_KEY: u8 = 5 << 3 | 2;
/// Key of a map entry.
pub(crate) const ENTRY_KEY: u8 = 1 << 3 | 2;
/// Value of a map entry.
pub(crate) const ENTRY_VALUE: u8 = 2 << 3 | 2;

/// The size of `value` as a varint, in bytes.
pub(crate) const fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// The size of a length-delimited field with a one-byte tag, in bytes.
pub(crate) const fn field_len(content: usize) -> usize {
    1 + varint_len(content) + content
}

/// Appends `value` as a varint.
pub(crate) fn put_varint(buffer: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        buffer.push(low_seven_bits(value) | 0x80);
        value >>= 7;
    }
    buffer.push(low_seven_bits(value));
}

const fn low_seven_bits(value: usize) -> u8 {
    value.to_le_bytes()[0] & 0x7F
}

/// Appends a length-delimited field.
pub(crate) fn put_field(buffer: &mut Vec<u8>, tag: u8, content: &[u8]) {
    buffer.push(tag);
    put_varint(buffer, content.len());
    buffer.extend_from_slice(content);
}

/// Converts an offset within a message buffer. Postgres limits rows far below 4 GiB.
pub(crate) fn offset(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("a message of {value} bytes cannot exist"))
}

/// The bytes break the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The length-delimited fields of an encoded message, each with its tag and the range of its
/// content.
///
/// The iterator skips fields of other kinds and ends after the first malformed field.
pub(crate) struct Fields<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) const fn of(body: &'a [u8]) -> Self {
        Self { body, at: 0 }
    }

    fn step(&mut self) -> Option<Field> {
        let Self { body, at } = self;
        let tag = varint(body, at)?;
        let len = match tag & 7 {
            0 => {
                varint(body, at)?;
                0
            }
            1 => 8,
            2 => varint(body, at)?,
            5 => 4,
            _ => return None,
        };
        let start = *at;
        *at = start.checked_add(len).filter(|end| *end <= body.len())?;
        Some((tag, start..*at))
    }
}

/// A tag, and the range of the content.
type Field = (usize, Range<usize>);

impl Iterator for Fields<'_> {
    type Item = Result<Field, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.body.len() {
            match self.step() {
                Some((tag, _)) if tag & 7 != 2 => {}
                Some(field) => return Some(Ok(field)),
                None => {
                    self.at = self.body.len();
                    return Some(Err(Malformed));
                }
            }
        }
        None
    }
}

/// The key and value of an attribute, from the content of its field. Encoders omit empty texts, so
/// a missing key or value is empty.
pub(crate) fn attribute(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut key, mut value) = ("", "");
    for field in Fields::of(entry) {
        let (tag, range) = field?;
        let text = match (tag == usize::from(ENTRY_KEY), tag == usize::from(ENTRY_VALUE)) {
            (true, _) => &mut key,
            (_, true) => &mut value,
            (false, false) => continue,
        };
        *text = std::str::from_utf8(&entry[range]).map_err(|_| Malformed)?;
    }
    Ok((key, value))
}

/// The value of an attribute, from the content of its field, if the attribute has this name.
pub(crate) fn value_of<'a>(entry: &'a [u8], name: &str) -> Option<&'a str> {
    let (mut is_it, mut value) = (name.is_empty(), "");
    for field in Fields::of(entry) {
        let (tag, range) = field.ok()?;
        if tag == usize::from(ENTRY_KEY) {
            is_it = &entry[range] == name.as_bytes();
            // Encoders write the name first.
            if !is_it {
                return None;
            }
        } else if tag == usize::from(ENTRY_VALUE) {
            value = std::str::from_utf8(&entry[range]).ok()?;
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
    for field in Fields::of(body) {
        let (tag, range) = field?;
        if tag == usize::from(MESSAGE_ATTRIBUTES) {
            attribute(&body[range])?;
        } else if tag == usize::from(MESSAGE_ORDERING_KEY) {
            std::str::from_utf8(&body[range.clone()]).map_err(|_| Malformed)?;
            key = range;
        }
    }
    Ok(key)
}

/// Finds the end of the fields that have content, and the tags and lengths of the fields announced
/// after them. Returns `None` if no field is announced or the bytes are malformed.
pub(crate) fn announced(body: &[u8]) -> Option<(usize, Vec<(usize, usize)>)> {
    let mut fields = Fields::of(body);
    let mut end = 0;
    while fields.next()?.is_ok() {
        end = fields.at;
    }
    let mut at = end;
    let mut announced = Vec::new();
    while at < body.len() {
        let (tag, len) = (varint(body, &mut at)?, varint(body, &mut at)?);
        if tag & 7 != 2 || len <= body.len() - at {
            return None;
        }
        announced.push((tag, len));
    }
    Some((end, announced))
}

fn varint(body: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0usize;
    for shift in (0..63).step_by(7) {
        let byte = *body.get(*at)?;
        *at += 1;
        value |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_takes_the_length_it_says() {
        for value in [0, 1, 127, 128, 16_383, 16_384, 10_000_000, u32::MAX as usize] {
            let mut buffer = Vec::new();
            put_varint(&mut buffer, value);
            assert_eq!(buffer.len(), varint_len(value), "{value}");
            let mut at = 0;
            assert_eq!(varint(&buffer, &mut at), Some(value));
        }
    }

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
