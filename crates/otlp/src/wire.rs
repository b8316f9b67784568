//! Writes protobuf messages field by field. A span is written once, in its final form, and never
//! exists as objects.
//!
//! Source: protobuf.dev "Encoding".

use std::time::{SystemTime, UNIX_EPOCH};

use prost::encoding::{WireType, encode_key, encode_varint};

/// A message that is being written.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes a text, bytes, or an encoded message.
    pub(crate) fn bytes(&mut self, field: u32, content: &[u8]) {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        encode_varint(content.len() as u64, &mut self.0);
        self.0.extend_from_slice(content);
    }

    /// Writes the parts of a text as the content of a [`message`](Self::message), which has the
    /// same encoding.
    pub(crate) fn text(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.0.extend_from_slice(part.as_bytes()));
    }

    pub(crate) fn number(&mut self, field: u32, value: u64) {
        encode_key(field, WireType::Varint, &mut self.0);
        encode_varint(value, &mut self.0);
    }

    pub(crate) fn fixed64(&mut self, field: u32, value: u64) {
        encode_key(field, WireType::SixtyFourBit, &mut self.0);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn fixed32(&mut self, field: u32, value: u32) {
        encode_key(field, WireType::ThirtyTwoBit, &mut self.0);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a message whose content `write` writes.
    pub(crate) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        // Reserves one byte for the length. The content moves if the length takes more.
        let at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - at - 1;
        match u8::try_from(length) {
            Ok(short) if short < 0x80 => self.0[at] = short,
            Ok(_) | Err(_) => {
                let mut prefix = Vec::new();
                encode_varint(length as u64, &mut prefix);
                self.0.splice(at..=at, prefix);
            }
        }
    }
}

/// Converts a time to OTLP's form: nanoseconds since 1970.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_as_the_format_has_them() {
        let mut written = Writer::default();
        written.bytes(1, b"hi");
        written.number(3, 300);
        written.fixed64(7, 1);
        written.fixed32(16, 2);
        let expected: &[u8] = &[
            0x0A, 2, b'h', b'i', 0x18, 0xAC, 2, 0x39, 1, 0, 0, 0, 0, 0, 0, 0, 0x85, 1, 2, 0, 0, 0,
        ];
        assert_eq!(written.into_bytes(), expected);
    }

    #[test]
    fn a_message_has_its_length_before_it_however_long_it_is() {
        for length in [0, 1, 127, 128, 16_383, 16_384] {
            let content = vec![7; length];
            let (mut nested, mut flat, mut inner) =
                (Writer::default(), Writer::default(), Writer::default());
            nested.message(2, |it| it.bytes(1, &content));
            inner.bytes(1, &content);
            flat.bytes(2, &inner.into_bytes());
            assert_eq!(nested, flat, "{length}");
        }
    }
}
