//! Shrinks an oversized frame while it is read, in bounded memory.
//!
//! The caller pushes bytes as they arrive, in parts of any size. The result is the same frame with
//! each oversized value replaced by its length. [`Decoder`](crate::Decoder) decodes the frame like
//! any other, and reports such a value as [`Column::TooLarge`](crate::Column::TooLarge).
//!
//! ```text
//! XLogData header │ 'I' │ relation id │ 'N' │ … 't' │ length 4 │ 140,000,000 bytes …
//!                    ▼                            ▼
//! XLogData header │ 'i' │ relation id │ 'N' │ … 'x' │ length 4 …
//! ```
//!
//! Memory depends only on [`CondenseLimits`], never on a length field of the sender. Only messages
//! with tuples can be condensed: Insert, Update and Delete. The server sends no other large
//! messages.

use std::fmt;

use crate::error::{DecodeError, ExpectedBytes, Found, MessageKind};

/// The limits on the values that are kept of a large frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CondenseLimits {
    /// The size of the largest value that is kept, in bytes.
    pub value_bytes_max: usize,
    /// The total size of the values that are kept, in bytes. A value that would exceed the total is
    /// dropped, even if it is within `value_bytes_max`.
    pub values_bytes_max: usize,
}

/// Condenses one frame.
pub struct Condenser {
    limits: CondenseLimits,
    /// The size of the frame in bytes, as announced by its CopyData message.
    frame_bytes: usize,
    /// The number of bytes pushed so far.
    pushed: usize,
    values_bytes: usize,
    tuples: u8,
    place: Place,
    /// A field of fixed size whose bytes have not all arrived.
    field: Field,
    kept: Vec<u8>,
}

/// The part of the frame that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The XLogData header, the tag of the message and its relation id.
    Header,
    /// The tag of a tuple and its number of columns.
    Tuple,
    /// The kind of a column. `columns` counts it and the columns after it.
    Kind {
        columns: u16,
    },
    Length {
        columns: u16,
        kind: u8,
    },
    /// A value that is kept.
    Kept {
        columns: u16,
        bytes: usize,
    },
    /// A value that is dropped.
    LeftOut {
        columns: u16,
        bytes: usize,
    },
}

/// The XLogData header (tag, two positions and a time), the message tag and the relation id.
const HEADER_BYTES: usize = 30;
/// The offset of the message in the frame.
const MESSAGE_AT: usize = 25;
/// An update has an old and a new tuple, and no message has more.
const TUPLES_MAX: u8 = 2;

#[derive(Debug, Default)]
struct Field {
    bytes: [u8; HEADER_BYTES],
    len: usize,
}

impl Field {
    /// Adds bytes until the field is complete. Returns the remaining bytes.
    fn fill<'a>(&mut self, size: usize, bytes: &'a [u8]) -> &'a [u8] {
        let missing = size.saturating_sub(self.len).min(bytes.len());
        let (taken, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
        let empty = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (place, byte) in empty.iter_mut().zip(taken) {
            *place = *byte;
        }
        self.len = self.len.saturating_add(taken.len());
        rest
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or_default()
    }
}

impl Condenser {
    /// Creates a condenser for a frame of `frame_bytes`, the length of its CopyData payload.
    #[must_use]
    pub fn new(frame_bytes: usize, limits: CondenseLimits) -> Self {
        Self {
            limits,
            frame_bytes,
            pushed: 0,
            values_bytes: 0,
            tuples: 0,
            place: Place::Header,
            field: Field::default(),
            kept: Vec::new(),
        }
    }

