//! A scripted Postgres: a log, a slot, and the walsender that streams it, in real bytes over any
//! duplex stream.
//!
//! Behaves as the real one where the relay could notice: transactions in commit order with headers
//! that go backwards, nothing of what was rolled back, keepalives between and inside transactions,
//! any status update believed, a slot whose position survives a crash only as far as it was written
//! down. Misbehaves on request: cuts, stalls, crashes, slow and fragmented writes.
//!
//! ```text
//! Log ── commit, roll_back, write        a producer's side
//! ScriptedServer ── serve(stream) ──▶    one connection, until it ends or is cut
//!                └─ Watcher              sees every row sent and every position confirmed
//! ```

mod log;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use pgoutput_parser::{Keepalive, Lsn, StandbyStatusUpdate, encode};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::seed::Seed;
pub use log::{Log, OpenTransaction, OutboxTable, RowRecord, Transaction};
use log::{NOON, Part};

/// What the server tells about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Streaming starts here, and rows whose commit starts before are not sent.
    Started {
        /// The slot's position.
        confirmed_flush: u64,
    },
    /// The last byte of a row was written to the socket.
    Row {
        /// Start of its commit record.
        commit_lsn: u64,
        /// Its place in the transaction.
        tx_index: u32,
    },
    /// A keepalive was written while a transaction was being sent.
    KeepaliveInTransaction {
        /// Its position.
        wal_end: u64,
    },
    /// A status update was read.
    Status {
        /// What it confirms.
        flush: u64,
        /// The highest position this connection was told, or started from.
        told: u64,
    },
    /// The connection is over.
    Ended,
}

/// Is told everything, at the instant it happens.
pub type Watcher = Box<dyn FnMut(Seen) + Send>;

/// How a connection is written and read.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Bytes of one write at most; each is drawn from 1 to this.
    pub write_bytes_max: usize,
    /// Of a thousand writes, after how many the server pauses.
    pub pause_per_mille: u64,
    /// How long it pauses at most.
    pub pause_max: Duration,
    /// Of a thousand frames, before how many a keepalive is sent nobody asked for.
    pub keepalive_per_mille: u64,
    /// How long nothing may come from the client before a keepalive asks for a reply.
    pub reply_patience: Duration,
    /// What a keepalive within a transaction says.
    pub in_transaction: InTransaction,
}

/// The position of a keepalive that is sent within a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InTransaction {
    /// Before the transaction's commit, as every known version does.
    BeforeItsCommit,
    /// The end of the log, which no version promises not to do.
    EndOfLog,
}

/// A server with one slot. Clones are the same server.
#[derive(Clone)]
pub struct ScriptedServer {
    state: Arc<Mutex<State>>,
    /// Counts changes, so that connections look again.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Up,
    Stopping,
    Down,
}

struct State {
    log: Log,
    /// `confirmed_flush_lsn`.
    confirmed_flush: u64,
    /// What of it survives a crash.
    confirmed_flush_written: u64,
    /// Moves with each cut: connections of before are over.
    generation: u64,
    power: Power,
    connections: usize,
    stalled_until: Option<Instant>,
    watcher: Watcher,
}

impl std::fmt::Debug for ScriptedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedServer").finish_non_exhaustive()
    }
}

impl ScriptedServer {
    /// A server with an empty log and a slot at its start.
    #[must_use]
    pub fn new(table: OutboxTable, watcher: Watcher) -> Self {
        let log = Log::new(table);
        let start = log.end();
        let state = State {
            log,
            confirmed_flush: start,
            confirmed_flush_written: start,
            generation: 0,
            power: Power::Up,
            connections: 0,
            stalled_until: None,
            watcher,
        };
        Self { state: Arc::new(Mutex::new(state)), changes: watch::Sender::new(0) }
    }

    /// Writes to the log; connections send it on.
    pub fn write<T>(&self, write: impl FnOnce(&mut Log) -> T) -> T {
        self.change(|state| write(&mut state.log))
    }

    /// The end of the log.
    #[must_use]
    pub fn wal_end(&self) -> u64 {
        self.state().log.end()
    }

