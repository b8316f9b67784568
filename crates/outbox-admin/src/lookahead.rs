//! Reads the inserts that a slot would deliver up to a position, without confirming any of them.
//!
//! A command that moves a slot forward asks first which inserts the move skips. One row is in
//! memory at a time, and the number of retained ids is bounded, however much the slot holds. This
//! module reads the kind and the positions of a message itself. A message that the decoder rejects
//! must not prevent a skip of its transaction.
//!
//! Text arrives as it is stored. Bytes that the server cannot convert to UTF-8 end the relay's
//! stream, but here they only mark their row as unsendable.

use std::time::Duration;

use pgoutput_parser::{Change, Column, Decoder, Frame, Insert, Lsn, Position, XLogData};
use walrelay_core::{ColumnAliases, Watermark};
use walrelay_pg_client::{ConnectConfig, PgError};
use walrelay_pg_replication::{
    NetworkFeedback, NetworkFrames, ReplicationConnection, StreamSettings,
};

use walrelay_relay::error::RelayError;
use walrelay_relay::stream::pipeline_error::SendFailurePosition;

/// The parameters of a lookahead.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub connect: &'a ConnectConfig,
    /// The slot to read. No other session may hold it.
    pub slot: &'a str,
    pub publication: &'a str,
    /// The column of the event id.
    pub id: &'a ColumnAliases,
    /// The settled position. Transactions that end here or before are settled.
    pub from: Lsn,
    /// The end of the range: a position inside a transaction, which is then skipped whole, or a
    /// position that no transaction contains.
    pub to: Lsn,
}

#[derive(Debug)]
pub enum Lookahead {
    /// The move skips these changes.
    Reaches(SkippedChanges),
    /// Before the position, the server cannot send a row.
    Blocked { at: SendFailurePosition, source: PgError },
}

/// The changes before the new position of a slot.
#[derive(Debug)]
pub struct SkippedChanges {
    /// The new position of the slot.
    pub target: Lsn,
    /// The number of transactions with changes.
    pub transactions: u64,
    pub inserts: u64,
    /// The number of their updates, deletes and truncates.
    pub other_changes: u64,
    /// The first inserts, at most [`ROWS_NAMED_MAX`].
    pub rows: Vec<SkippedRow>,
    /// The last transaction, if the server could send only a part of it.
    pub unsendable: Option<UnsendableTransaction>,
}

impl SkippedChanges {
    const fn nothing() -> Self {
        Self {
            target: Lsn::ZERO,
            transactions: 0,
            inserts: 0,
            other_changes: 0,
            rows: Vec::new(),
            unsendable: None,
        }
    }
}

/// An insert that the move skips.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SkippedRow {
    /// Its event id, if it can be read.
    pub event_id: Option<String>,
    pub at: String,
    /// Whether the server can send it. If so, a backfill can read it.
    pub is_sendable: bool,
}

/// A transaction that the server could send only in part.
#[derive(Debug)]
pub struct UnsendableTransaction {
    /// The row that the server could not send.
    pub position: Position,
    pub xid: u32,
    pub source: PgError,
}

/// The maximum number of retained ids. The commands print fewer, and compare the others with the
/// rows of the table.
pub const ROWS_NAMED_MAX: usize = 1_000;

/// The interval between status updates. Each one makes the server reply with its position, so the
/// end is noticed within this time.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// An offset from the start of a commit record. Every commit record is longer, so the resulting
/// position is before the next record.
const WITHIN_COMMIT_RECORD: u64 = 8;

/// Reads the slot up to the requested position.
///
/// # Errors
///
/// The slot is in use or lost.
pub async fn look_ahead(question: Question<'_>) -> Result<Lookahead, RelayError> {
    let (mut frames, mut feedback, end) = open(&question).await.map_err(RelayError::Connect)?;
    let mut reading = Reading::new(question, end);
    let answer = loop {
        tokio::select! {
            biased;
            () = feedback.due(Watermark::NONE) => {
                feedback.confirm(Watermark::NONE).await.map_err(RelayError::Connect)?;
            }
            frame = frames.next() => match frame {
                Ok(Frame::Keepalive(keepalive)) => {
                    feedback.note_keepalive(&keepalive);
                    if reading.open.is_none() && keepalive.wal_end >= end {
                        break reading.at_the_end();
                    }
                }
                Ok(Frame::XLogData(data)) => {
                    if let Some(answer) = reading.take(&data) {
                        break answer;
                    }
                }
                Err(error) => break reading.broken_off(error)?,
            }
        }
    };
    // The server's answer means that the slot is free. A broken connection frees the slot as well.
    if let Err(error) = feedback.finish(frames, Watermark::NONE).await {
        tracing::debug!(%error, "the stream ended otherwise than it should");
    }
    Ok(answer)
}

