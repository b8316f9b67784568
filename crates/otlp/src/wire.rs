//! The few rules of the protobuf wire format that a span needs: it is written once, as it is sent, and
//! never exists as objects.
//!
//! Source: protobuf.dev "Encoding".

/// A message that is being written.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Writer(Vec<u8>);

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

impl Writer {
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A text, bytes, or a message that is written already.
    pub(crate) fn bytes(&mut self, field: u8, content: &[u8]) {
        self.key(field, LENGTH_DELIMITED);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    /// Parts of a text, as the content of a [`message`](Self::message): both are written alike.
    pub(crate) fn text(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.0.extend_from_slice(part.as_bytes()));
    }

    pub(crate) fn number(&mut self, field: u8, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    pub(crate) fn fixed64(&mut self, field: u8, value: u64) {
        self.key(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn fixed32(&mut self, field: u8, value: u32) {
        self.key(field, FIXED32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A message of which `write` writes the content.
    pub(crate) fn message(&mut self, field: u8, write: impl FnOnce(&mut Self)) {
        self.key(field, LENGTH_DELIMITED);
        // One byte is what the length of a short message takes; a longer one is moved to make room.
        let at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - at - 1;
        match u8::try_from(length) {
            Ok(short) if short < 0x80 => self.0[at] = short,
            Ok(_) | Err(_) => {
                let mut prefix = Self::default();
                prefix.varint(length as u64);
                self.0.splice(at..=at, prefix.0);
            }
        }
    }

    fn key(&mut self, field: u8, kind: u64) {
        self.varint(u64::from(field) << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
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
