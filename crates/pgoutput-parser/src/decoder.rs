//! The inner layer: decodes pgoutput messages and checks their order.
//!
//! Owns the state across messages: the described relations and the open transaction. Promises that
//! a row's position is equal on every delivery, and that resuming at a [`Boundary`] loses no row.
//! After the first error, the decoder must not be used again. Callers interpret the values.
//!
//! ```text
//!            Begin                    Commit with the announced commit_lsn
//! (outside) ───────▶ OpenTransaction ──────────────────────────────────────▶ (outside)
//!    │                  │
//!    │                  ├─ Insert, Update, Delete, Truncate, Origin, transactional Message
//!    └──────────────────┴─ Relation, Type, Message that is not transactional, keepalive
//! ```

use crate::cursor::Cursor;
use crate::error::{DecodeError, ExpectedBytes, Found, MessageKind};
use crate::frame::Keepalive;
use crate::lsn::{Boundary, Lsn, Position};
use crate::message::{
    Begin, Commit, Delete, Insert, LogicalMessage, OldTuple, Origin, Truncate, Type, Update,
};
use crate::relations::{Domains, Relation, Relations};
use crate::tuple::{MessageForm, Tuple};

/// Decodes the data of XLogData frames into changes. One decoder serves one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    relations: Relations,
    domains: Domains,
    open: Option<OpenTransaction>,
    /// The `end_lsn` of the last commit. Transactions arrive in commit order, so none starts below
    /// it.
    last_end_lsn: Option<Lsn>,
    /// The index of the first insert of the next transaction.
    first_index: u32,
}

/// A transaction whose Commit has not arrived yet.
#[derive(Debug)]
struct OpenTransaction {
    xid: u32,
    commit_lsn: Lsn,
    inserts: u32,
}

