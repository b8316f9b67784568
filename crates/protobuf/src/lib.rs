//! The protobuf wire format: fields that are read in place, and fields that are written one by one.
//!
//! Messages of rows stay encoded from the router to the consumer. The generated types would
//! allocate two strings for each attribute. The functions here read and write the same bytes
//! without objects in between. Malformed bytes are an error, never a panic.
//!
//! Source: protobuf.dev "Encoding".

#![warn(missing_docs)]

use prost::bytes::BufMut;
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};

/// The bytes break the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint.
    Number(u64),
    /// A text, bytes, or an encoded message.
    Bytes(&'a [u8]),
    /// A number of 4 or 8 bytes.
    Fixed(&'a [u8]),
}

/// The fields of an encoded message, each with its number, in the order of the bytes.
///
/// The iterator ends after the first malformed field.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
    is_malformed: bool,
}

impl<'a> Fields<'a> {
    /// Reads the fields of `message`.
    #[must_use]
    pub const fn of(message: &'a [u8]) -> Self {
        Self { rest: message, is_malformed: false }
    }

    /// The bytes behind the last field that was read.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn step(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let mut rest = self.rest;
        let tag = take_varint(&mut rest)?;
        let value = match tag & 7 {
            0 => Value::Number(take_varint(&mut rest)?),
            1 => Value::Fixed(take(&mut rest, 8)?),
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).map_err(|_| Malformed)?;
                Value::Bytes(take(&mut rest, length)?)
            }
            5 => Value::Fixed(take(&mut rest, 4)?),
            _ => return Err(Malformed),
        };
        self.rest = rest;
        match tag >> 3 {
            0 => Err(Malformed),
            number => Ok((number, value)),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.is_malformed {
            return None;
        }
        let field = self.step();
        self.is_malformed = field.is_err();
        Some(field)
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = behind;
    Ok(taken)
}

/// Takes a varint off the front of `bytes`.
///
/// # Errors
///
/// The bytes end within the varint, or it is longer than 64 bits.
pub fn take_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    decode_varint(bytes).map_err(|_| Malformed)
}

/// The size of the tag and the length of a length-delimited field, in bytes. Its number is below
/// 16.
#[must_use]
pub const fn header_len(content: usize) -> usize {
    1 + encoded_len_varint(content as u64)
}

/// The size of a length-delimited field whose number is below 16, in bytes.
#[must_use]
pub const fn field_len(content: usize) -> usize {
    header_len(content) + content
}

/// Appends `value` as a varint.
pub fn put_varint(buffer: &mut impl BufMut, value: u64) {
    encode_varint(value, buffer);
}

/// Appends the tag and the length of a length-delimited field. `number` is below 16.
pub fn put_header(buffer: &mut impl BufMut, number: u8, length: usize) {
    buffer.put_u8(number << 3 | 2);
    encode_varint(length as u64, buffer);
}

/// Appends a length-delimited field. `number` is below 16.
pub fn put_field(buffer: &mut impl BufMut, number: u8, content: &[u8]) {
    put_header(buffer, number, content.len());
    buffer.put_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(message: &[u8]) -> Option<Result<(u64, Value<'_>), Malformed>> {
        Fields::of(message).next()
    }

    #[test]
    fn fields_are_read_in_the_order_of_the_bytes() {
        // data "hi" (1), a varint 300 (9), fixed32 (10), fixed64 (11), ordering key "k" (5).
        let message = [
            0x0A, 2, b'h', b'i', 0x48, 0xAC, 0x02, 0x55, 1, 2, 3, 4, 0x59, 1, 2, 3, 4, 5, 6, 7, 8,
            0x2A, 1, b'k',
        ];
        let fields: Result<Vec<_>, Malformed> = Fields::of(&message).collect();
        let expected = vec![
            (1, Value::Bytes(b"hi")),
            (9, Value::Number(300)),
            (10, Value::Fixed(&[1, 2, 3, 4])),
            (11, Value::Fixed(&[1, 2, 3, 4, 5, 6, 7, 8])),
            (5, Value::Bytes(b"k")),
        ];
        assert_eq!(fields, Ok(expected));
    }

    #[test]
    fn a_truncated_or_impossible_field_is_malformed_and_the_last() {
        let cases: [&[u8]; 8] = [
            &[0x0A],                                                      // no length
            &[0x0A, 5, b'h'],                                             // shorter than its length
            &[0x0B],                                                      // start of a group
            &[0x02, 0],                                                   // field number zero
            &[0x0D, 1, 2, 3],                                             // a cut fixed32
            &[0x80],                                                      // a cut tag
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], // endless varint
            &[0x0A, 255, 255, 255, 255, 255, 255, 255, 255, 127],         // a length beyond memory
        ];
        for case in cases {
            let mut fields = Fields::of(case);
            assert_eq!(fields.next(), Some(Err(Malformed)), "{case:?}");
            assert_eq!(fields.next(), None, "{case:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_takes_the_length_it_says() {
        for length in [0, 1, 127, 128, 16_383, 16_384] {
            let content = vec![7; length];
            let mut buffer = Vec::new();
            put_field(&mut buffer, 2, &content);
            assert_eq!(buffer.len(), field_len(length));
            assert_eq!(first(&buffer), Some(Ok((2, Value::Bytes(&content)))));
        }
        for value in [0, 127, 128, u64::from(u32::MAX), u64::MAX] {
            let mut buffer = Vec::new();
            put_varint(&mut buffer, value);
            assert_eq!(take_varint(&mut &*buffer), Ok(value));
        }
    }
}