    /// The number of bytes that are still to be pushed.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.frame_bytes.saturating_sub(self.pushed)
    }

    /// The memory in use, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.kept.capacity()
    }

    /// Pushes the next bytes of the frame, at most [missing](Self::missing).
    ///
    /// # Errors
    ///
    /// The bytes are not a frame with tuples, or a length in them exceeds the frame. Nothing may be
    /// pushed after an error.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), DecodeError> {
        while !bytes.is_empty() {
            let before = bytes.len();
            bytes = match self.place {
                Place::Kept { columns, bytes: left } => {
                    let (value, rest) = split(bytes, left);
                    self.keep(value);
                    let left = left.saturating_sub(value.len());
                    self.place = Place::Kept { columns, bytes: left }.or_next_column();
                    rest
                }
                Place::LeftOut { columns, bytes: left } => {
                    let (value, rest) = split(bytes, left);
                    let left = left.saturating_sub(value.len());
                    self.place = Place::LeftOut { columns, bytes: left }.or_next_column();
                    rest
                }
                Place::Header | Place::Tuple | Place::Kind { .. } | Place::Length { .. } => {
                    self.field.fill(self.place.field_bytes(), bytes)
                }
            };
            self.pushed = self.pushed.saturating_add(before.saturating_sub(bytes.len()));
            if self.field.len == self.place.field_bytes() && self.field.len > 0 {
                self.place = self.field_is_complete()?;
                self.field.len = 0;
            }
        }
        Ok(())
    }

    /// Returns the condensed frame, once all bytes were pushed.
    ///
    /// # Errors
    ///
    /// The frame ends within a tuple, or has no tuple.
    pub fn finish(self) -> Result<Vec<u8>, DecodeError> {
        let is_complete = self.missing() == 0 && self.field.len == 0 && self.tuples > 0;
        match self.place {
            Place::Tuple if is_complete => Ok(self.kept),
            Place::Header
            | Place::Tuple
            | Place::Kind { .. }
            | Place::Length { .. }
            | Place::Kept { .. }
            | Place::LeftOut { .. } => {
                Err(self.wrong(ExpectedBytes::Rule("whole tuples"), Found::Bytes(0)))
            }
        }
    }

    fn field_is_complete(&mut self) -> Result<Place, DecodeError> {
        match self.place {
            Place::Header => self.header(),
            Place::Tuple => self.tuple(),
            Place::Kind { columns } => self.kind(columns),
            Place::Length { columns, kind } => self.length(columns, kind),
            // These places have no field.
            place @ (Place::Kept { .. } | Place::LeftOut { .. }) => Ok(place),
        }
    }

    fn header(&mut self) -> Result<Place, DecodeError> {
        let (frame, message) = (self.field.byte(0), self.field.byte(MESSAGE_AT));
        if frame != b'w' {
            return Err(self.wrong(ExpectedBytes::Rule("'w' (XLogData)"), Found::Byte(frame)));
        }
        if !matches!(message, b'I' | b'U' | b'D') {
            let expected =
                ExpectedBytes::Rule("an Insert, Update or Delete in a frame of this size");
            return Err(self.wrong(expected, Found::Byte(message)));
        }
        self.keep_field();
        Ok(Place::Tuple)
    }

    fn tuple(&mut self) -> Result<Place, DecodeError> {
        let tag = self.field.byte(0);
        if !matches!(tag, b'N' | b'K' | b'O') {
            return Err(self.wrong(ExpectedBytes::Rule("a tuple"), Found::Byte(tag)));
        }
        if self.tuples == TUPLES_MAX {
            let expected = ExpectedBytes::AtMost { what: "tuples", max: TUPLES_MAX.into() };
            return Err(self.wrong(expected, Found::ClaimFate("one more")));
        }
        self.tuples = self.tuples.saturating_add(1);
        let columns = u16::from_be_bytes([self.field.byte(1), self.field.byte(2)]);
        self.keep_field();
        Ok(Place::column(columns))
    }

    fn kind(&mut self, columns: u16) -> Result<Place, DecodeError> {
        match self.field.byte(0) {
            b'n' | b'u' => {
                self.keep_field();
                Ok(Place::column(columns.saturating_sub(1)))
            }
            kind @ (b't' | b'b') => Ok(Place::Length { columns, kind }),
            other => {
                let expected = ExpectedBytes::Rule("a column of kind 'n', 'u', 't' or 'b'");
                Err(self.wrong(expected, Found::Byte(other)))
            }
        }
    }

    fn length(&mut self, columns: u16, kind: u8) -> Result<Place, DecodeError> {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| self.field.byte(at));
        let bytes = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if bytes > self.missing() {
            let expected = ExpectedBytes::Field { name: "column value", bytes };
            return Err(self.wrong(expected, Found::Bytes(self.missing())));
        }
        let CondenseLimits { value_bytes_max, values_bytes_max } = self.limits;
        let together = self.values_bytes.saturating_add(bytes);
        let place = if bytes > value_bytes_max || together > values_bytes_max {
            if let Some(tag) = self.kept.get_mut(MESSAGE_AT) {
                tag.make_ascii_lowercase();
            }
            self.keep(&[TOO_LARGE_KIND]);
            Place::LeftOut { columns, bytes }
        } else {
            self.values_bytes = together;
            self.keep(&[kind]);
            Place::Kept { columns, bytes }
        };
        self.keep_field();
        Ok(place.or_next_column())
    }

    fn keep_field(&mut self) {
        let (bytes, len) = (self.field.bytes, self.field.len);
        self.keep(bytes.get(..len).unwrap_or_default());
    }

    /// Keeps bytes. The buffer doubles as bytes arrive, up to slightly more than the limits allow.
    fn keep(&mut self, bytes: &[u8]) {
        let len = self.kept.len().saturating_add(bytes.len());
        if len > self.kept.capacity() {
            let doubled = self.kept.capacity().saturating_mul(2);
            let most = self.limits.values_bytes_max.saturating_add(FIELDS_BYTES);
            let wanted = doubled.min(most).max(len);
            self.kept.reserve_exact(wanted.saturating_sub(self.kept.len()));
        }
        self.kept.extend_from_slice(bytes);
    }

    #[cold]
    fn wrong(&self, expected: ExpectedBytes, found: Found) -> DecodeError {
        DecodeError::new(MessageKind::XLogData, self.pushed, expected, found)
    }
}