/// One decoded message. It borrows from the decoder and the message.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// A committed transaction starts.
    Begin(Begin),
    /// The open transaction is complete.
    Commit(Commit),
    /// The open transaction came from another server.
    Origin(Origin<'a>),
    /// The server described a table, for the first time or again.
    Relation(&'a Relation),
    /// The server described a type.
    Type(Type<'a>),
    /// A row was inserted.
    Insert(Insert<'a>),
    /// A row was updated.
    Update(Update<'a>),
    /// A row was deleted.
    Delete(Delete<'a>),
    /// Tables were truncated.
    Truncate(Truncate<'a>),
    /// An application wrote a message to the WAL with `pg_logical_emit_message`.
    Message(LogicalMessage<'a>),
}

impl Decoder {
    /// Creates a decoder for a new connection. It is outside a transaction and knows no relation.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a decoder for a stream that begins within a transaction. The first insert gets this
    /// index.
    #[must_use]
    pub fn counting_from(first_index: u32) -> Self {
        Self { first_index, ..Self::default() }
    }

    /// Decodes one pgoutput message: the data of one XLogData frame.
    ///
    /// # Errors
    ///
    /// The bytes are not a message of `proto_version 1`, or the message is not allowed at this
    /// point.
    #[inline]
    pub fn decode<'a>(&'a mut self, data: &'a [u8]) -> Result<Change<'a>, DecodeError> {
        let mut cursor = Cursor::new(MessageKind::Unknown, data);
        let (kind, form) = kind_of(&cursor)?;
        cursor = cursor.named(kind);
        cursor.u8("tag")?;
        match kind {
            MessageKind::Insert => self.insert(cursor, form).map(Change::Insert),
            MessageKind::Begin => self.begin(cursor).map(Change::Begin),
            MessageKind::Commit => self.commit(cursor).map(Change::Commit),
            MessageKind::Relation => self.relation(cursor).map(Change::Relation),
            MessageKind::Update => self.update(cursor, form).map(Change::Update),
            MessageKind::Delete => self.delete(cursor, form).map(Change::Delete),
            MessageKind::Truncate => self.truncate(cursor).map(Change::Truncate),
            MessageKind::Message => self.message(cursor).map(Change::Message),
            MessageKind::Type => {
                let described = whole(cursor, Type::parse)?;
                self.domains.learn(described.id, (described.namespace, described.name));
                Ok(Change::Type(described))
            }
            MessageKind::Origin => {
                inside(&self.open, &cursor)?;
                whole(cursor, Origin::parse).map(Change::Origin)
            }
            MessageKind::Frame
            | MessageKind::XLogData
            | MessageKind::Keepalive
            | MessageKind::StandbyStatusUpdate
            | MessageKind::Unknown => Err(cursor.wrong_byte("a pgoutput message")),
        }
    }

    /// Whether the decoder has nearly as many relations as it keeps. Between two transactions, the
    /// caller should connect again with a new decoder. The server then describes only the relations
    /// that are still in use.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        self.relations.is_nearly_full()
    }

    /// The position of a keepalive as a resume position, or `None` inside a transaction.
    ///
    /// Inside a transaction, the keepalive's position says nothing about the rows already sent. It
    /// is before their commit, and even that is not guaranteed by every server.
    #[must_use]
    pub fn boundary(&self, keepalive: &Keepalive) -> Option<Boundary> {
        match self.open {
            Some(_) => None,
            None => Some(Boundary::new(keepalive.wal_end)),
        }
    }

    /// The position of the next Insert in the open transaction, and the transaction's id. `None`
    /// outside a transaction.
    #[must_use]
    pub fn next_position(&self) -> Option<(Position, u32)> {
        let OpenTransaction { xid, commit_lsn, inserts } = self.open.as_ref()?;
        Some((Position { commit_lsn: *commit_lsn, tx_index: *inserts }, *xid))
    }

    fn begin(&mut self, cursor: Cursor<'_>) -> Result<Begin, DecodeError> {
        if self.open.is_some() {
            let expected =
                ExpectedBytes::Rule("the open transaction's Commit before another Begin");
            return Err(at_tag(&cursor, expected, Found::ClaimFate("a second Begin")));
        }
        let begin = whole(cursor, Begin::parse)?;
        if let Some(lsn) = self.last_end_lsn.filter(|last| begin.final_lsn < *last) {
            let expected = ExpectedBytes::NotBelow { what: "final_lsn", lsn };
            return Err(cursor.wrong(expected, Found::Lsn(begin.final_lsn)));
        }
        let inserts = std::mem::take(&mut self.first_index);
        self.open = Some(OpenTransaction { xid: begin.xid, commit_lsn: begin.final_lsn, inserts });
        Ok(begin)
    }

    fn commit(&mut self, cursor: Cursor<'_>) -> Result<Commit, DecodeError> {
        let announced = inside(&self.open, &cursor)?.commit_lsn;
        let commit = whole(cursor, Commit::parse)?;
        // The offset in each error is that of its field, after tag and flags.
        let mut at_lsn = cursor;
        at_lsn.u8("flags")?;
        if commit.commit_lsn != announced {
            let found = Found::Lsn(commit.commit_lsn);
            return Err(at_lsn.wrong(ExpectedBytes::CommitLsn(announced), found));
        }
        at_lsn.lsn("commit_lsn")?;
        if commit.end_lsn <= commit.commit_lsn {
            let expected = ExpectedBytes::Above { what: "end_lsn", lsn: commit.commit_lsn };
            return Err(at_lsn.wrong(expected, Found::Lsn(commit.end_lsn)));
        }
        self.open = None;
        self.last_end_lsn = Some(commit.end_lsn);
        Ok(commit)
    }

    fn relation(&mut self, cursor: Cursor<'_>) -> Result<&Relation, DecodeError> {
        let id = self.relations.describe(cursor, &mut self.domains)?;
        known(&mut self.relations, id, &cursor)
    }

    #[inline]
    fn insert<'a>(
        &'a mut self,
        mut cursor: Cursor<'a>,
        form: MessageForm,
    ) -> Result<Insert<'a>, DecodeError> {
        let Some(open) = &mut self.open else { return Err(outside(&cursor)) };
        let relation = next_relation(&mut self.relations, &mut cursor)?;
        let tuple = new_tuple(&mut cursor, relation, form)?;
        cursor.finish()?;

        let position = Position { commit_lsn: open.commit_lsn, tx_index: open.inserts };
        open.inserts = open.inserts.checked_add(1).ok_or_else(|| {
            let max = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
            let expected = ExpectedBytes::AtMost { what: "inserts in a transaction", max };
            cursor.wrong(expected, Found::ClaimFate("one more"))
        })?;
        Ok(Insert { relation, tuple, position })
    }

    fn update<'a>(
        &'a mut self,
        mut cursor: Cursor<'a>,
        form: MessageForm,
    ) -> Result<Update<'a>, DecodeError> {
        inside(&self.open, &cursor)?;
        let relation = next_relation(&mut self.relations, &mut cursor)?;
        let old = OldTuple::parse(&mut cursor, relation, form)?;
        let new = new_tuple(&mut cursor, relation, form)?;
        cursor.finish()?;
        Ok(Update { relation, old, new })
    }

    fn delete<'a>(
        &'a mut self,
        mut cursor: Cursor<'a>,
        form: MessageForm,
    ) -> Result<Delete<'a>, DecodeError> {
        inside(&self.open, &cursor)?;
        let relation = next_relation(&mut self.relations, &mut cursor)?;
        let old = OldTuple::parse(&mut cursor, relation, form)?
            .ok_or_else(|| cursor.wrong_byte("an old tuple, 'K' or 'O'"))?;
        cursor.finish()?;
        Ok(Delete { relation, old })
    }

    fn truncate<'a>(&'a mut self, cursor: Cursor<'a>) -> Result<Truncate<'a>, DecodeError> {
        inside(&self.open, &cursor)?;
        let truncate = whole(cursor, Truncate::parse)?;
        let mut at_ids = cursor;
        at_ids.u32("relation count")?;
        at_ids.u8("options")?;
        for _ in truncate.relation_ids() {
            next_relation(&mut self.relations, &mut at_ids)?;
        }
        Ok(truncate)
    }

    fn message<'a>(&'a mut self, cursor: Cursor<'a>) -> Result<LogicalMessage<'a>, DecodeError> {
        let message = whole(cursor, LogicalMessage::parse)?;
        if message.transactional {
            inside(&self.open, &cursor)?;
        }
        Ok(message)
    }
}