async fn open(question: &Question<'_>) -> Result<(NetworkFrames, NetworkFeedback, Lsn), PgError> {
    let Question { connect, slot, publication, from, .. } = *question;
    let options = [("wal_sender_timeout", "60s"), ("bytea_output", "hex")];
    let mut connection = ReplicationConnection::connect(connect, &options).await?;
    connection.simple_query("SET client_encoding = 'SQL_ASCII'").await?;
    let end = connection.identify_system().await?.xlogpos;
    let settings = StreamSettings { status_interval: STATUS_INTERVAL, ..StreamSettings::default() };
    let publications = [publication.to_owned()];
    let (frames, feedback) = connection.start(slot, &publications, from, &settings).await?;
    Ok((frames, feedback, end))
}

/// The changes read so far.
#[derive(Debug)]
struct Reading<'a> {
    question: Question<'a>,
    /// The end of WAL at the start. Later commits are not counted.
    end: Lsn,
    /// Decodes the ids. `None` after a message that could not be decoded.
    decoder: Option<Decoder>,
    open: Option<OpenTransaction>,
    all: SkippedChanges,
    /// The counts of the changes before the position.
    before: Counts,
}

#[derive(Debug)]
struct OpenTransaction {
    commit_lsn: Lsn,
    xid: u32,
    is_meant: bool,
    inserts: u32,
    other_changes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Counts {
    end_lsn: Lsn,
    transactions: u64,
    inserts: u64,
    other_changes: u64,
}

impl Counts {
    const NONE: Self = Self { end_lsn: Lsn::ZERO, transactions: 0, inserts: 0, other_changes: 0 };
}

impl<'a> Reading<'a> {
    fn new(question: Question<'a>, end: Lsn) -> Self {
        let (open, decoder) = (None, Some(Decoder::new()));
        let (all, before) = (SkippedChanges::nothing(), Counts::NONE);
        Self { question, end, decoder, open, all, before }
    }

    /// Reads one message of the stream. Returns the result if no later message matters.
    fn take(&mut self, frame: &XLogData<'_>) -> Option<Lookahead> {
        let data = frame.data;
        let kind = data.first().copied();
        match kind {
            Some(b'B') => {
                let commit_lsn = lsn_at(data, 1);
                if commit_lsn > self.end.max(self.question.to) {
                    return Some(self.at_the_end());
                }
                let xid = u32::try_from(number_at(data, 17, 4)).unwrap_or_default();
                let is_meant = self.question.to == commit_lsn;
                let (inserts, other_changes) = (0, 0);
                self.open =
                    Some(OpenTransaction { commit_lsn, xid, is_meant, inserts, other_changes });
            }
            Some(b'I' | b'U' | b'D' | b'T') => {
                if let Some(open) = &mut self.open {
                    open.is_meant |= self.question.to == frame.wal_start;
                    match kind {
                        Some(b'I') => open.inserts += 1,
                        _ => open.other_changes += 1,
                    }
                }
            }
            Some(_) | None => {}
        }
        self.name(data);
        (kind == Some(b'C')).then(|| self.commit(lsn_at(data, 10))).flatten()
    }

    /// Records the row, if the message is an insert.
    fn name(&mut self, data: &[u8]) {
        let Some(decoder) = &mut self.decoder else { return self.record_unreadable(data) };
        let has_room = self.all.rows.len() < ROWS_NAMED_MAX;
        match decoder.decode(data) {
            Ok(Change::Insert(insert)) if has_room => {
                self.all.rows.push(row_of(&insert, self.question.id));
            }
            Ok(_) => {}
            Err(_) => {
                self.decoder = None;
                self.record_unreadable(data);
            }
        }
    }

    /// Records a row whose columns cannot be decoded.
    fn record_unreadable(&mut self, data: &[u8]) {
        let Some(open) = &self.open else { return };
        if data.first() == Some(&b'I') && self.all.rows.len() < ROWS_NAMED_MAX {
            let tx_index = open.inserts.saturating_sub(1);
            let at = Position { commit_lsn: open.commit_lsn, tx_index }.to_string();
            self.all.rows.push(SkippedRow { event_id: None, at, is_sendable: true });
        }
    }

