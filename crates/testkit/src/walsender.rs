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

mod connection;
mod log;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub use log::{Log, OpenTransaction, OutboxTable, RowRecord, Transaction};

/// What the server tells about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Streaming starts here, and rows whose commit starts before are not sent.
    Started {
        /// The slot's position.
        confirmed_flush: u64,
        /// Who streams.
        holder: SlotHolder,
    },
    /// The last byte of a row was written to the socket.
    Row {
        /// Start of its commit record.
        commit_lsn: u64,
        /// Its place in the transaction.
        tx_index: u32,
    },
    /// A copy of the anchor begins to be streamed: nothing that is read or confirmed of it moves the slot.
    CopyStarted {
        /// Where it starts.
        from: u64,
        /// Who streams.
        application_name: String,
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

/// Who streams from the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// Its server process.
    pub pid: i32,
    /// What it calls itself.
    pub application_name: String,
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

/// A server with one slot, and an anchor where the log begins. Clones are the same server.
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

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    There,
    Gone,
}

struct State {
    log: Log,
    /// Whether there is the slot, between being dropped and made again.
    slot: Presence,
    /// Where the anchor stands.
    anchor: u64,
    /// `confirmed_flush_lsn`.
    confirmed_flush: u64,
    /// What of it survives a crash.
    confirmed_flush_written: u64,
    /// Moves with each cut: connections of before are over.
    generation: u64,
    power: Power,
    /// Up, and read-only: a standby that is not promoted yet.
    recovering_until: Option<Instant>,
    connections: usize,
    /// Connections so far; each one's number is its server process.
    pid: i32,
    holder: Option<SlotHolder>,
    began: Instant,
    replied_at: Option<Instant>,
    /// Server processes that somebody has ended.
    ended: BTreeSet<i32>,
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
            slot: Presence::There,
            anchor: start,
            confirmed_flush: start,
            confirmed_flush_written: start,
            generation: 0,
            power: Power::Up,
            recovering_until: None,
            connections: 0,
            pid: 0,
            holder: None,
            began: Instant::now(),
            replied_at: None,
            ended: BTreeSet::new(),
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

    /// Where the anchor stands.
    #[must_use]
    pub fn anchor(&self) -> u64 {
        self.state().anchor
    }

    /// Drops the slot, if it is there.
    ///
    /// # Errors
    ///
    /// Who streams it.
    pub fn drop_slot(&self) -> Result<(), SlotHolder> {
        self.change(|state| match &state.holder {
            Some(holder) => Err(holder.clone()),
            None => {
                state.slot = Presence::Gone;
                Ok(())
            }
        })
    }

    /// Makes the slot anew, at this position, which is on disk from the beginning.
    ///
    /// # Errors
    ///
    /// There is one.
    pub fn make_slot(&self, at: u64) -> Result<(), SlotExists> {
        self.change(|state| match state.slot {
            Presence::There => Err(SlotExists),
            Presence::Gone => {
                state.slot = Presence::There;
                (state.confirmed_flush, state.confirmed_flush_written) = (at, at);
                Ok(())
            }
        })
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
        self.change(|state| {
            state.power = Power::Up;
            state.recovering_until = None;
        });
    }

    /// Takes connections again, and until then nobody can stream or write.
    pub fn start_in_recovery(&self, until: Instant) {
        self.start();
        self.change(|state| state.recovering_until = Some(until));
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

    /// Whether nobody can stream or write yet.
    #[must_use]
    pub fn is_in_recovery(&self) -> bool {
        self.state().is_in_recovery()
    }

    /// Who streams.
    #[must_use]
    pub fn holder(&self) -> Option<SlotHolder> {
        self.state().holder.clone()
    }

    /// When the client's last status update was read.
    #[must_use]
    pub fn replied_at(&self) -> Option<SystemTime> {
        let state = self.state();
        state.replied_at.map(|at| SystemTime::UNIX_EPOCH + at.duration_since(state.began))
    }

    /// Ends a connection, as `pg_terminate_backend` does.
    pub fn end_session(&self, pid: i32) {
        self.change(|state| state.ended.insert(pid));
    }

    /// Whether a shutdown waits for the client.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.state().power == Power::Stopping
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

    /// Why a copy of the anchor cannot be streamed.
    fn refuse_copy(&self) -> Option<Refusal> {
        self.state().is_in_recovery().then(|| Refusal {
            code: "0A000",
            text: "logical decoding cannot be used while in recovery".into(),
        })
    }

    /// Gives the slot to a connection; why not, otherwise.
    fn take_slot(&self, pid: i32, application_name: String) -> Result<SlotHolder, Refusal> {
        self.change(|state| match &state.holder {
            _ if state.is_in_recovery() => Err(Refusal {
                code: "0A000",
                text: "logical decoding cannot be used while in recovery".into(),
            }),
            None if state.slot == Presence::Gone => Err(Refusal {
                code: "42704",
                text: "replication slot \"walrelay\" does not exist".into(),
            }),
            Some(holder) => Err(Refusal {
                code: "55006",
                text: format!("replication slot \"walrelay\" is active for PID {}", holder.pid),
            }),
            None => {
                let holder = SlotHolder { pid, application_name };
                state.holder = Some(holder.clone());
                Ok(holder)
            }
        })
    }

    fn tell(&self, seen: Seen) {
        (self.state().watcher)(seen);
    }

    fn stalled_until(&self) -> Option<Instant> {
        self.state().stalled_until.filter(|until| *until > Instant::now())
    }

    fn confirm(&self, flush: u64) {
        let mut state = self.state();
        state.replied_at = Some(Instant::now());
        // Any value is believed; only backwards it does not move.
        state.confirmed_flush = state.confirmed_flush.max(flush);
    }
}

impl State {
    fn is_in_recovery(&self) -> bool {
        self.recovering_until.is_some_and(|until| until > Instant::now())
    }

    /// Whether a connection is cut or ended. A server that stops waits only for who streams.
    fn is_over(&self, generation: u64, pid: i32) -> bool {
        let streams = self.holder.as_ref().is_some_and(|holder| holder.pid == pid);
        self.generation != generation
            || self.ended.contains(&pid)
            || (self.power == Power::Stopping && !streams)
    }
}

/// There is a slot of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotExists;

/// The name of the slot that the relay streams; one of another name is a copy of the anchor.
pub const LIVE_SLOT: &str = "walrelay";

/// Why a command fails.
struct Refusal {
    code: &'static str,
    text: String,
}

/// Counts a connection out, however it ends.
struct Leave<'a>(&'a ScriptedServer, i32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.connections -= 1;
            if state.holder.as_ref().is_some_and(|holder| holder.pid == self.1) {
                state.holder = None;
            }
        });
        self.0.tell(Seen::Ended);
    }
}
