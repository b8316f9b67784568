//! The inner layer: one struct per pgoutput message of `proto_version 1`.
//!
//! ```text
//! Begin     'B' │ final_lsn 8 │ commit_timestamp 8 │ xid 4
//! Commit    'C' │ flags 1 = 0 │ commit_lsn 8 │ end_lsn 8 │ commit_timestamp 8
//! Origin    'O' │ commit_lsn 8 │ name text
//! Relation  'R' │ id 4 │ namespace text │ name text │ replica_identity 1 │ columns 2
//!               │ (flags 1 │ name text │ type_oid 4 │ type_modifier 4) per column
//! Type      'Y' │ id 4 │ namespace text │ name text
//! Insert    'I' │ relation id 4 │ 'N' │ TupleData
//! Update    'U' │ relation id 4 │ ('K' or 'O' │ TupleData)? │ 'N' │ TupleData
//! Delete    'D' │ relation id 4 │ 'K' or 'O' │ TupleData
//! Truncate  'T' │ relations 4 │ options 1 │ relation id 4 each
//! Message   'M' │ flags 1 │ lsn 8 │ prefix text │ length 4 │ content
//! ```
//!
//! A [`Condenser`](crate::Condenser) changes the tag of a large Insert, Update or Delete to 'i',
//! 'u' or 'd'. The server never sends these tags.
//!
//! A text is UTF-8 ended by NUL. See "Logical Replication Message Formats" in the manual. Relation
//! is in `relations`, because it is the only message that is kept. TupleData is in `tuple`.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::DecodeError;
use crate::lsn::{Boundary, Lsn, Position};
use crate::relations::Relation;
use crate::time::PgTimestamp;
use crate::tuple::{MessageForm, Tuple};

/// The start of a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The start of the commit record: the transaction's `commit_lsn`, known before its first row.
    pub final_lsn: Lsn,
    /// The commit time.
    pub commit_timestamp: PgTimestamp,
    /// The transaction's id without epoch, so it wraps around.
    pub xid: u32,
}

impl Begin {
    /// The position from which streaming resumes with this transaction, for a caller that processes
    /// none of it. The server sends transactions in commit order, so it has sent everything
    /// committed before.
    #[must_use]
    pub fn boundary_before(&self) -> Boundary {
        Boundary::new(self.final_lsn)
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            final_lsn: cursor.lsn("final_lsn")?,
            commit_timestamp: cursor.timestamp("commit_timestamp")?,
            xid: cursor.u32("xid")?,
        })
    }
}

/// The end of a transaction: all its rows have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The start of the commit record, equal to Begin's `final_lsn`.
    pub commit_lsn: Lsn,
    /// The end of the commit record.
    pub end_lsn: Lsn,
    /// The commit time.
    pub commit_timestamp: PgTimestamp,
}

impl Commit {
    /// The position from which streaming resumes after this transaction. Never its `commit_lsn`,
    /// because the server would deliver the transaction again.
    #[must_use]
    pub fn boundary(&self) -> Boundary {
        Boundary::new(self.end_lsn)
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        cursor.known_flags(0)?;
        Ok(Self {
            commit_lsn: cursor.lsn("commit_lsn")?,
            end_lsn: cursor.lsn("end_lsn")?,
            commit_timestamp: cursor.timestamp("commit_timestamp")?,
        })
    }
}

/// The transaction was itself replicated from another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The commit position on the original server.
    pub commit_lsn: Lsn,
    /// The name of the replication origin.
    pub name: &'a str,
}

impl<'a> Origin<'a> {
    pub(crate) fn parse(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self { commit_lsn: cursor.lsn("commit_lsn")?, name: cursor.text()? })
    }
}

/// A type that is not built in, described before a relation that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// The type's oid.
    pub id: u32,
    /// The type's schema, with `pg_catalog` spelled out.
    pub namespace: &'a str,
    /// The type's name.
    pub name: &'a str,
}

impl<'a> Type<'a> {
    pub(crate) fn parse(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let id = cursor.u32("type id")?;
        Ok(Self { id, namespace: cursor.namespace()?, name: cursor.text()? })
    }
}