    fn commit(&mut self, end_lsn: Lsn) -> Option<Lookahead> {
        let open = self.open.take()?;
        self.count(&open);
        if open.is_meant {
            return Some(self.reaches(end_lsn));
        }
        if end_lsn <= self.question.to {
            let SkippedChanges { transactions, inserts, other_changes, .. } = self.all;
            self.before = Counts { end_lsn, transactions, inserts, other_changes };
        }
        None
    }

    fn count(&mut self, open: &OpenTransaction) {
        self.all.transactions += u64::from(open.inserts > 0 || open.other_changes > 0);
        self.all.inserts += u64::from(open.inserts);
        self.all.other_changes += open.other_changes;
    }

    fn reaches(&mut self, target: Lsn) -> Lookahead {
        Lookahead::Reaches(SkippedChanges {
            target,
            ..std::mem::replace(&mut self.all, SkippedChanges::nothing())
        })
    }

    /// Returns the transactions that end before the position, because no transaction contains it.
    fn at_the_end(&mut self) -> Lookahead {
        let Counts { transactions, inserts, other_changes, .. } = self.before;
        let target = self.question.to;
        let mut rows = std::mem::take(&mut self.all.rows);
        rows.truncate(usize::try_from(inserts).unwrap_or(usize::MAX));
        let unsendable = None;
        Lookahead::Reaches(SkippedChanges {
            target,
            transactions,
            inserts,
            other_changes,
            rows,
            unsendable,
        })
    }

