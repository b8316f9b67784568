//! The inner layer in its order: transactions one after another, tables described before their rows.
//!
//! Owns what outlives a message: the described relations and the open transaction. Promises that a
//! row's position is the same on every delivery, and that a [`Boundary`] loses nothing. Fails on the
//! first message that does not fit, and is then of no more use. Leaves the meaning of values to others.
//!
//! ```text
//!            Begin                    Commit with the announced commit_lsn
//! (outside) ───────▶ OpenTransaction ──────────────────────────────────────▶ (outside)
//!    │                  │
//!    │                  ├─ Insert, Update, Delete, Truncate, Origin, transactional Message
//!    └──────────────────┴─ Relation, Type, Message that is not transactional, keepalive
//! ```

use crate::cursor::Cursor;
use crate::error::{DecodeError, Expected, Found, MessageKind};
use crate::frame::Keepalive;
use crate::lsn::{Boundary, Lsn, Position};
use crate::message::{
    Begin, Commit, Delete, Insert, LogicalMessage, OldTuple, Origin, Truncate, Type, Update,
};
use crate::relations::{Relation, Relations};
use crate::tuple::{Form, Tuple};

/// Turns the data of XLogData frames into changes. One per connection.
#[derive(Debug, Default)]
pub struct Decoder {
    relations: Relations,
    open: Option<OpenTransaction>,
    /// `end_lsn` of the last commit; transactions arrive in commit order, so none starts below it.
    last_end_lsn: Option<Lsn>,
    /// The index of the first insert of the next transaction.
    first_index: u32,
}

/// A transaction whose Commit has not come yet.
#[derive(Debug)]
struct OpenTransaction {
    xid: u32,
    commit_lsn: Lsn,
    inserts: u32,
}

