//! One connection: the start-up messages, then both directions of the stream.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pgoutput_parser::{Keepalive, Lsn, StandbyStatusUpdate, encode};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::time::{Instant, sleep_until};

use super::wal::{NOON, Part, Relation};
use super::{
    ConnectionBehavior, ConnectionCount, KeepalivePosition, LIVE_SLOT, Refusal, ScriptedServer,
    Seen, ServerState, SlotHolder,
};
use crate::seed::Seed;

impl ScriptedServer {
    /// Serves one client, from its start-up message until either side ends the connection.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        manners: ConnectionBehavior,
        seed: Seed,
    ) {
        let (generation, pid) = self.change(|state| {
            state.connections += 1;
            state.pid += 1;
            (state.generation, state.pid)
        });
        let _leave = ConnectionCount(self, pid);
        let mut changes = self.changes.subscribe();
        let cut = async {
            // `changed` cannot fail, because `self` holds the sender.
            let is_cut = |_: &u64| self.state().is_over(generation, pid);
            changes.wait_for(is_cut).await.map(drop)
        };
        let talk = async {
            let mut connection = Connection::greet(self, pid, stream, manners, seed).await?;
            connection.stream().await
        };
        tokio::select! {
            biased;
            _ = cut => {}
            _ = talk => {}
        }
    }
}

struct Connection<'a, S> {
    server: &'a ScriptedServer,
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    manners: ConnectionBehavior,
    seed: Seed,
    incoming: Vec<u8>,
    outgoing: Outgoing,
    position: SendPosition,
    of: StreamSource,
}

/// The streamed slot or copy, and the session that streams it.
enum StreamOwner {
    Slot(SlotHolder),
    Copy(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamSource {
    Slot,
    /// A copy of the anchor. Only its own session sees the copy.
    Copy,
}

/// The direction that the server serves first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    ReadFirst,
    WriteFirst,
}

enum Progress {
    Read(usize),
    Wrote(usize),
}

/// Bytes to send, and the row that is complete with the last of these bytes.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    row: Option<(u64, u32)>,
}

/// The position up to which a connection has sent the WAL.
struct SendPosition {
    /// The index of the next transaction.
    next: usize,
    /// The unsent frames of the open transaction.
    open: VecDeque<Part>,
    has_sent_begin: bool,
    /// The highest position sent in a commit or between transactions.
    sent: u64,
    /// The highest position sent at all.
    told: u64,
    relation: Relation,
    reply: Reply,
    stage: Stage,
    /// The time of the client's last message.
    heard_at: Instant,
    question: Question,
}

/// Whether the last status update requested a reply, and the reply is still due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Owed,
    Given,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Streaming,
    /// The client has sent CopyDone.
    Ending,
}

/// Whether a keepalive requested a reply, and the reply is still missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Asked,
    Answered,
}

