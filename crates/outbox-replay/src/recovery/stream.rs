//! The table as if it were a slot: its rows as one transaction of a stream, over an in-memory
//! socket.
//!
//! A row of the table therefore takes the same path as a row of the WAL: the same loop, lanes and
//! dispatch state. The code behind the socket sees no difference.
//!
//! ```text
//! greeting ─▶ IDENTIFY_SYSTEM ─▶ START_REPLICATION ─▶ Begin ─▶ Relation, Insert … ─▶ Commit ─▶ keepalives
//! ```

use std::io;
use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt as _;
use pgoutput_parser::{
    Begin, Column, Commit, Keepalive, Lsn, PgTimestamp, RelationColumn, ReplicaIdentity, XLogData,
    encode,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::{Instant, interval, sleep};
use walrelay_pg_client::ServerError;
use walrelay_pg_client::SqlError;
use walrelay_pg_replication::SystemIdentity;
use walrelay_relay::error::RelayError;

use super::read_failures::ReadFailures;
use super::reader::RowReader;
use super::transaction_grouping::{Open, TransactionGrouping};
use crate::admin_error::AdminError;
use crate::rows::source_row::{SourceRow, SourceValue};
use crate::rows::unsettled_rows::{SourceTable, UnsettledRows};

/// The interval between keepalives of a silent stream.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// The interval at which commits that wait for a synchronous standby are checked for visibility.
const VISIBLE_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct TableStream<R> {
    reader: R,
    gap: UnsettledRows,
    tables: Vec<SourceTable>,
    /// The end of the last transaction and of the stream.
    end: Lsn,
    batches: TransactionGrouping,
    /// Records the row at which reading failed.
    failures: ReadFailures,
}

/// Text format, no columns.
const COPY_BOTH: &[u8] = &[0, 0, 0];

impl<R: RowReader> TableStream<R> {
    /// Creates a stream of these rows of these tables, which ends at `end`.
    #[must_use]
    pub fn new(
        reader: R,
        (gap, tables): (UnsettledRows, Vec<SourceTable>),
        end: Lsn,
        batches: TransactionGrouping,
    ) -> Self {
        Self { reader, gap, tables, end, batches, failures: ReadFailures::default() }
    }

    /// Adds the failures of the previous streams.
    pub(super) fn telling(self, failures: ReadFailures) -> Self {
        Self { failures, ..self }
    }

    /// Serves one client until it ends the connection.
    pub(super) async fn serve(self, socket: DuplexStream) -> Result<(), RelayError> {
        let (mut reader, mut writer) = tokio::io::split(socket);
        let io = |source| RelayError::TableStream { source };
        greet(&mut reader, &mut writer).await.map_err(io)?;
        let error = tokio::select! {
            heard = listen(&mut reader) => heard.map_err(io).err(),
            sent = self.send(&mut writer) => sent.err(),
        };
        if let Some(error) = error {
            // Reports the cause to the client in the same form as a server.
            if let Some(refusal) = refusal(&error) {
                writer.write_all(&message(b'E', &refusal)).await.map_err(io)?;
                writer.flush().await.map_err(io)?;
                return Ok(());
            }
            return Err(error);
        }
        writer.write_all(&message(b'c', &[])).await.map_err(io)?;
        writer.write_all(&message(b'Z', b"I")).await.map_err(io)?;
        writer.flush().await.map_err(io)?;
        // Reads the client's goodbye, because the client would otherwise find the socket closed.
        drop(listen(&mut reader).await);
        Ok(())
    }

    /// Sends all rows, then keepalives until the client disconnects.
    async fn send(&self, writer: &mut WriteHalf<DuplexStream>) -> Result<(), RelayError> {
        let io = |source| RelayError::TableStream { source };
        while !self.reader.is_visible(&self.gap).await? {
            write_keepalive(writer, Lsn::ZERO).await.map_err(io)?;
            sleep(VISIBLE_PAUSE).await;
        }
        let beginning = self.batches.beginning();
        let first = beginning.as_ref().map_or(0, |(table, _)| *table);
        let mut open = self.batches.first(self.end);
        begin(writer, &open).await.map_err(io)?;
        for (number, table) in self.tables.iter().enumerate().skip(first) {
            let mut gap = self.gap.clone();
            let from = beginning.as_ref().filter(|_| number == first);
            gap.scope.from = from.map(|(_, place)| place.clone());
            self.send_table(writer, (number, table, &gap), &mut open).await?;
        }
        commit(writer, &open).await.map_err(io)?;
        let end_lsn = self.end;
        let mut pace = interval(KEEPALIVE);
        loop {
            pace.tick().await;
            write_keepalive(writer, end_lsn).await.map_err(io)?;
        }
    }

    async fn send_table(
        &self,
        writer: &mut WriteHalf<DuplexStream>,
        (number, table, gap): (usize, &SourceTable, &UnsettledRows),
        open: &mut Open,
    ) -> Result<(), RelayError> {
        let io = |source| RelayError::TableStream { source };
        write_change(writer, &relation_of(table)).await.map_err(io)?;
        let in_table = self.batches.in_table(&self.tables, number);
        let mut rows =
            self.reader.rows(gap, table).await.inspect_err(|error| self.failed(error))?;
        let mut written_at = Instant::now();
        loop {
            let next = tokio::time::timeout_at(written_at + KEEPALIVE, rows.try_next()).await;
            written_at = Instant::now();
            let row = match next {
                // The server is sorting for a long time.
                Err(_) => {
                    write_keepalive(writer, Lsn::ZERO).await.map_err(io)?;
                    continue;
                }
                Ok(row) => row.inspect_err(|error| self.failed(error))?,
            };
            let Some(row) = row else { return Ok(()) };
            self.failures.read(&row, table);
            self.batches.read(&row, (table, &in_table));
            write_change(writer, &insert_of(table, &row)).await.map_err(io)?;
            let following = self.batches.next(open, (number, &row));
            begin_following(writer, open, following).await.map_err(io)?;
        }
    }

    fn failed(&self, error: &RelayError) {
        if let Some(answer) = answer_in(error) {
            self.failures.failed(&answer);
        }
    }
}

/// Encodes the table as the server would describe it in the stream.
pub(crate) fn relation_of(table: &SourceTable) -> Vec<u8> {
    let columns: Vec<RelationColumn> = table
        .columns
        .iter()
        .map(|column| RelationColumn {
            is_key: false,
            name: column.name.clone(),
            type_oid: column.type_oid,
            type_modifier: column.type_modifier,
        })
        .collect();
    let (schema, name) = (table.name.schema(), table.name.table());
    encode::relation(table.oid, schema, name, ReplicaIdentity::Default, &columns)
}

/// Encodes a row as the server would stream it.
pub(crate) fn insert_of(table: &SourceTable, row: &SourceRow) -> Vec<u8> {
    let values: Vec<Column<'_>> = row.values.iter().map(SourceValue::as_column).collect();
    encode::insert(table.oid, &values)
}

/// Returns the server's answer, if it ended reading.
fn answer_in(error: &RelayError) -> Option<ServerError> {
    match error {
        RelayError::Survey(error) => {
            let statement = error.downcast_ref().and_then(AdminError::as_sql);
            statement.and_then(SqlError::server_answer)
        }
        RelayError::Sql { source, .. } => source.as_db_error().map(ServerError::from),
        RelayError::AtFirst(_)
        | RelayError::Connect(_)
        | RelayError::Session(_)
        | RelayError::Store(_)
        | RelayError::Unsendable { .. }
        | RelayError::TableStream { .. }
        | RelayError::TakeOver { .. }
        | RelayError::InRecovery
        | RelayError::ServerRestored { .. }
        | RelayError::Setup { .. } => None,
    }
}

/// Encodes the body of an ErrorResponse with the server's answer.
fn refusal(error: &RelayError) -> Option<Vec<u8>> {
    let ServerError { code, message, .. } = answer_in(error)?;
    let mut body = Vec::new();
    for (field, value) in
        [(b'S', "ERROR"), (b'V', "ERROR"), (b'C', code.as_str()), (b'M', message.as_str())]
    {
        body.push(field);
        body.extend(value.bytes().filter(|byte| *byte != 0));
        body.push(0);
    }
    body.push(0);
    Some(body)
}

/// Ends the open transaction and begins the following one.
async fn begin_following(
    writer: &mut WriteHalf<DuplexStream>,
    open: &mut Open,
    following: Option<Open>,
) -> io::Result<()> {
    let Some(following) = following else { return Ok(()) };
    commit(writer, open).await?;
    *open = following;
    begin(writer, open).await
}

async fn begin(writer: &mut WriteHalf<DuplexStream>, open: &Open) -> io::Result<()> {
    let commit_timestamp = PgTimestamp::from_system_time(SystemTime::now());
    let begin = Begin { final_lsn: open.commit_lsn, commit_timestamp, xid: 0 };
    write_change(writer, &encode::begin(&begin)).await
}

async fn commit(writer: &mut WriteHalf<DuplexStream>, open: &Open) -> io::Result<()> {
    let commit_timestamp = PgTimestamp::from_system_time(SystemTime::now());
    let Open { commit_lsn, end_lsn, .. } = *open;
    write_change(writer, &encode::commit(&Commit { commit_lsn, end_lsn, commit_timestamp })).await
}

/// Answers the messages that a client sends before it streams.
async fn greet(
    reader: &mut ReadHalf<DuplexStream>,
    writer: &mut WriteHalf<DuplexStream>,
) -> io::Result<()> {
    let length = reader.read_u32().await?;
    skip(reader, length).await?;
    writer.write_all(&message(b'R', &[0, 0, 0, 0])).await?;
    writer.write_all(&message(b'Z', b"I")).await?;
    loop {
        let (tag, body) = read(reader).await?;
        let text = String::from_utf8_lossy(&body);
        if tag != b'Q' {
            return Err(io::Error::other("expected a query"));
        }
        if text.starts_with("START_REPLICATION") {
            writer.write_all(&message(b'W', COPY_BOTH)).await?;
            return writer.flush().await;
        }
        // The identity of a system that no client compares.
        let mut row = vec![0, 4];
        for field in [SystemIdentity::NO_LOG, "1", "0/0", "outbox"] {
            row.extend_from_slice(&u32::try_from(field.len()).unwrap_or_default().to_be_bytes());
            row.extend_from_slice(field.as_bytes());
        }
        writer.write_all(&message(b'D', &row)).await?;
        writer.write_all(&message(b'C', b"IDENTIFY_SYSTEM\0")).await?;
        writer.write_all(&message(b'Z', b"I")).await?;
    }
}

/// Reads until the client ends the stream. Its confirmations are ignored.
async fn listen(reader: &mut ReadHalf<DuplexStream>) -> io::Result<()> {
    loop {
        let (tag, _) = read(reader).await?;
        if tag == b'c' || tag == b'X' {
            return Ok(());
        }
    }
}

/// The maximum message length. Our own client sends no longer message.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

async fn read(reader: &mut ReadHalf<DuplexStream>) -> io::Result<(u8, Vec<u8>)> {
    let tag = reader.read_u8().await?;
    let length = reader.read_u32().await?;
    if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::Error::other("a message of an impossible length"));
    }
    let mut body = vec![0; length as usize - 4];
    reader.read_exact(&mut body).await?;
    Ok((tag, body))
}

async fn skip(reader: &mut ReadHalf<DuplexStream>, length: u32) -> io::Result<()> {
    if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::Error::other("a greeting of an impossible length"));
    }
    let mut body = vec![0; length as usize - 4];
    reader.read_exact(&mut body).await.map(drop)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    let mut message = vec![tag];
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    message
}

async fn write_change(writer: &mut WriteHalf<DuplexStream>, change: &[u8]) -> io::Result<()> {
    let sent_at = PgTimestamp::from_system_time(SystemTime::now());
    let frame = XLogData { wal_start: Lsn::ZERO, wal_end: Lsn::ZERO, sent_at, data: change };
    writer.write_all(&message(b'd', &encode::xlog_data(&frame))).await
}

async fn write_keepalive(writer: &mut WriteHalf<DuplexStream>, wal_end: Lsn) -> io::Result<()> {
    let sent_at = PgTimestamp::from_system_time(SystemTime::now());
    let frame = Keepalive { wal_end, sent_at, reply_requested: false };
    writer.write_all(&message(b'd', &encode::keepalive(&frame))).await?;
    writer.flush().await
}