    /// The slot's position.
    #[must_use]
    pub fn confirmed_flush(&self) -> u64 {
        self.state().confirmed_flush
    }

    /// What of the slot's position survives a crash.
    #[must_use]
    pub fn confirmed_flush_written(&self) -> u64 {
        self.state().confirmed_flush_written
    }

    /// Breaks every connection, in the middle of whatever is being written.
    pub fn cut(&self) {
        self.change(|state| state.generation += 1);
    }

    /// Writes the slot's position down, as a checkpoint does.
    pub fn checkpoint(&self) {
        let mut state = self.state();
        state.confirmed_flush_written = state.confirmed_flush;
    }

    /// Stops at once. The slot forgets what no checkpoint has written down.
    pub fn crash(&self) {
        self.change(|state| {
            state.generation += 1;
            state.power = Power::Down;
            state.confirmed_flush = state.confirmed_flush_written;
        });
    }

    /// Takes connections again.
    pub fn start(&self) {
        self.change(|state| state.power = Power::Up);
    }

    /// A fast shutdown: sends what there is, and waits until the client has confirmed it or goes.
    /// Gives up waiting after `limit`; returns whether it had to.
    pub async fn shut_down(&self, limit: Duration) -> bool {
        let mut changes = self.changes.subscribe();
        self.change(|state| state.power = Power::Stopping);
        let gone = changes.wait_for(|_| self.state().connections == 0);
        let was_blocked = timeout(limit, gone).await.is_err();
        self.change(|state| {
            state.generation += 1;
            state.power = Power::Down;
            state.confirmed_flush_written = state.confirmed_flush;
        });
        was_blocked
    }

    /// Neither reads nor writes until then, and keeps its connections; a moment in the past ends it.
    pub fn stall(&self, until: Instant) {
        self.change(|state| state.stalled_until = Some(until));
    }

    /// Whether connections are taken.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state().power == Power::Up
    }

    /// Whether a shutdown waits for the client.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.state().power == Power::Stopping
    }

    /// Talks to one client, from its greeting until either side ends the connection.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        manners: Manners,
        seed: Seed,
    ) {
        // One slot, one connection: a client that comes back has lost the one before.
        let generation = self.change(|state| {
            state.generation += 1;
            state.connections += 1;
            state.generation
        });
        let _leave = Leave(self);
        let mut changes = self.changes.subscribe();
        let cut = async {
            // The sender lives in `self`.
            let is_cut = |_: &u64| self.state().generation != generation;
            changes.wait_for(is_cut).await.map(drop)
        };
        let talk = async {
            let mut connection = Connection::greet(self, stream, manners, seed).await?;
            connection.stream().await
        };
        tokio::select! {
            biased;
            _ = cut => {}
            _ = talk => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere has failed the test already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        changed
    }

    fn tell(&self, seen: Seen) {
        (self.state().watcher)(seen);
    }

    fn stalled_until(&self) -> Option<Instant> {
        self.state().stalled_until.filter(|until| *until > Instant::now())
    }

    fn confirm(&self, flush: u64) {
        let mut state = self.state();
        // Any value is believed; only backwards it does not move.
        state.confirmed_flush = state.confirmed_flush.max(flush);
    }
}

/// Counts a connection out, however it ends.
struct Leave<'a>(&'a ScriptedServer);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.connections -= 1);
        self.0.tell(Seen::Ended);
    }
}

/// One client's connection.
struct Connection<'a, S> {
    server: &'a ScriptedServer,
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    manners: Manners,
    seed: Seed,
    incoming: Vec<u8>,
    outgoing: Outgoing,
    position: SendPosition,
}

/// What a server looks at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    ReadFirst,
    WriteFirst,
}

enum Progress {
    Read(usize),
    Wrote(usize),
}

/// Bytes on their way, and the row that has arrived with the last of them.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    row: Option<(u64, u32)>,
}