/// Reads the message kind from the tag, and whether the message may be condensed.
#[inline]
fn kind_of(cursor: &Cursor<'_>) -> Result<(MessageKind, MessageForm), DecodeError> {
    let kind = match cursor.peek() {
        Some(b'I') => MessageKind::Insert,
        Some(b'B') => MessageKind::Begin,
        Some(b'C') => MessageKind::Commit,
        Some(b'R') => MessageKind::Relation,
        Some(b'Y') => MessageKind::Type,
        Some(b'O') => MessageKind::Origin,
        Some(b'U') => MessageKind::Update,
        Some(b'D') => MessageKind::Delete,
        Some(b'T') => MessageKind::Truncate,
        Some(b'M') => MessageKind::Message,
        Some(b'i') => return Ok((MessageKind::Insert, MessageForm::Condensed)),
        Some(b'u') => return Ok((MessageKind::Update, MessageForm::Condensed)),
        Some(b'd') => return Ok((MessageKind::Delete, MessageForm::Condensed)),
        Some(tag) => return Err(unknown_tag(cursor, tag)),
        None => return Err(cursor.wrong_byte("the tag of a pgoutput message")),
    };
    Ok((kind, MessageForm::Whole))
}

/// The error names streaming and two-phase messages, because only a wrong option can produce them.
#[cold]
fn unknown_tag(cursor: &Cursor<'_>, tag: u8) -> DecodeError {
    let found = match tag {
        b'S' => Found::ClaimFate("Stream Start ('S', of option streaming)"),
        b'E' => Found::ClaimFate("Stream Stop ('E', of option streaming)"),
        b'c' => Found::ClaimFate("Stream Commit ('c', of option streaming)"),
        b'A' => Found::ClaimFate("Stream Abort ('A', of option streaming)"),
        b'b' => Found::ClaimFate("Begin Prepare ('b', of option two_phase)"),
        b'P' => Found::ClaimFate("Prepare ('P', of option two_phase)"),
        b'K' => Found::ClaimFate("Commit Prepared ('K', of option two_phase)"),
        b'r' => Found::ClaimFate("Rollback Prepared ('r', of option two_phase)"),
        b'p' => Found::ClaimFate("Stream Prepare ('p', of options streaming and two_phase)"),
        other => Found::Byte(other),
    };
    cursor.wrong(ExpectedBytes::Rule("the tag of a message of proto_version 1"), found)
}

/// Parses a message and checks that no bytes follow.
fn whole<'a, T>(
    mut cursor: Cursor<'a>,
    parse: impl Fn(&mut Cursor<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let message = parse(&mut cursor)?;
    cursor.finish()?;
    Ok(message)
}

fn inside<'a>(
    open: &'a Option<OpenTransaction>,
    cursor: &Cursor<'_>,
) -> Result<&'a OpenTransaction, DecodeError> {
    open.as_ref().ok_or_else(|| outside(cursor))
}

#[cold]
fn outside(cursor: &Cursor<'_>) -> DecodeError {
    at_tag(cursor, ExpectedBytes::Rule("a Begin first"), Found::ClaimFate("no open transaction"))
}

/// Creates an error about the whole message, with the offset of its tag.
#[cold]
fn at_tag(cursor: &Cursor<'_>, expected: ExpectedBytes, found: Found) -> DecodeError {
    DecodeError::new(cursor.message(), 0, expected, found)
}

/// Reads a relation id and finds the relation.
#[inline]
fn next_relation<'a>(
    relations: &'a mut Relations,
    cursor: &mut Cursor<'_>,
) -> Result<&'a Relation, DecodeError> {
    let at_id = *cursor;
    let id = cursor.u32("relation id")?;
    known(relations, id, &at_id)
}

#[inline]
fn known<'a>(
    relations: &'a mut Relations,
    id: u32,
    cursor: &Cursor<'_>,
) -> Result<&'a Relation, DecodeError> {
    relations.get(id).ok_or_else(|| {
        let expected = ExpectedBytes::Rule("the id of a relation described before");
        cursor.wrong(expected, Found::Number(id.into()))
    })
}

#[inline]
fn new_tuple<'a>(
    cursor: &mut Cursor<'a>,
    relation: &Relation,
    form: MessageForm,
) -> Result<Tuple<'a>, DecodeError> {
    if cursor.peek() != Some(b'N') {
        return Err(cursor.wrong_byte("a new tuple, 'N'"));
    }
    cursor.u8("tuple tag")?;
    Tuple::parse(cursor, relation, form)
}
