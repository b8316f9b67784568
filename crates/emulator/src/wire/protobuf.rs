//! The part of the protobuf wire format that Publish and delivery need.
//!
//! Messages are never decoded. The walker reads the client's bytes, and the same bytes are
//! delivered. Source: protobuf.dev "Encoding". The field numbers are those of
//! google/pubsub/v1/pubsub.proto.

use bytes::{BufMut, BytesMut};

/// The value of one field. Fixed-width numbers are skipped, because no message here has one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Skipped,
}

/// The error of bytes that are no protobuf message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Iterates over the fields of one message, in their order in the bytes.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the next field's number and value, or `None` after the last field.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Skipped)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Skipped)?,
            _ => return Err(Malformed),
        };
        match tag >> 3 {
            0 => Err(Malformed),
            number => Ok(Some((number, value))),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

/// Returns the bytes that `value` needs as a varint.
pub(crate) fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Returns the bytes of a length-delimited field whose number is below 16.
pub(crate) fn field_len(content: usize) -> usize {
    1 + varint_len(content) + content
}

/// Appends a varint.
pub(crate) fn put_varint(buffer: &mut BytesMut, value: u64) {
    let mut rest = value;
    while rest >= 0x80 {
        buffer.put_u8(low_bits(rest) | 0x80);
        rest >>= 7;
    }
    buffer.put_u8(low_bits(rest));
}

/// Appends tag and length of a length-delimited field whose number is below 16.
pub(crate) fn put_header(buffer: &mut BytesMut, number: u8, length: usize) {
    buffer.put_u8(number << 3 | 2);
    put_varint(buffer, length as u64);
}

/// Appends a length-delimited field whose number is below 16.
pub(crate) fn put_field(buffer: &mut BytesMut, number: u8, content: &[u8]) {
    put_header(buffer, number, content.len());
    buffer.put_slice(content);
}

fn low_bits(value: u64) -> u8 {
    u8::try_from(value & 0x7F).unwrap_or(0)
}

/// A number as decimal text, without an allocation.
pub(crate) struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    pub(crate) fn of(value: u64) -> Self {
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        let mut rest = value;
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                return Self { digits, start };
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_the_order_they_stand_in() {
        // data "hi" (1), an unknown varint 300 (9), an unknown fixed32 (10), ordering key "k" (5).
        let message = [0x0A, 2, b'h', b'i', 0x48, 0xAC, 0x02, 0x55, 1, 2, 3, 4, 0x2A, 1, b'k'];
        let mut fields = Fields::of(&message);
        assert_eq!(fields.next(), Ok(Some((1, Value::Bytes(b"hi")))));
        assert_eq!(fields.next(), Ok(Some((9, Value::Number(300)))));
        assert_eq!(fields.next(), Ok(Some((10, Value::Skipped))));
        assert_eq!(fields.next(), Ok(Some((5, Value::Bytes(b"k")))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn a_truncated_or_impossible_field_is_malformed() {
        let cases: [&[u8]; 6] = [
            &[0x0A],                                                      // no length
            &[0x0A, 5, b'h'],                                             // shorter than its length
            &[0x0B],                                                      // start of a group
            &[0x02, 0],                                                   // field number zero
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], // endless varint
            &[0x0A, 255, 255, 255, 255, 255, 255, 255, 255, 127],         // a length beyond memory
        ];
        for case in cases {
            assert_eq!(Fields::of(case).next(), Err(Malformed), "{case:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for length in [0, 1, 127, 128, 16_383, 16_384] {
            let mut buffer = BytesMut::new();
            put_field(&mut buffer, 2, &vec![7; length]);
            assert_eq!(buffer.len(), field_len(length));
            let expected = vec![7; length];
            assert_eq!(Fields::of(&buffer).next(), Ok(Some((2, Value::Bytes(&expected)))));
        }
    }

    #[test]
    fn numbers_print_as_decimals() {
        for value in [0, 7, 10, 1_234_567, u64::MAX] {
            assert_eq!(Decimal::of(value).as_bytes(), value.to_string().as_bytes());
        }
    }
}