/// One decoded message. Everything in it borrows from the decoder and the message.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// A committed transaction starts.
    Begin(Begin),
    /// The open transaction is complete.
    Commit(Commit),
    /// The open transaction came from another server.
    Origin(Origin<'a>),
    /// A table was described, for the first time or anew.
    Relation(&'a Relation),
    /// A type was described.
    Type(Type<'a>),
    /// A row was added.
    Insert(Insert<'a>),
    /// A row was changed.
    Update(Update<'a>),
    /// A row was removed.
    Delete(Delete<'a>),
    /// Tables were emptied.
    Truncate(Truncate<'a>),
    /// An application wrote to the log itself.
    Message(LogicalMessage<'a>),
}

impl Decoder {
    /// A decoder for a new connection: outside a transaction, knowing no relation.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder for a stream that begins in the middle of a transaction: the first insert has this index.
    #[must_use]
    pub fn counting_from(first_index: u32) -> Self {
        Self { first_index, ..Self::default() }
    }

    /// Decodes one pgoutput message: the data of one XLogData frame.
    ///
    /// # Errors
    ///
    /// The bytes are not a message of `proto_version 1`, or not one that may come now.
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
            MessageKind::Type => whole(cursor, Type::parse).map(Change::Type),
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

    /// The position of a keepalive as one to resume from, or `None` inside a transaction.
    ///
    /// Inside, it says nothing about the rows already sent: it lies before their commit, and a server
    /// may not promise even that.
    #[must_use]
    pub fn boundary(&self, keepalive: &Keepalive) -> Option<Boundary> {
        match self.open {
            Some(_) => None,
            None => Some(Boundary::new(keepalive.wal_end)),
        }
    }

    /// The position that the next Insert of the open transaction has, and the id of that transaction;
    /// `None` outside a transaction.
    #[must_use]
    pub fn next_position(&self) -> Option<(Position, u32)> {
        let OpenTransaction { xid, commit_lsn, inserts } = self.open.as_ref()?;
        Some((Position { commit_lsn: *commit_lsn, tx_index: *inserts }, *xid))
    }

    fn begin(&mut self, cursor: Cursor<'_>) -> Result<Begin, DecodeError> {
        if self.open.is_some() {
            let expected = Expected::Rule("the open transaction's Commit before another Begin");
            return Err(at_tag(&cursor, expected, Found::What("a second Begin")));
        }
        let begin = whole(cursor, Begin::parse)?;
        if let Some(lsn) = self.last_end_lsn.filter(|last| begin.final_lsn < *last) {
            let expected = Expected::NotBelow { what: "final_lsn", lsn };
            return Err(cursor.wrong(expected, Found::Lsn(begin.final_lsn)));
        }
        let inserts = std::mem::take(&mut self.first_index);
        self.open = Some(OpenTransaction { xid: begin.xid, commit_lsn: begin.final_lsn, inserts });
        Ok(begin)
    }

    fn commit(&mut self, cursor: Cursor<'_>) -> Result<Commit, DecodeError> {
        let announced = inside(&self.open, &cursor)?.commit_lsn;
        let commit = whole(cursor, Commit::parse)?;
        // Offsets in both errors are those of the field, behind tag and flags.
        let mut at_lsn = cursor;
        at_lsn.u8("flags")?;
        if commit.commit_lsn != announced {
            let found = Found::Lsn(commit.commit_lsn);
            return Err(at_lsn.wrong(Expected::CommitLsn(announced), found));
        }
        at_lsn.lsn("commit_lsn")?;
        if commit.end_lsn <= commit.commit_lsn {
            let expected = Expected::Above { what: "end_lsn", lsn: commit.commit_lsn };
            return Err(at_lsn.wrong(expected, Found::Lsn(commit.end_lsn)));
        }
        self.open = None;
        self.last_end_lsn = Some(commit.end_lsn);
        Ok(commit)
    }

    fn relation(&mut self, cursor: Cursor<'_>) -> Result<&Relation, DecodeError> {
        let id = self.relations.describe(cursor)?;
        known(&mut self.relations, id, &cursor)
    }

    #[inline]
    fn insert<'a>(
        &'a mut self,
        mut cursor: Cursor<'a>,
        form: Form,
    ) -> Result<Insert<'a>, DecodeError> {
        let Some(open) = &mut self.open else { return Err(outside(&cursor)) };
        let relation = next_relation(&mut self.relations, &mut cursor)?;
        let tuple = new_tuple(&mut cursor, (relation, form))?;
        cursor.finish()?;

        let position = Position { commit_lsn: open.commit_lsn, tx_index: open.inserts };
        open.inserts = open.inserts.checked_add(1).ok_or_else(|| {
            let max = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
            let expected = Expected::AtMost { what: "inserts in a transaction", max };
            cursor.wrong(expected, Found::What("one more"))
        })?;
        Ok(Insert { relation, tuple, position })
    }

    fn update<'a>(
        &'a mut self,
        mut cursor: Cursor<'a>,
        form: Form,
    ) -> Result<Update<'a>, DecodeError> {
        inside(&self.open, &cursor)?;
        let relation = next_relation(&mut self.relations, &mut cursor)?;
        let old = OldTuple::parse(&mut cursor, (relation, form))?;
        let new = new_tuple(&mut cursor, (relation, form))?;
        cursor.finish()?;
        Ok(Update { relation, old, new })
    }

    fn delete<'a>(
        &'a mut self,
        mut cursor: Cursor<'a>,
        form: Form,
    ) -> Result<Delete<'a>, DecodeError> {
        inside(&self.open, &cursor)?;
        let relation = next_relation(&mut self.relations, &mut cursor)?;
        let old = OldTuple::parse(&mut cursor, (relation, form))?
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

/// Which message is at the cursor, by its tag, and whether values may have been left out of it.
#[inline]
fn kind_of(cursor: &Cursor<'_>) -> Result<(MessageKind, Form), DecodeError> {
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
        Some(b'i') => return Ok((MessageKind::Insert, Form::Condensed)),
        Some(b'u') => return Ok((MessageKind::Update, Form::Condensed)),
        Some(b'd') => return Ok((MessageKind::Delete, Form::Condensed)),
        Some(tag) => return Err(unknown_tag(cursor, tag)),
        None => return Err(cursor.wrong_byte("the tag of a pgoutput message")),
    };
    Ok((kind, Form::Whole))
}

/// Streaming and two-phase messages are named, because an option must have been set to get them.
#[cold]
fn unknown_tag(cursor: &Cursor<'_>, tag: u8) -> DecodeError {
    let found = match tag {
        b'S' => Found::What("Stream Start ('S', of option streaming)"),
        b'E' => Found::What("Stream Stop ('E', of option streaming)"),
        b'c' => Found::What("Stream Commit ('c', of option streaming)"),
        b'A' => Found::What("Stream Abort ('A', of option streaming)"),
        b'b' => Found::What("Begin Prepare ('b', of option two_phase)"),
        b'P' => Found::What("Prepare ('P', of option two_phase)"),
        b'K' => Found::What("Commit Prepared ('K', of option two_phase)"),
        b'r' => Found::What("Rollback Prepared ('r', of option two_phase)"),
        b'p' => Found::What("Stream Prepare ('p', of options streaming and two_phase)"),
        other => Found::Byte(other),
    };
    cursor.wrong(Expected::Rule("the tag of a message of proto_version 1"), found)
}

/// A message that consists of nothing but what `parse` reads.
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
    at_tag(cursor, Expected::Rule("a Begin first"), Found::What("no open transaction"))
}

/// An error about the message as a whole, whose place is its tag.
#[cold]
fn at_tag(cursor: &Cursor<'_>, expected: Expected, found: Found) -> DecodeError {
    DecodeError::new(cursor.message(), 0, expected, found)
}

/// Reads a relation's id and looks it up.
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
        let expected = Expected::Rule("the id of a relation described before");
        cursor.wrong(expected, Found::Number(id.into()))
    })
}

#[inline]
fn new_tuple<'a>(
    cursor: &mut Cursor<'a>,
    described: (&Relation, Form),
) -> Result<Tuple<'a>, DecodeError> {
    if cursor.peek() != Some(b'N') {
        return Err(cursor.wrong_byte("a new tuple, 'N'"));
    }
    cursor.u8("tuple tag")?;
    Tuple::parse(cursor, described)
}