/// How far a connection has read the log.
struct SendPosition {
    /// The next transaction.
    next: usize,
    /// What is left of the open one.
    open: VecDeque<Part>,
    has_sent_begin: bool,
    /// The highest position told by a commit or between transactions.
    sent: u64,
    /// The highest position told at all.
    told: u64,
    has_sent_relation: bool,
    owes_reply: bool,
    is_ending: bool,
    /// When the client was last heard.
    heard_at: Instant,
    /// The client has been asked, and has not answered yet.
    is_asking: bool,
}

const AUTHENTICATION_OK: &[u8] = &[0, 0, 0, 0];
const IDLE: &[u8] = b"I";
/// Text format, no columns.
const COPY_BOTH: &[u8] = &[0, 0, 0];

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    /// Start-up, `IDENTIFY_SYSTEM`, and at last `START_REPLICATION`.
    async fn greet(
        server: &'a ScriptedServer,
        stream: S,
        manners: Manners,
        seed: Seed,
    ) -> io::Result<Self> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let length = reader.read_u32().await?;
        let mut startup = vec![0; usize::try_from(length).map_err(io::Error::other)? - 4];
        reader.read_exact(&mut startup).await?;
        let greeting = [message(b'R', AUTHENTICATION_OK), message(b'Z', IDLE)].concat();
        writer.write_all(&greeting).await?;
        loop {
            let (tag, body) = read_message(&mut reader).await?;
            let query = String::from_utf8_lossy(&body).into_owned();
            match tag {
                b'Q' if query.starts_with("START_REPLICATION") => break,
                b'Q' => writer.write_all(&server.identity()).await?,
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        writer.write_all(&message(b'W', COPY_BOTH)).await?;
        let (confirmed_flush, next) = {
            let state = server.state();
            (state.confirmed_flush, state.log.first_at(state.confirmed_flush))
        };
        server.tell(Seen::Started { confirmed_flush });
        let position = SendPosition {
            next,
            open: VecDeque::new(),
            has_sent_begin: false,
            sent: confirmed_flush,
            told: confirmed_flush,
            has_sent_relation: false,
            // The server sends a keepalive right after the start.
            owes_reply: true,
            is_ending: false,
            heard_at: Instant::now(),
            is_asking: false,
        };
        let (incoming, outgoing) = (Vec::new(), Outgoing::default());
        Ok(Self { server, reader, writer, manners, seed, incoming, outgoing, position })
    }

    /// Both directions until the client ends.
    async fn stream(&mut self) -> io::Result<()> {
        let mut changes = self.server.changes.subscribe();
        loop {
            while let Some(until) = self.server.stalled_until() {
                tokio::select! {
                    () = sleep_until(until) => {}
                    changed = changes.changed() => changed.map_err(io::Error::other)?,
                }
            }
            if self.is_done() {
                // Without CopyDone, as the real one.
                return self.writer.write_all(&message(b'C', b"COPY 0\0")).await;
            }
            if self.outgoing.is_empty() && !self.next_frame() && self.position.is_ending {
                return self.end().await;
            }
            let len = self.outgoing.next_write(&mut self.seed, self.manners.write_bytes_max);
            // Inside a transaction the client is listened to only while the socket takes nothing
            // more, or when it was silent for long (walsender.c, `WalSndWriteData`).
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

    /// One read or one write of at most `len` bytes, whichever can be had.
    async fn progress(&mut self, len: usize, order: Order) -> io::Result<Progress> {
        let Self { reader, writer, incoming, outgoing, .. } = self;
        let mut bytes = [0; 512];
        poll_fn(|cx| {
            let mut write = |cx: &mut Context<'_>| match len {
                0 => Poll::Pending,
                _ => Pin::new(&mut *writer)
                    .poll_write(cx, outgoing.rest(len))
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
            self.server.tell(Seen::Row { commit_lsn, tx_index });
        }
        if self.seed.chance(self.manners.pause_per_mille) {
            let pause = self.seed.time(Duration::ZERO, self.manners.pause_max);
            tokio::time::sleep(pause).await;
        }
    }

    /// Puts the next frame on its way, if there is one.
    fn next_frame(&mut self) -> bool {
        let Manners { keepalive_per_mille, .. } = self.manners;
        if self.position.is_ending && self.position.open.is_empty() {
            return false;
        }
        if self.position.owes_reply {
            self.position.owes_reply = false;
            self.keepalive();
            return true;
        }
        if self.position.open.is_empty() {
            self.open_next();
        }
        if self.position.open.is_empty() {
            // Caught up: what is no row for us moves the position by keepalives alone.
            let end = self.server.wal_end();
            let asks = self.is_stopping() && !self.position.is_asking;
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

    /// Whether the server waits for this client alone (walsender.c, `WalSndDone`).
    fn is_stopping(&self) -> bool {
        self.server.is_stopping()
    }

    /// Whether a server that stops may let go of this client: everything sent is confirmed.
    fn is_done(&self) -> bool {
        let Outgoing { bytes, written, .. } = &self.outgoing;
        let is_idle = self.position.open.is_empty() && *written == bytes.len();
        let state = self.server.state();
        state.power == Power::Stopping
            && is_idle
            && state.log.transaction(self.position.next).is_none()
            && state.confirmed_flush >= self.position.sent
            && self.position.sent >= state.log.end()
    }

    /// The next transaction with rows for us.
    fn open_next(&mut self) {
        let state = self.server.state();
        while self.position.open.is_empty()
            && let Some(transaction) = state.log.transaction(self.position.next)
        {
            let with_relation = !self.position.has_sent_relation;
            self.position.open = state.log.frames(self.position.next, with_relation);
            match self.position.open.is_empty() {
                true => {
                    self.position.sent = transaction.end_lsn;
                    self.position.next += 1;
                }
                false => self.position.has_sent_relation = true,
            }
        }
    }

    /// The open transaction's commit is on its way.
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
            (true, InTransaction::EndOfLog) => self.server.wal_end(),
            (true, InTransaction::BeforeItsCommit) | (false, _) => self.position.sent,
        };
        self.position.told = self.position.told.max(wal_end);
        let is_silent = self.position.heard_at.elapsed() >= self.manners.reply_patience;
        let reply_requested = !self.position.is_asking && (is_silent || self.is_stopping());
        self.position.is_asking |= reply_requested;
        let frame = encode::keepalive(&Keepalive {
            wal_end: Lsn::new(wal_end),
            sent_at: NOON,
            reply_requested,
        });
        self.outgoing.push(&message(b'd', &frame), None);
        if in_transaction {
            self.server.tell(Seen::KeepaliveInTransaction { wal_end });
        }
    }

    fn read_replies(&mut self) -> io::Result<()> {
        while let Some((tag, body)) = take_message(&mut self.incoming)? {
            self.position.heard_at = Instant::now();
            self.position.is_asking = false;
            match tag {
                b'd' => {
                    let update = StandbyStatusUpdate::parse(&body).map_err(io::Error::other)?;
                    let (flush, told) = (update.flush.as_u64(), self.position.told);
                    self.server.confirm(flush);
                    self.server.tell(Seen::Status { flush, told });
                    self.position.owes_reply |= update.reply_requested;
                }
                b'c' => {
                    self.position.is_ending = true;
                    self.position.open.clear();
                }
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }

    /// The client has said CopyDone: answer, and wait for it to go.
    async fn end(&mut self) -> io::Result<()> {
        let complete = message(b'C', b"COPY 0\0");
        let answers = [message(b'c', b""), complete.clone(), complete, message(b'Z', IDLE)];
        self.writer.write_all(&answers.concat()).await?;
        while self.reader.read_buf(&mut self.incoming).await? > 0 {}
        Ok(())
    }
}

impl ScriptedServer {
    /// The answer to `IDENTIFY_SYSTEM`.
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

    /// The row that has been written whole with these bytes.
    fn wrote(&mut self, count: usize) -> Option<(u64, u32)> {
        self.written += count;
        if self.is_empty() { self.row.take() } else { None }
    }
}

/// A message of the protocol: the length counts itself and the body.
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
