//! Decode errors: the offending bytes and their location.
//!
//! The error is one struct instead of an enum of kinds, because no caller can repair bytes and
//! branch on a kind. An engineer reads the text, finds the byte in a capture, and compares it with
//! the manual. Errors reach logs, so they never contain a column value.

use std::fmt;

use crate::lsn::Lsn;

/// Bytes that the replication protocol does not allow at this place.
///
/// The decoder that returned the error must not be used again, because the rest of its stream has
/// no meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}, byte {offset}: expected {expected}, found {found}")]
pub struct DecodeError {
    message: MessageKind,
    offset: usize,
    expected: ExpectedBytes,
    found: Found,
}

impl DecodeError {
    #[cold]
    pub(crate) fn new(
        message: MessageKind,
        offset: usize,
        expected: ExpectedBytes,
        found: Found,
    ) -> Self {
        Self { message, offset, expected, found }
    }

    /// The message that was being decoded.
    #[must_use]
    pub fn message(&self) -> MessageKind {
        self.message
    }

    /// The number of bytes of that message before the offending one. The tag is byte 0.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The bytes that the protocol requires at this place.
    #[must_use]
    pub fn expected(&self) -> impl fmt::Display + use<> {
        self.expected
    }

    /// The bytes that were found.
    #[must_use]
    pub fn found(&self) -> impl fmt::Display + use<> {
        self.found
    }
}

/// The messages of both wire layers, by the manual's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the manual's name of a message")]
pub enum MessageKind {
    /// A CopyData payload whose first byte is not a frame tag.
    Frame,
    XLogData,
    Keepalive,
    StandbyStatusUpdate,
    /// An XLogData payload whose first byte is not a message tag of `proto_version 1`.
    Unknown,
    Begin,
    Commit,
    Origin,
    Relation,
    Type,
    Insert,
    Update,
    Delete,
    Truncate,
    Message,
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frame => "replication frame",
            Self::XLogData => "XLogData frame",
            Self::Keepalive => "Keepalive frame",
            Self::StandbyStatusUpdate => "StandbyStatusUpdate frame",
            Self::Unknown => "pgoutput message",
            Self::Begin => "Begin message",
            Self::Commit => "Commit message",
            Self::Origin => "Origin message",
            Self::Relation => "Relation message",
            Self::Type => "Type message",
            Self::Insert => "Insert message",
            Self::Update => "Update message",
            Self::Delete => "Delete message",
            Self::Truncate => "Truncate message",
            Self::Message => "logical decoding Message",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedBytes {
    /// A field of this size.
    Field { name: &'static str, bytes: usize },
    /// A rule in words.
    Rule(&'static str),
    /// The columns of a tuple, as its relation declares them.
    ColumnsOf { relation: u32, columns: usize },
    /// A limit of this crate.
    AtMost { what: &'static str, max: usize },
    /// The `commit_lsn` that Begin announced.
    CommitLsn(Lsn),
    /// An LSN above this one.
    Above { what: &'static str, lsn: Lsn },
    /// An LSN not below this one.
    NotBelow { what: &'static str, lsn: Lsn },
}

impl fmt::Display for ExpectedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { name, bytes } => write!(f, "{name} ({bytes} bytes)"),
            Self::Rule(rule) => f.write_str(rule),
            Self::ColumnsOf { relation, columns } => {
                write!(f, "{columns} columns as in relation {relation}")
            }
            Self::AtMost { what, max } => write!(f, "at most {max} {what}"),
            Self::CommitLsn(lsn) => write!(f, "commit_lsn {lsn} as announced by Begin"),
            Self::Above { what, lsn } => write!(f, "{what} above {lsn}"),
            Self::NotBelow { what, lsn } => write!(f, "{what} not below {lsn}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The message ends after this many more bytes.
    Bytes(usize),
    /// A tag or a flag.
    Byte(u8),
    /// A count, an oid or a length.
    Number(u64),
    Lsn(Lsn),
    ClaimFate(&'static str),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(0) => f.write_str("the end"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Byte(byte) if byte.is_ascii_graphic() => {
                write!(f, "0x{byte:02X} ('{}')", char::from(*byte))
            }
            Self::Byte(byte) => write!(f, "0x{byte:02X}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Lsn(lsn) => write!(f, "{lsn}"),
            Self::ClaimFate(what) => f.write_str(what),
        }
    }
}