impl fmt::Debug for Condenser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The kept bytes contain column values, which must not be logged.
        f.debug_struct("Condenser")
            .field("frame_bytes", &self.frame_bytes)
            .field("pushed", &self.pushed)
            .field("kept_bytes", &self.kept.len())
            .finish_non_exhaustive()
    }
}

/// More than the kinds and lengths of all columns in two tuples take.
const FIELDS_BYTES: usize = 1 << 20;

impl Place {
    /// The size of the fixed-size field at this place in bytes, or 0 if there is none.
    const fn field_bytes(self) -> usize {
        match self {
            Self::Header => HEADER_BYTES,
            Self::Tuple => 3,
            Self::Kind { .. } => 1,
            Self::Length { .. } => 4,
            Self::Kept { .. } | Self::LeftOut { .. } => 0,
        }
    }

    /// The place before a tuple's remaining columns.
    const fn column(columns: u16) -> Self {
        match columns {
            0 => Self::Tuple,
            columns => Self::Kind { columns },
        }
    }

    /// The same place, or the next column if no byte of the value is missing.
    const fn or_next_column(self) -> Self {
        match self {
            Self::Kept { columns, bytes: 0 } | Self::LeftOut { columns, bytes: 0 } => {
                Self::column(columns.saturating_sub(1))
            }
            Self::Header
            | Self::Tuple
            | Self::Kind { .. }
            | Self::Length { .. }
            | Self::Kept { .. }
            | Self::LeftOut { .. } => self,
        }
    }
}

fn split(bytes: &[u8], most: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(most).unwrap_or((bytes, &[]))
}

/// The kind of a column whose value was dropped. The server never sends this kind.
pub(crate) const TOO_LARGE_KIND: u8 = b'x';
