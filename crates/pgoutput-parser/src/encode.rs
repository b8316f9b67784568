//! Encodes the server's messages, for tests and simulators.
//!
//! Encodes messages as a walsender would. Nothing is checked, so a scripted server can also
//! misbehave: messages may come in any order and contradict each other. A count or length that
//! exceeds its field is written as the field's largest value. A row with a [`Column::TooLarge`] is
//! written as a [`Condenser`](crate::Condenser) would.

use crate::condense::TOO_LARGE_KIND;
use crate::frame::{Keepalive, XLogData};
use crate::lsn::{Boundary, Lsn};
use crate::message::{Begin, Commit, LogicalMessage, Origin, TruncateOptions, Type};
use crate::relations::{RelationColumn, ReplicaIdentity};
use crate::time::PgTimestamp;
use crate::tuple::Column;

/// An old tuple to encode, the wire form of [`OldTuple`](crate::OldTuple).
#[derive(Debug, Clone, Copy)]
pub enum OldColumns<'a> {
    /// The replica identity. All other columns are null.
    Key(&'a [Column<'a>]),
    /// The whole row.
    Full(&'a [Column<'a>]),
}

/// Encodes an XLogData frame around one message.
#[must_use]
pub fn xlog_data(frame: &XLogData<'_>) -> Vec<u8> {
    Writer::with_tag(b'w')
        .lsn(frame.wal_start)
        .lsn(frame.wal_end)
        .timestamp(frame.sent_at)
        .bytes(frame.data)
        .0
}

/// Encodes a Keepalive frame.
#[must_use]
pub fn keepalive(frame: &Keepalive) -> Vec<u8> {
    Writer::with_tag(b'k')
        .lsn(frame.wal_end)
        .timestamp(frame.sent_at)
        .u8(frame.reply_requested.into())
        .0
}

/// Encodes a Begin message.
#[must_use]
pub fn begin(message: &Begin) -> Vec<u8> {
    Writer::with_tag(b'B')
        .lsn(message.final_lsn)
        .timestamp(message.commit_timestamp)
        .u32(message.xid)
        .0
}

/// Encodes a Commit message.
#[must_use]
pub fn commit(message: &Commit) -> Vec<u8> {
    Writer::with_tag(b'C')
        .u8(0)
        .lsn(message.commit_lsn)
        .lsn(message.end_lsn)
        .timestamp(message.commit_timestamp)
        .0
}

/// Encodes an Origin message.
#[must_use]
pub fn origin(message: &Origin<'_>) -> Vec<u8> {
    Writer::with_tag(b'O').lsn(message.commit_lsn).text(message.name).0
}

/// Encodes a Relation message. The schema `pg_catalog` is written as an empty name, as by the
/// server.
#[must_use]
pub fn relation(
    id: u32,
    namespace: &str,
    name: &str,
    replica_identity: ReplicaIdentity,
    columns: &[RelationColumn],
) -> Vec<u8> {
    let start = Writer::with_tag(b'R')
        .u32(id)
        .namespace(namespace)
        .text(name)
        .u8(replica_identity.tag())
        .count(columns.len());
    let write_column = |message: Writer, column: &RelationColumn| {
        message
            .u8(column.is_key.into())
            .text(&column.name)
            .u32(column.type_oid)
            .bytes(&column.type_modifier.to_be_bytes())
    };
    columns.iter().fold(start, write_column).0
}

/// Encodes a Type message. The schema `pg_catalog` is written as an empty name, as by the server.
#[must_use]
pub fn type_description(message: &Type<'_>) -> Vec<u8> {
    Writer::with_tag(b'Y').u32(message.id).namespace(message.namespace).text(message.name).0
}

/// Encodes an Insert message.
#[must_use]
pub fn insert(relation_id: u32, columns: &[Column<'_>]) -> Vec<u8> {
    Writer::with_tag(b'I').u32(relation_id).tuple(b'N', columns).0
}

/// Encodes an Update message.
#[must_use]
pub fn update(relation_id: u32, old: Option<OldColumns<'_>>, new: &[Column<'_>]) -> Vec<u8> {
    let message = Writer::with_tag(b'U').u32(relation_id);
    let message = match old {
        Some(old) => message.old_tuple(old),
        None => message,
    };
    message.tuple(b'N', new).0
}

/// Encodes a Delete message.
#[must_use]
pub fn delete(relation_id: u32, old: OldColumns<'_>) -> Vec<u8> {
    Writer::with_tag(b'D').u32(relation_id).old_tuple(old).0
}

/// Encodes a Truncate message.
#[must_use]
pub fn truncate(options: TruncateOptions, relation_ids: &[u32]) -> Vec<u8> {
    let start = Writer::with_tag(b'T').len(relation_ids.len()).u8(options.0);
    relation_ids.iter().fold(start, |message, id| message.u32(*id)).0
}

/// Encodes a logical decoding Message.
#[must_use]
pub fn message(message: &LogicalMessage<'_>) -> Vec<u8> {
    Writer::with_tag(b'M')
        .u8(message.transactional.into())
        .lsn(message.lsn)
        .text(message.prefix)
        .len(message.content.len())
        .bytes(message.content)
        .0
}

/// Creates the boundary of a commit that ends at `end_lsn`, for tests of code that takes
/// boundaries.
#[must_use]
pub fn boundary(end_lsn: Lsn) -> Boundary {
    Boundary::new(end_lsn)
}

struct Writer(Vec<u8>);

impl Writer {
    fn with_tag(tag: u8) -> Self {
        Self(vec![tag])
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn lsn(self, lsn: Lsn) -> Self {
        self.bytes(&lsn.as_u64().to_be_bytes())
    }

    fn timestamp(self, timestamp: PgTimestamp) -> Self {
        self.bytes(&timestamp.as_micros().to_be_bytes())
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes()).u8(0)
    }

    fn namespace(self, name: &str) -> Self {
        self.text(if name == "pg_catalog" { "" } else { name })
    }

    /// Writes a number of columns in two bytes.
    fn count(self, count: usize) -> Self {
        self.bytes(&u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes())
    }

    /// Writes a length in four bytes.
    fn len(self, len: usize) -> Self {
        self.u32(u32::try_from(len).unwrap_or(u32::MAX))
    }

    fn tuple(self, tag: u8, columns: &[Column<'_>]) -> Self {
        let start = self.u8(tag).count(columns.len());
        columns.iter().fold(start, |message, column| match column {
            Column::Null => message.u8(b'n'),
            Column::UnchangedToast => message.u8(b'u'),
            Column::Text(value) => message.u8(b't').len(value.len()).bytes(value),
            Column::Binary(value) => message.u8(b'b').len(value.len()).bytes(value),
            Column::TooLarge { bytes } => message.condensed().u8(TOO_LARGE_KIND).len(*bytes),
        })
    }

    /// Marks the message as condensed by its lowercase tag.
    fn condensed(mut self) -> Self {
        if let Some(tag) = self.0.first_mut() {
            tag.make_ascii_lowercase();
        }
        self
    }

    fn old_tuple(self, old: OldColumns<'_>) -> Self {
        match old {
            OldColumns::Key(columns) => self.tuple(b'K', columns),
            OldColumns::Full(columns) => self.tuple(b'O', columns),
        }
    }
}
