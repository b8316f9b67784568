//! A scripted Postgres: a WAL, a slot and the walsender that streams it, in real protocol bytes
//! over any duplex stream.
//!
//! Behaves like the real server wherever the relay could notice a difference:
//!
//! - Transactions arrive in commit order, with header positions that go backwards.
//! - Rolled-back transactions are never sent.
//! - Keepalives arrive between and inside transactions.
//! - Every status update is accepted without a check.
//! - After a crash, the slot has the position of the last checkpoint.
//!
//! Injects faults on request: cuts, stalls, crashes, slow and fragmented writes.
//!
//! ```text
//! Log ── commit, roll_back, write        a producer's side
//! ScriptedServer ── serve(stream) ──▶    one connection, until it ends or is cut
//!                └─ Watcher              sees every row sent and every position confirmed
//! ```

mod connection;
mod wal;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub use wal::{Log, OpenTransaction, OutboxTable, RowRecord, Transaction};

/// An event of a connection, as the server reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Streaming has started. Rows whose commit starts before this position are not sent.
    Started {
        /// The slot's position.
        confirmed_flush: u64,
        holder: SlotHolder,
    },
    /// The last byte of a row was written to the socket.
    Row {
        /// The start of the row's commit record.
        commit_lsn: u64,
        tx_index: u32,
    },
    /// Streaming of a copy of the anchor has started. Reading or confirming the copy does not move
    /// the live slot.
    CopyStarted {
        from: u64,
        application_name: String,
    },
    /// A keepalive was written while a transaction was being sent.
    KeepaliveInTransaction {
        /// The position in the keepalive.
        wal_end: u64,
    },
    /// A status update was read.
    Status {
        /// The confirmed position.
        flush: u64,
        /// The highest position sent to this connection, or its start position.
        told: u64,
    },
    Ended,
}

/// The session that streams from the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// The id of its server process.
    pub pid: i32,
    pub application_name: String,
}

/// A callback that receives every event at the moment it happens.
pub type Watcher = Box<dyn FnMut(Seen) + Send>;

/// The write and read behaviour of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionBehavior {
    /// The maximum size of one write in bytes. Each size is drawn from 1 to this maximum.
    pub write_bytes_max: usize,
    /// The number of writes in a thousand after which the server pauses.
    pub pause_per_mille: u64,
    /// The maximum length of a pause.
    pub pause_max: Duration,
    /// The number of frames in a thousand before which an unrequested keepalive is sent.
    pub keepalive_per_mille: u64,
    /// The time without a message from the client after which a keepalive requests a reply.
    pub reply_patience: Duration,
    pub in_transaction: KeepalivePosition,
}

/// The position of a keepalive that is sent inside a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepalivePosition {
    /// A position before the transaction's commit, as every known version sends.
    BeforeItsCommit,
    /// The end of the WAL. No version rules this position out.
    EndOfLog,
}