const AUTHENTICATION_OK: &[u8] = &[0, 0, 0, 0];
const IDLE: &[u8] = b"I";
/// The body of CopyBothResponse: text format, no columns.
const COPY_BOTH: &[u8] = &[0, 0, 0];

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    /// Handles start-up, `IDENTIFY_SYSTEM` and `START_REPLICATION`.
    pub(super) async fn greet(
        server: &'a ScriptedServer,
        pid: i32,
        stream: S,
        manners: ConnectionBehavior,
        seed: Seed,
    ) -> io::Result<Self> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let length = reader.read_u32().await?;
        let mut startup = vec![0; usize::try_from(length).map_err(io::Error::other)? - 4];
        reader.read_exact(&mut startup).await?;
        let greeting = [message(b'R', AUTHENTICATION_OK), message(b'Z', IDLE)].concat();
        writer.write_all(&greeting).await?;
        let (streams, start) = loop {
            let (tag, body) = read_message(&mut reader).await?;
            let query = String::from_utf8_lossy(&body).into_owned();
            match tag {
                b'Q' if query.starts_with("START_REPLICATION") => {
                    match server.begin(pid, slot_of(&query), application_name(&startup)) {
                        Ok(streams) => break (streams, start_of(&query)),
                        Err(refusal) => writer.write_all(&refusal.message()).await?,
                    }
                }
                b'Q' => writer.write_all(&server.identity()).await?,
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        writer.write_all(&message(b'W', COPY_BOTH)).await?;
        let (confirmed_flush, next) = {
            let state = server.state();
            let stands = match streams {
                StreamOwner::Slot(_) => state.confirmed_flush,
                StreamOwner::Copy(_) => state.anchor,
            };
            let from = stands.max(start);
            (from, state.log.first_at(from))
        };
        let of = match &streams {
            StreamOwner::Slot(_) => StreamSource::Slot,
            StreamOwner::Copy(_) => StreamSource::Copy,
        };
        server.tell(match streams {
            StreamOwner::Slot(holder) => Seen::Started { confirmed_flush, holder },
            StreamOwner::Copy(application_name) => {
                Seen::CopyStarted { from: confirmed_flush, application_name }
            }
        });
        let position = SendPosition {
            next,
            open: VecDeque::new(),
            has_sent_begin: false,
            sent: confirmed_flush,
            told: confirmed_flush,
            relation: Relation::Unsent,
            // The server sends a keepalive right after the start.
            reply: Reply::Owed,
            stage: Stage::Streaming,
            heard_at: Instant::now(),
            question: Question::Answered,
        };
        let (incoming, outgoing) = (Vec::new(), Outgoing::default());
        Ok(Self { server, reader, writer, manners, seed, incoming, outgoing, position, of })
    }

    /// Serves both directions until the client ends the stream.
    pub(super) async fn stream(&mut self) -> io::Result<()> {
        let mut changes = self.server.changes.subscribe();
        loop {
            while let Some(until) = self.server.stalled_until() {
                tokio::select! {
                    () = sleep_until(until) => {}
                    changed = changes.changed() => changed.map_err(io::Error::other)?,
                }
            }
            if self.is_done() {
                // The real server also ends the stream without CopyDone.
                return self.writer.write_all(&message(b'C', b"COPY 0\0")).await;
            }
            if self.outgoing.is_empty()
                && !self.next_frame()
                && self.position.stage == Stage::Ending
            {
                return self.end().await;
            }
            let len = self.outgoing.next_write(&mut self.seed, self.manners.write_bytes_max);
            // Inside a transaction the server reads from the client only in two cases. Either the
            // socket accepts no more data, or the client was silent for long (walsender.c,
            // `WalSndWriteData`).
            let is_silent = self.position.heard_at.elapsed() >= self.manners.reply_patience;
            let order = match self.position.has_sent_begin && !is_silent {
                true => Order::WriteFirst,
                false => Order::ReadFirst,
            };
            let progress = tokio::select! {
                biased;
                progress = self.progress(len, order) => progress?,
                changed = changes.changed(), if len == 0 => {
                    changed.map_err(io::Error::other)?;
                    continue;
                }
            };
            match progress {
                Progress::Read(0) => return Ok(()),
                Progress::Read(_) => self.read_replies()?,
                Progress::Wrote(count) => self.wrote(count).await,
            }
        }
    }

    /// Performs one read, or one write of at most `len` bytes, whichever is possible first.
    async fn progress(&mut self, len: usize, order: Order) -> io::Result<Progress> {
        let Self { reader, writer, incoming, outgoing, .. } = self;
        let mut bytes = [0; 512];
        poll_fn(|cx| {
            let mut write = |context: &mut Context<'_>| match len {
                0 => Poll::Pending,
                _ => Pin::new(&mut *writer)
                    .poll_write(context, outgoing.rest(len))
                    .map_ok(Progress::Wrote),
            };
            if order == Order::WriteFirst
                && let Poll::Ready(wrote) = write(cx)
            {
                return Poll::Ready(wrote);
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            if let Poll::Ready(read) = Pin::new(&mut *reader).poll_read(cx, &mut buffer) {
                incoming.extend_from_slice(buffer.filled());
                let count = buffer.filled().len();
                return Poll::Ready(read.map(|()| Progress::Read(count)));
            }
            match order {
                Order::ReadFirst => write(cx),
                Order::WriteFirst => Poll::Pending,
            }
        })
        .await
    }

    async fn wrote(&mut self, count: usize) {
        if let Some((commit_lsn, tx_index)) = self.outgoing.wrote(count) {
            self.tell(Seen::Row { commit_lsn, tx_index });
        }
        if self.seed.chance(self.manners.pause_per_mille) {
            let pause = self.seed.time(Duration::ZERO, self.manners.pause_max);
            tokio::time::sleep(pause).await;
        }
    }

    /// Queues the next frame for sending. Returns false when there is no frame.
    fn next_frame(&mut self) -> bool {
        let ConnectionBehavior { keepalive_per_mille, .. } = self.manners;
        if self.position.stage == Stage::Ending && self.position.open.is_empty() {
            return false;
        }
        if self.position.reply == Reply::Owed {
            self.position.reply = Reply::Given;
            self.keepalive();
            return true;
        }
        if self.position.open.is_empty() {
            self.open_next();
        }
        if self.position.open.is_empty() {
            // All transactions are sent. WAL without outbox rows moves the position by keepalives
            // alone.
            let end = self.server.wal_end();
            let asks = self.is_stopping() && self.position.question == Question::Answered;
            if end <= self.position.sent && !asks {
                return false;
            }
            self.position.sent = end;
            self.keepalive();
            return true;
        }
        if self.seed.chance(keepalive_per_mille) {
            self.keepalive();
            return true;
        }
        if let Some(Part { frame, row }) = self.position.open.pop_front() {
            self.outgoing.push(&message(b'd', &frame), row);
            self.position.has_sent_begin = true;
        }
        if self.position.open.is_empty() {
            self.sealed();
        }
        true
    }

    /// Reports whether the server's shutdown waits for this client alone (walsender.c,
    /// `WalSndDone`).
    fn is_stopping(&self) -> bool {
        self.server.is_stopping()
    }

    /// Reports whether a stopping server may disconnect this client: the client has confirmed all
    /// sent data.
    fn is_done(&self) -> bool {
        let Outgoing { bytes, written, .. } = &self.outgoing;
        let is_idle = self.position.open.is_empty() && *written == bytes.len();
        let state = self.server.state();
        state.power == ServerState::Stopping
            && is_idle
            && state.log.transaction(self.position.next).is_none()
            && state.confirmed_flush >= self.position.sent
            && self.position.sent >= state.log.end()
    }

    /// Opens the next transaction with outbox rows.
    fn open_next(&mut self) {
        let state = self.server.state();
        while self.position.open.is_empty()
            && let Some(transaction) = state.log.transaction(self.position.next)
        {
            self.position.open = state.log.frames(self.position.next, self.position.relation);
            match self.position.open.is_empty() {
                true => {
                    self.position.sent = transaction.end_lsn;
                    self.position.next += 1;
                }
                false => self.position.relation = Relation::Sent,
            }
        }
    }

    /// Records that the open transaction's commit is queued for sending.
    fn sealed(&mut self) {
        let end_lsn = {
            let state = self.server.state();
            state.log.transaction(self.position.next).map(|transaction| transaction.end_lsn)
        };
        self.position.sent = end_lsn.unwrap_or(self.position.sent);
        self.position.told = self.position.told.max(self.position.sent);
        self.position.next += 1;
        self.position.has_sent_begin = false;
    }

    fn keepalive(&mut self) {
        let in_transaction = self.position.has_sent_begin;
        let wal_end = match (in_transaction, self.manners.in_transaction) {
            (true, KeepalivePosition::EndOfLog) => self.server.wal_end(),
            (true, KeepalivePosition::BeforeItsCommit) | (false, _) => self.position.sent,
        };
        self.position.told = self.position.told.max(wal_end);
        let is_silent = self.position.heard_at.elapsed() >= self.manners.reply_patience;
        let reply_requested =
            self.position.question == Question::Answered && (is_silent || self.is_stopping());
        if reply_requested {
            self.position.question = Question::Asked;
        }
        let frame = encode::keepalive(&Keepalive {
            wal_end: Lsn::new(wal_end),
            sent_at: NOON,
            reply_requested,
        });
        self.outgoing.push(&message(b'd', &frame), None);
        if in_transaction {
            self.tell(Seen::KeepaliveInTransaction { wal_end });
        }
    }

    fn confirm(&self, flush: u64) {
        if self.of == StreamSource::Slot {
            self.server.confirm(flush);
        }
    }

    fn tell(&self, seen: Seen) {
        if self.of == StreamSource::Slot {
            self.server.tell(seen);
        }
    }

    fn read_replies(&mut self) -> io::Result<()> {
        while let Some((tag, body)) = take_message(&mut self.incoming)? {
            self.position.heard_at = Instant::now();
            self.position.question = Question::Answered;
            match tag {
                b'd' => {
                    let update = StandbyStatusUpdate::parse(&body).map_err(io::Error::other)?;
                    let (flush, told) = (update.flush.as_u64(), self.position.told);
                    self.confirm(flush);
                    self.tell(Seen::Status { flush, told });
                    self.position.reply = match update.reply_requested {
                        true => Reply::Owed,
                        false => self.position.reply,
                    };
                }
                b'c' => {
                    self.position.stage = Stage::Ending;
                    self.position.open.clear();
                }
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }

    /// Replies to the client's CopyDone, and waits until the client disconnects.
    async fn end(&mut self) -> io::Result<()> {
        let complete = message(b'C', b"COPY 0\0");
        let answers = [message(b'c', b""), complete.clone(), complete, message(b'Z', IDLE)];
        self.writer.write_all(&answers.concat()).await?;
        while self.reader.read_buf(&mut self.incoming).await? > 0 {}
        Ok(())
    }
}

impl Refusal {
    /// Returns the ErrorResponse message followed by ReadyForQuery.
    fn message(&self) -> Vec<u8> {
        let Self { code, text } = self;
        let body = format!("SERROR\0VERROR\0C{code}\0M{text}\0\0");
        [message(b'E', body.as_bytes()), message(b'Z', IDLE)].concat()
    }
}

/// Returns the slot name in `START_REPLICATION SLOT "s" LOGICAL 16/B374D848 (...)`.
fn slot_of(query: &str) -> &str {
    query.split('"').nth(1).unwrap_or_default()
}

/// Returns the requested start position in `START_REPLICATION SLOT "s" LOGICAL 16/B374D848 (...)`.
/// Confirmed transactions are never sent again, even if the client requests an earlier start.
fn start_of(query: &str) -> u64 {
    let mut words = query.split_whitespace().skip_while(|word| *word != "LOGICAL");
    let start = words.nth(1).and_then(|lsn| lsn.parse::<Lsn>().ok());
    start.map_or(0, Lsn::as_u64)
}

/// Returns the `application_name` of the start-up message, which has pairs of names and values
/// after a version.
fn application_name(startup: &[u8]) -> String {
    let mut words = startup.get(4..).unwrap_or_default().split(|byte| *byte == 0);
    let name = words.find(|word| *word == b"application_name").and_then(|_| words.next());
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

impl ScriptedServer {
    /// Returns the stream for a slot name, or the reason for the refusal.
    fn begin(
        &self,
        pid: i32,
        slot: &str,
        application_name: String,
    ) -> Result<StreamOwner, Refusal> {
        if slot == LIVE_SLOT {
            return self.take_slot(pid, application_name).map(StreamOwner::Slot);
        }
        match self.refuse_copy() {
            Some(refusal) => Err(refusal),
            None => Ok(StreamOwner::Copy(application_name)),
        }
    }

    /// Returns the reply to `IDENTIFY_SYSTEM`.
    fn identity(&self) -> Vec<u8> {
        let fields = [
            "7300000000000000001".to_owned(),
            "1".to_owned(),
            Lsn::new(self.wal_end()).to_string(),
            "app".to_owned(),
        ];
        let mut row = vec![0, 4];
        for field in fields {
            row.extend_from_slice(&u32::try_from(field.len()).unwrap_or(0).to_be_bytes());
            row.extend_from_slice(field.as_bytes());
        }
        let complete = message(b'C', b"IDENTIFY_SYSTEM\0");
        [message(b'D', &row), complete, message(b'Z', IDLE)].concat()
    }
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    fn push(&mut self, bytes: &[u8], row: Option<(u64, u32)>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.written = 0;
        self.row = row;
    }

    fn next_write(&self, seed: &mut Seed, bytes_max: usize) -> usize {
        let left = self.bytes.len() - self.written;
        if left == 0 { 0 } else { seed.count(1, bytes_max).min(left) }
    }

    fn rest(&self, len: usize) -> &[u8] {
        &self.bytes[self.written..self.written + len]
    }

    /// Returns the row whose last byte was written with these bytes.
    fn wrote(&mut self, count: usize) -> Option<(u64, u32)> {
        self.written += count;
        if self.is_empty() { self.row.take() } else { None }
    }
}

/// Encodes a protocol message. The length includes itself and the body.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
    [&[tag], length.as_slice(), body].concat()
}

async fn read_message<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<(u8, Vec<u8>)> {
    let tag = reader.read_u8().await?;
    let length = usize::try_from(reader.read_u32().await?).map_err(io::Error::other)?;
    let mut body = vec![0; length.saturating_sub(4)];
    reader.read_exact(&mut body).await?;
    Ok((tag, body))
}

fn take_message(incoming: &mut Vec<u8>) -> io::Result<Option<(u8, Vec<u8>)>> {
    let Some((&[tag, a, b, c, d], _)) = incoming.split_first_chunk() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).map_err(io::Error::other)?;
    if incoming.len() <= length {
        return Ok(None);
    }
    let whole: Vec<u8> = incoming.drain(..=length).collect();
    Ok(Some((tag, whole[5..].to_vec())))
}