    /// Handles the end of the stream. The requested position may be before this point, or may be in
    /// the transaction that cannot be sent.
    fn broken_off(&mut self, source: PgError) -> Result<Lookahead, RelayError> {
        if !matches!(&source, PgError::Server(answer) if answer.is_permanent()) {
            return Err(RelayError::Connect(source));
        }
        if self.question.to == self.before.end_lsn {
            return Ok(self.at_the_end());
        }
        let Some(open) = self.open.take() else {
            let position = Position { commit_lsn: self.before.end_lsn, tx_index: 0 };
            return Ok(Lookahead::Blocked { at: SendFailurePosition::Behind(position), source });
        };
        let position = Position { commit_lsn: open.commit_lsn, tx_index: open.inserts };
        let xid = open.xid;
        if !open.is_meant {
            return Ok(Lookahead::Blocked {
                at: SendFailurePosition::Row { position, xid },
                source,
            });
        }
        self.count(&open);
        let target = Lsn::new(open.commit_lsn.as_u64() + WITHIN_COMMIT_RECORD);
        self.all.unsendable = Some(UnsendableTransaction { position, xid, source });
        Ok(self.reaches(target))
    }
}

fn row_of(insert: &Insert<'_>, id: &ColumnAliases) -> SkippedRow {
    let names = insert.relation.columns.iter().map(|column| column.name.as_str());
    let place = id.iter().find_map(|wanted| names.clone().position(|name| name == wanted));
    let mut event_id = None;
    let mut is_sendable = true;
    for (index, column) in insert.tuple.columns().enumerate() {
        if let Column::Text(bytes) = column {
            let text = std::str::from_utf8(bytes);
            is_sendable &= text.is_ok();
            if place == Some(index) {
                event_id = text.ok().map(str::to_owned);
            }
        }
    }
    SkippedRow { event_id, at: insert.position.to_string(), is_sendable }
}

/// Reads a big-endian number of a message. Bytes beyond the end of the message count as zero.
fn number_at(data: &[u8], from: usize, length: usize) -> u64 {
    let bytes = data.get(from..from + length).unwrap_or_default();
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn lsn_at(data: &[u8], from: usize) -> Lsn {
    Lsn::new(number_at(data, from, 8))
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Begin, Commit, PgTimestamp, RelationColumn, ReplicaIdentity, encode};
    use walrelay_pg_client::{PgEnv, ServerError};

    use super::*;

    const NOW: PgTimestamp = PgTimestamp::from_micros(0);

    /// Returns the result for a slot with transactions at 100 (two rows, a delete) and 200 (one
    /// row).
    fn answer(to: u64, breaks_at: Option<u64>) -> Lookahead {
        let connect = ConnectConfig::parse("postgresql://u@h/d", &PgEnv::default())
            .expect("a connection string");
        let id_column = ColumnAliases::parse("id");
        let (slot, publication, from) = ("s", "p", Lsn::ZERO);
        let to = Lsn::new(to);
        let question = Question { connect: &connect, slot, publication, id: &id_column, from, to };
        let mut reading = Reading::new(question, Lsn::new(1_000));
        let columns =
            [RelationColumn { is_key: true, name: "id".into(), type_oid: 25, type_modifier: -1 }];
        let row = |id: &'static [u8]| encode::insert(7, &[Column::Text(id)]);
        let relation = encode::relation(7, "public", "o", ReplicaIdentity::Default, &columns);
        let begin = |lsn: u64, xid| {
            let final_lsn = Lsn::new(lsn);
            encode::begin(&Begin { final_lsn, commit_timestamp: NOW, xid })
        };
        let commit = |lsn: u64| {
            let (commit_lsn, end_lsn) = (Lsn::new(lsn), Lsn::new(lsn + 30));
            encode::commit(&Commit { commit_lsn, end_lsn, commit_timestamp: NOW })
        };
        let mut delete = vec![b'D', 0, 0, 0, 7, b'K', 0, 1, b't', 0, 0, 0, 1];
        delete.push(b'x');
        let messages = [
            (0, begin(100, 5)),
            (0, relation),
            (60, row(b"a")),
            (70, row(b"b\xFF")),
            (80, delete),
            (130, commit(100)),
            (0, begin(200, 6)),
            (110, row(b"c")),
            (230, commit(200)),
        ];
        for (at, data) in &messages {
            let wal_start = Lsn::new(*at);
            if breaks_at == Some(*at) {
                let error = ServerError { code: "XX000".into(), ..ServerError::default() };
                return reading.broken_off(PgError::Server(Box::new(error))).unwrap();
            }
            let frame = XLogData { wal_start, wal_end: wal_start, sent_at: NOW, data };
            if let Some(answer) = reading.take(&frame) {
                return answer;
            }
        }
        reading.at_the_end()
    }

    fn given_up(to: u64, breaks_at: Option<u64>) -> (u64, [u64; 3], Vec<Option<String>>) {
        let Lookahead::Reaches(it) = answer(to, breaks_at) else { panic!("it is blocked") };
        let ids = it.rows.into_iter().map(|row| row.event_id);
        (it.target.as_u64(), [it.transactions, it.inserts, it.other_changes], ids.collect())
    }

    #[test]
    fn any_position_of_a_transaction_means_all_of_it_and_what_is_before() {
        let ids = |ids: &[&str]| ids.iter().map(|id| Some((*id).to_owned())).collect::<Vec<_>>();
        let first = vec![Some("a".to_owned()), None];
        for position in [60, 80, 100, 130] {
            let found = given_up(position, None);
            assert_eq!(found, (130, [1, 2, 1], first.clone()), "{position}");
        }
        let both = [first, ids(&["c"])].concat();
        assert_eq!(given_up(110, None), (230, [2, 3, 1], both));
        let none = given_up(20, None);
        assert_eq!(none, (20, [0, 0, 0], Vec::new()));
    }

    #[test]
    fn bytes_that_are_no_utf8_mark_their_row_alone() {
        let Lookahead::Reaches(found) = answer(110, None) else {
            panic!("it is blocked");
        };
        let sendable: Vec<bool> = found.rows.iter().map(|row| row.is_sendable).collect();
        assert_eq!(sendable, [true, false, true]);
    }

    #[test]
    fn a_transaction_that_cannot_be_sent_is_passed_within_its_commit_record() {
        let meant = answer(100, Some(70));
        let Lookahead::Reaches(SkippedChanges { target, inserts, unsendable, .. }) = meant else {
            panic!("it is meant");
        };
        assert_eq!((target.as_u64(), inserts), (108, 1));
        let UnsendableTransaction { position, xid, .. } = unsendable.expect("it is named");
        assert_eq!((position.to_string().as_str(), xid), ("0/64#1", 5));
        // A move can skip the earlier rows without the unsendable transaction, but cannot pass
        // beyond it.
        assert_eq!(given_up(130, Some(110)).0, 130);
        let Lookahead::Blocked { at, .. } = answer(500, Some(110)) else {
            panic!("it is not meant");
        };
        assert_eq!(at.to_string(), "the row at 0/C8#0 of transaction 6");
    }
}
