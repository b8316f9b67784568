//! The checked reader: the only way from raw bytes to fields.
//!
//! Owns the read position within a message. Promises an error with the field's name for a read past
//! the end, a text without its NUL, and leftover bytes. Every integer on the wire is big-endian.

use crate::error::{DecodeError, ExpectedBytes, Found, MessageKind};
use crate::lsn::Lsn;
use crate::time::PgTimestamp;

#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    message_len: usize,
    message: MessageKind,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(message: MessageKind, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, message_len: bytes.len(), message }
    }

    /// Names the message for errors, after its tag has been read.
    pub(crate) fn named(mut self, message: MessageKind) -> Self {
        self.message = message;
        self
    }

    pub(crate) fn message(&self) -> MessageKind {
        self.message
    }

    /// The unread bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Continues at `rest`, a tail of the unread bytes.
    pub(crate) fn skip_to(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    pub(crate) fn offset(&self) -> usize {
        self.message_len.saturating_sub(self.rest.len())
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    pub(crate) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.array(field).map(|bytes| Lsn::new(u64::from_be_bytes(bytes)))
    }

    pub(crate) fn timestamp(&mut self, field: &'static str) -> Result<PgTimestamp, DecodeError> {
        self.array(field).map(|bytes| PgTimestamp::from_micros(i64::from_be_bytes(bytes)))
    }

    /// Reads a boolean byte. Any value but 0 and 1 is an error.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.peek() {
            Some(byte @ 2..) => Err(self.wrong(ExpectedBytes::Rule("0 or 1"), Found::Byte(byte))),
            Some(_) | None => Ok(self.u8(field)? == 1),
        }
    }

    /// Reads a byte of flags, of which only `known` may be set. An unknown flag would change the
    /// meaning of the message.
    pub(crate) fn known_flags(&mut self, known: u8) -> Result<u8, DecodeError> {
        let at_flags = *self;
        let flags = self.u8("flags")?;
        match flags & !known {
            0 => Ok(flags),
            _ => Err(at_flags.wrong(ExpectedBytes::Rule("no unknown flag"), Found::Byte(flags))),
        }
    }

    pub(crate) fn bytes(&mut self, len: u32, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.too_short(field, len));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a String as defined by the manual: UTF-8 up to a NUL.
    pub(crate) fn text(&mut self) -> Result<&'a str, DecodeError> {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let split = end.and_then(|end| self.rest.split_at_checked(end));
        let Some((text, [_nul, rest @ ..])) = split else {
            let expected = ExpectedBytes::Rule("a text ended by NUL");
            return Err(self.wrong(expected, Found::ClaimFate("no NUL up to the end")));
        };
        let valid = str::from_utf8(text).map_err(|error| {
            let offset = self.offset().saturating_add(error.valid_up_to());
            let expected = ExpectedBytes::Rule("a text in UTF-8");
            DecodeError::new(self.message, offset, expected, Found::ClaimFate("another encoding"))
        })?;
        self.rest = rest;
        Ok(valid)
    }

    /// Reads a schema name. The server sends an empty name for the built-in schema.
    pub(crate) fn namespace(&mut self) -> Result<&'a str, DecodeError> {
        self.text().map(|name| if name.is_empty() { "pg_catalog" } else { name })
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Checks that the message ends here.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.rest {
            [] => Ok(()),
            more => Err(self.wrong(ExpectedBytes::Rule("the end"), Found::Bytes(more.len()))),
        }
    }

    /// Creates an error about the bytes at the cursor.
    #[cold]
    pub(crate) fn wrong(&self, expected: ExpectedBytes, found: Found) -> DecodeError {
        DecodeError::new(self.message, self.offset(), expected, found)
    }

    /// Creates an error about the byte at the cursor, or about the end of the message.
    #[cold]
    pub(crate) fn wrong_byte(&self, expected: &'static str) -> DecodeError {
        let found = self.peek().map_or(Found::Bytes(0), Found::Byte);
        self.wrong(ExpectedBytes::Rule(expected), found)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(self.too_short(field, N));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    #[cold]
    fn too_short(&self, name: &'static str, bytes: usize) -> DecodeError {
        self.wrong(ExpectedBytes::Field { name, bytes }, Found::Bytes(self.rest.len()))
    }
}