/// An inserted row.
#[derive(Debug, Clone, Copy)]
pub struct Insert<'a> {
    /// The row's table, as last described.
    pub relation: &'a Relation,
    /// The row's values.
    pub tuple: Tuple<'a>,
    /// The row's position, equal on every delivery.
    pub position: Position,
}

/// An updated row.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// The row's table, as last described.
    pub relation: &'a Relation,
    /// The row's old identity, if the key changed or the replica identity is full.
    pub old: Option<OldTuple<'a>>,
    /// The row's new values.
    pub new: Tuple<'a>,
}

/// A deleted row.
#[derive(Debug, Clone, Copy)]
pub struct Delete<'a> {
    /// The row's table, as last described.
    pub relation: &'a Relation,
    /// The row's identity.
    pub old: OldTuple<'a>,
}

/// The identity of a row before it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// The replica identity. All other columns are null.
    Key(Tuple<'a>),
    /// The whole row, because the replica identity is `FULL`.
    Full(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    /// Parses the old tuple at the cursor, or returns `None` if its tag is not there.
    pub(crate) fn parse(
        cursor: &mut Cursor<'a>,
        relation: &Relation,
        form: MessageForm,
    ) -> Result<Option<Self>, DecodeError> {
        let of_kind: fn(Tuple<'a>) -> Self = match cursor.peek() {
            Some(b'K') => Self::Key,
            Some(b'O') => Self::Full,
            Some(_) | None => return Ok(None),
        };
        cursor.u8("tuple tag")?;
        Tuple::parse(cursor, relation, form).map(of_kind).map(Some)
    }
}

/// The tables that one statement truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// The options of the statement.
    pub options: TruncateOptions,
    /// Checked oids of four bytes each.
    relation_ids: &'a [u8],
}

impl<'a> Truncate<'a> {
    /// The oids of the truncated tables.
    pub fn relation_ids(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.relation_ids.as_chunks().0.iter().map(|id| u32::from_be_bytes(*id))
    }

    pub(crate) fn parse(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = cursor.u32("relation count")?;
        let options = TruncateOptions(cursor.known_flags(TruncateOptions::ALL)?);
        let relation_ids = cursor.bytes(count.saturating_mul(4), "relation ids")?;
        Ok(Self { options, relation_ids })
    }
}

impl fmt::Debug for Truncate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Truncate")
            .field("options", &self.options)
            .field("relation_ids", &self.relation_ids().collect::<Vec<_>>())
            .finish()
    }
}

/// The options of a `TRUNCATE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncateOptions(pub(crate) u8);

impl TruncateOptions {
    /// Neither option.
    pub const NONE: Self = Self(0);
    /// `TRUNCATE ... CASCADE`.
    pub const CASCADE: Self = Self(1);
    /// `TRUNCATE ... RESTART IDENTITY`.
    pub const RESTART_IDENTITY: Self = Self(2);
    /// Both options.
    pub const CASCADE_RESTART_IDENTITY: Self = Self(Self::ALL);
    const ALL: u8 = 3;

    /// Whether the statement had `CASCADE`.
    #[must_use]
    pub fn is_cascade(self) -> bool {
        self.0 & Self::CASCADE.0 != 0
    }

    /// Whether the statement had `RESTART IDENTITY`.
    #[must_use]
    pub fn is_restart_identity(self) -> bool {
        self.0 & Self::RESTART_IDENTITY.0 != 0
    }
}

/// A message that `pg_logical_emit_message` wrote, if the option `messages` is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether the message belongs to the open transaction. Otherwise the server sent it at once,
    /// even if the transaction that wrote it was rolled back.
    pub transactional: bool,
    /// The WAL position of the message.
    pub lsn: Lsn,
    /// The prefix that identifies the application.
    pub prefix: &'a str,
    /// Any bytes.
    pub content: &'a [u8],
}

impl<'a> LogicalMessage<'a> {
    pub(crate) fn parse(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let transactional = cursor.flag("flags")?;
        let (lsn, prefix) = (cursor.lsn("lsn")?, cursor.text()?);
        let len = cursor.u32("content length")?;
        Ok(Self { transactional, lsn, prefix, content: cursor.bytes(len, "content")? })
    }
}

impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content belongs to the application and must not be logged.
        f.debug_struct("LogicalMessage")
            .field("transactional", &self.transactional)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content_bytes", &self.content.len())
            .finish()
    }
}