/// A server with one slot, and an anchor at the start of the WAL. All clones are the same server.
#[derive(Clone)]
pub struct ScriptedServer {
    state: Arc<Mutex<State>>,
    /// A counter of changes, so that connections check the state again.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerState {
    Up,
    Stopping,
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectState {
    There,
    Gone,
}

struct State {
    log: Log,
    /// Whether the slot exists. It is missing between its drop and its next creation.
    slot: ObjectState,
    anchor: u64,
    /// `confirmed_flush_lsn`.
    confirmed_flush: u64,
    /// The part of `confirmed_flush` that survives a crash.
    confirmed_flush_written: u64,
    /// The number of cuts and crashes. Connections of an earlier generation are over.
    generation: u64,
    power: ServerState,
    /// The time until which the server is up but read-only, as a standby before its promotion.
    recovering_until: Option<Instant>,
    connections: usize,
    /// The number of connections so far. A connection's number is its server process id.
    pid: i32,
    holder: Option<SlotHolder>,
    began: Instant,
    replied_at: Option<Instant>,
    /// The terminated server processes.
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
    /// Creates a server with an empty WAL and a slot at its start.
    #[must_use]
    pub fn new(table: OutboxTable, watcher: Watcher) -> Self {
        let log = Log::new(table);
        let start = log.end();
        let state = State {
            log,
            slot: ObjectState::There,
            anchor: start,
            confirmed_flush: start,
            confirmed_flush_written: start,
            generation: 0,
            power: ServerState::Up,
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

    /// Writes to the WAL. Connections then send the new WAL.
    pub fn write<T>(&self, write: impl FnOnce(&mut Log) -> T) -> T {
        self.change(|state| write(&mut state.log))
    }

    #[must_use]
    pub fn wal_end(&self) -> u64 {
        self.state().log.end()
    }

    #[must_use]
    pub fn confirmed_flush(&self) -> u64 {
        self.state().confirmed_flush
    }

    #[must_use]
    pub fn confirmed_flush_written(&self) -> u64 {
        self.state().confirmed_flush_written
    }

    #[must_use]
    pub fn anchor(&self) -> u64 {
        self.state().anchor
    }

    /// Drops the slot, if it exists.
    ///
    /// # Errors
    ///
    /// The session that streams from the slot.
    pub fn drop_slot(&self) -> Result<(), SlotHolder> {
        self.change(|state| match &state.holder {
            Some(holder) => Err(holder.clone()),
            None => {
                state.slot = ObjectState::Gone;
                Ok(())
            }
        })
    }

    /// Creates the slot at this position, which is persistent from the start.
    pub fn make_slot(&self, at: u64) -> Result<(), SlotExists> {
        self.change(|state| match state.slot {
            ObjectState::There => Err(SlotExists),
            ObjectState::Gone => {
                state.slot = ObjectState::There;
                (state.confirmed_flush, state.confirmed_flush_written) = (at, at);
                Ok(())
            }
        })
    }

    /// Breaks every connection, even in the middle of a write.
    pub fn cut(&self) {
        self.change(|state| state.generation += 1);
    }

    /// Persists the slot's position, as a checkpoint does.
    pub fn checkpoint(&self) {
        let mut state = self.state();
        state.confirmed_flush_written = state.confirmed_flush;
    }

    /// Stops at once. The slot falls back to the position of the last checkpoint.
    pub fn crash(&self) {
        self.change(|state| {
            state.generation += 1;
            state.power = ServerState::Down;
            state.confirmed_flush = state.confirmed_flush_written;
        });
    }

    /// Accepts connections again.
    pub fn start(&self) {
        self.change(|state| {
            state.power = ServerState::Up;
            state.recovering_until = None;
        });
    }

    /// Accepts connections again, but refuses streaming and writing before `until`.
    pub fn start_in_recovery(&self, until: Instant) {
        self.start();
        self.change(|state| state.recovering_until = Some(until));
    }

    /// Performs a fast shutdown: sends all WAL, and waits until the client has confirmed it or
    /// disconnects. Stops waiting after `limit`, and returns whether the limit was reached.
    pub async fn shut_down(&self, limit: Duration) -> bool {
        let mut changes = self.changes.subscribe();
        self.change(|state| state.power = ServerState::Stopping);
        let gone = changes.wait_for(|_| self.state().connections == 0);
        let was_blocked = timeout(limit, gone).await.is_err();
        self.change(|state| {
            state.generation += 1;
            state.power = ServerState::Down;
            state.confirmed_flush_written = state.confirmed_flush;
        });
        was_blocked
    }

    /// Neither reads nor writes before `until`, and keeps the connections open. A time in the past
    /// ends the stall.
    pub fn stall(&self, until: Instant) {
        self.change(|state| state.stalled_until = Some(until));
    }

    /// Reports whether connections are accepted.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state().power == ServerState::Up
    }

    /// Reports whether streaming and writing are still refused.
    #[must_use]
    pub fn is_in_recovery(&self) -> bool {
        self.state().is_in_recovery()
    }

    #[must_use]
    pub fn holder(&self) -> Option<SlotHolder> {
        self.state().holder.clone()
    }

    /// Returns the time when the client's last status update was read.
    #[must_use]
    pub fn replied_at(&self) -> Option<SystemTime> {
        let state = self.state();
        state.replied_at.map(|at| SystemTime::UNIX_EPOCH + at.duration_since(state.began))
    }

    /// Ends a connection, as `pg_terminate_backend` does.
    pub fn end_session(&self, pid: i32) {
        self.change(|state| state.ended.insert(pid));
    }

    /// Reports whether a shutdown waits for the client.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.state().power == ServerState::Stopping
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock has already failed the test.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        changed
    }

    /// Returns the reason why a copy of the anchor cannot be streamed, if any.
    fn refuse_copy(&self) -> Option<Refusal> {
        self.state().is_in_recovery().then(|| Refusal {
            code: "0A000",
            text: "logical decoding cannot be used while in recovery".into(),
        })
    }

    /// Gives the slot to a connection, or returns the reason for the refusal.
    fn take_slot(&self, pid: i32, application_name: String) -> Result<SlotHolder, Refusal> {
        self.change(|state| match &state.holder {
            _ if state.is_in_recovery() => Err(Refusal {
                code: "0A000",
                text: "logical decoding cannot be used while in recovery".into(),
            }),
            None if state.slot == ObjectState::Gone => Err(Refusal {
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
        // Any value is accepted, but the position never moves backwards.
        state.confirmed_flush = state.confirmed_flush.max(flush);
    }
}

impl State {
    fn is_in_recovery(&self) -> bool {
        self.recovering_until.is_some_and(|until| until > Instant::now())
    }

    /// Reports whether a connection was cut or terminated. A stopping server waits only for the
    /// session that streams.
    fn is_over(&self, generation: u64, pid: i32) -> bool {
        let streams = self.holder.as_ref().is_some_and(|holder| holder.pid == pid);
        self.generation != generation
            || self.ended.contains(&pid)
            || (self.power == ServerState::Stopping && !streams)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotExists;

/// The name of the slot that the relay streams. Any other slot name is a copy of the anchor.
pub const LIVE_SLOT: &str = "walrelay";

struct Refusal {
    code: &'static str,
    text: String,
}

/// Decrements the connection count on drop, however the connection ends.
struct ConnectionCount<'a>(&'a ScriptedServer, i32);

impl Drop for ConnectionCount<'_> {
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
