//! Column values, borrowed from the message.
//!
//! ```text
//! TupleData  columns 2 │ column …
//! column     'n'                      null
//!            'u'                      unchanged TOAST value, not sent
//!            't' │ length 4 │ value   text form
//!            'b' │ length 4 │ value   binary form
//!            'x' │ length 4           too large: left out by a [`Condenser`](crate::Condenser)
//! ```
//!
//! A tuple is walked twice. The decoder walks it to turn malformed bytes into an error with a
//! position. The reader walks it for the values. Both walks use [`split_column`], so they cannot
//! disagree.

use std::fmt;
use std::iter::FusedIterator;

use crate::condense::TOO_LARGE_KIND;
use crate::cursor::Cursor;
use crate::error::{DecodeError, ExpectedBytes, Found};
use crate::relations::Relation;

/// The values of a row, in the order of its relation's columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    /// Checked bytes: exactly `len` well-formed columns.
    columns: &'a [u8],
    len: u16,
    form: MessageForm,
}

/// Whether values may have been dropped from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageForm {
    /// The message is unchanged from the server.
    Whole,
    /// A [`Condenser`](crate::Condenser) may have dropped values.
    Condensed,
}

impl<'a> Tuple<'a> {
    pub(crate) fn parse(
        cursor: &mut Cursor<'a>,
        relation: &Relation,
        form: MessageForm,
    ) -> Result<Self, DecodeError> {
        let at_count = *cursor;
        let len = cursor.u16("column count")?;
        if usize::from(len) != relation.columns.len() {
            let expected =
                ExpectedBytes::ColumnsOf { relation: relation.id, columns: relation.columns.len() };
            return Err(at_count.wrong(expected, Found::Number(len.into())));
        }
        let start = cursor.rest();
        let mut rest = start;
        for _ in 0..len {
            let split = split_column(rest).filter(|(column, _)| form.may_have(column));
            let Some((_, after)) = split else {
                cursor.skip_to(rest);
                return Err(why_no_column(*cursor));
            };
            rest = after;
        }
        cursor.skip_to(rest);
        // `rest` is a tail of `start`, so the range always exists.
        let columns = start.len().checked_sub(rest.len()).and_then(|bytes| start.get(..bytes));
        Ok(Self { columns: columns.unwrap_or_default(), len, form })
    }

    /// The size of the values with their kinds and lengths, in bytes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.columns.len()
    }

    /// Whether values may have been dropped.
    #[must_use]
    pub fn is_condensed(&self) -> bool {
        self.form == MessageForm::Condensed
    }

    /// The number of columns, equal to that of its relation.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Whether the tuple has no columns. A table may have none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The columns in order, without allocation.
    #[must_use]
    pub fn columns(&self) -> Columns<'a> {
        Columns { rest: self.columns, left: self.len }
    }

    /// Picks the wanted columns in one pass: column `i` goes to place `places[i]` of the result.
    ///
    /// A place outside the result skips the column, and `places` may stop after the last wanted
    /// one. A place without a column is `None`. Resolve `places` once per
    /// [`Generation`](crate::Generation) of the relation.
    #[must_use]
    pub fn pick<const N: usize>(&self, places: &[usize]) -> [Option<Column<'a>>; N] {
        let mut picked = [None; N];
        for (column, place) in self.columns().zip(places) {
            if let Some(picked) = picked.get_mut(*place) {
                *picked = Some(column);
            }
        }
        picked
    }
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.columns()).finish()
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Column<'a>;
    type IntoIter = Columns<'a>;

    fn into_iter(self) -> Columns<'a> {
        self.columns()
    }
}

/// One column's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// SQL null.
    Null,
    /// A large value that the statement did not change. The server did not send it.
    UnchangedToast,
    /// The text form, in the client's encoding. Not checked to be UTF-8.
    Text(&'a [u8]),
    /// The binary form, if the option `binary` is on.
    Binary(&'a [u8]),
    /// A value that was too large to keep. It is not in the message.
    TooLarge {
        /// The size of the form that was sent, in bytes.
        bytes: usize,
    },
}

impl fmt::Debug for Column<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values must not be logged, and `{:?}` of a tuple easily reaches a log.
        match self {
            Self::Null => f.write_str("Null"),
            Self::UnchangedToast => f.write_str("UnchangedToast"),
            Self::Text(value) => write!(f, "Text({} bytes)", value.len()),
            Self::Binary(value) => write!(f, "Binary({} bytes)", value.len()),
            Self::TooLarge { bytes } => write!(f, "TooLarge({bytes} bytes)"),
        }
    }
}

/// The columns of a [`Tuple`], in order.
#[derive(Clone, Debug)]
pub struct Columns<'a> {
    rest: &'a [u8],
    left: u16,
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    #[inline]
    fn next(&mut self) -> Option<Column<'a>> {
        let left = self.left.checked_sub(1)?;
        let (column, rest) = split_column(self.rest)?;
        (self.rest, self.left) = (rest, left);
        Some(column)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Columns<'_> {}
impl FusedIterator for Columns<'_> {}

/// Splits off the first column, or returns `None` if it is malformed.
#[inline]
fn split_column(bytes: &[u8]) -> Option<(Column<'_>, &[u8])> {
    match bytes {
        [b't', rest @ ..] => split_value(rest).map(|(value, rest)| (Column::Text(value), rest)),
        [b'n', rest @ ..] => Some((Column::Null, rest)),
        [b'b', rest @ ..] => split_value(rest).map(|(value, rest)| (Column::Binary(value), rest)),
        [b'u', rest @ ..] => Some((Column::UnchangedToast, rest)),
        [TOO_LARGE_KIND, rest @ ..] => split_length(rest),
        [] | [_, ..] => None,
    }
}

#[cold]
fn split_length(bytes: &[u8]) -> Option<(Column<'_>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    let value_bytes = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    Some((Column::TooLarge { bytes: value_bytes }, rest))
}

impl MessageForm {
    /// Whether the form allows the column. The server never drops a value.
    #[inline]
    fn may_have(self, column: &Column<'_>) -> bool {
        self == Self::Condensed || !matches!(column, Column::TooLarge { .. })
    }
}

#[inline]
fn split_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)
}

/// Creates the error for bytes that [`split_column`] refused.
#[cold]
fn why_no_column(mut cursor: Cursor<'_>) -> DecodeError {
    let no_column = cursor.wrong_byte("a column of kind 'n', 'u', 't' or 'b'");
    match cursor.peek() {
        Some(b't' | b'b') => read_value(&mut cursor).err().unwrap_or(no_column),
        Some(_) | None => no_column,
    }
}

/// Reads a column with a value, field by field.
fn read_value<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    cursor.u8("column kind")?;
    let len = cursor.u32("column length")?;
    cursor.bytes(len, "column value")
}
