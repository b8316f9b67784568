//! The few rules of the protobuf wire format that a `PubsubMessage` needs.
//!
//! Source: protobuf.dev "Encoding"; field numbers from google/pubsub/v1/pubsub.proto.

use std::ops::Range;

/// `PublishRequest.messages`, length-delimited.
pub(crate) const REQUEST_MESSAGES: u8 = 2 << 3 | 2;
/// `PubsubMessage.data`, length-delimited.
pub(crate) const MESSAGE_DATA: u8 = 1 << 3 | 2;
/// `PubsubMessage.attributes`, a map: one length-delimited entry each.
pub(crate) const MESSAGE_ATTRIBUTES: u8 = 2 << 3 | 2;
/// `PubsubMessage.ordering_key`, length-delimited.
pub(crate) const MESSAGE_ORDERING_KEY: u8 = 5 << 3 | 2;
/// Key of a map entry.
pub(crate) const ENTRY_KEY: u8 = 1 << 3 | 2;
/// Value of a map entry.
pub(crate) const ENTRY_VALUE: u8 = 2 << 3 | 2;

/// Bytes that `value` takes as a varint.
pub(crate) const fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Bytes of a length-delimited field with a one-byte tag.
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

/// An offset within a message buffer. Rows are bounded far below 4 GiB by Postgres itself.
pub(crate) fn offset(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("a message of {value} bytes cannot exist"))
}

/// Where the ordering key stands in an encoded `PubsubMessage`; an empty range if it has none.
/// `None` if the bytes are not one.
pub(crate) fn ordering_key(body: &[u8]) -> Option<Range<usize>> {
    let mut key = 0..0;
    let mut at = 0;
    while at < body.len() {
        let tag = varint(body, &mut at)?;
        match tag & 7 {
            0 => {
                varint(body, &mut at)?;
            }
            1 => at = at.checked_add(8).filter(|end| *end <= body.len())?,
            2 => {
                let len = varint(body, &mut at)?;
                let end = at.checked_add(len).filter(|end| *end <= body.len())?;
                if tag == usize::from(MESSAGE_ORDERING_KEY) {
                    std::str::from_utf8(&body[at..end]).ok()?;
                    key = at..end;
                }
                at = end;
            }
            5 => at = at.checked_add(4).filter(|end| *end <= body.len())?,
            _ => return None,
        }
    }
    Some(key)
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
        assert_eq!(ordering_key(&body), Some(8..10));
        assert_eq!(ordering_key(&body[..6]), Some(0..0));
        assert_eq!(ordering_key(&body[..9]), None);
    }
}
