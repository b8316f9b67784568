//! A replay in place: publishes the history of some keys to their live topics, before the keys'
//! queued rows. The keys are paused meanwhile: a pause is a row of `app_outbox_hold`.
//!
//! ```text
//! keys of the rows ──▶ pauses placed ── the relay confirms ──▶ history added ──▶ keys released ──▶ published
//! ```
//!
//! Once the pauses are placed, the tables record each step, so a resumed replay knows where to
//! continue. [`replay`](super) and `backfill` implement the steps in between, which read rows.

use std::time::Duration;
use walrelay_pg_client::SqlError;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep};
use walrelay_core::Topic;
use walrelay_outbox_admin::replay::{HELD_KEYS_MAX, HistoryWriter};
use walrelay_outbox_admin::{ReplayRow, begin_replay, finish_replay, take_replay};
use walrelay_outbox_store::{
    DispatchStore, HistorySource, Key, KeyPauseCounts, ReplayedRows, read_relay_row,
};
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::read_server_identity;
use walrelay_relay::failpoint;
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;

use super::record;
use crate::commands::shared::preconditions::refuse_unfinished;
use crate::error::Error;

/// One replay in place.
#[derive(Clone, Copy)]
pub(in crate::commands) struct InPlace<'a> {
    /// The command that resumes this replay.
    pub(in crate::commands) command: &'static str,
    pub(in crate::commands) settings: &'a Settings,
    pub(in crate::commands) id: &'a str,
}

/// Interval between queries while the replay waits.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Time to wait before the first message. A running relay usually answers sooner.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between messages: an hour of waiting fills one page of log.
const TOLD_EVERY: Duration = Duration::from_secs(10);

impl InPlace<'_> {
    /// Records the replay and a pause of each of its keys, in one transaction.
    pub(in crate::commands) async fn place(
        &self,
        client: &mut SqlClient,
        row: &ReplayRow,
        keys: &[(Topic, String)],
    ) -> Result<(), Error> {
        if keys.len() > HELD_KEYS_MAX {
            return Err(Error::Unfit {
                what: format!("more than {HELD_KEYS_MAX} keys would be held at once"),
                hint: "select fewer aggregates; for everything since a moment there is `slot reset`",
            });
        }
        let slot = &self.settings.relay.outbox.slot;
        refuse_unfinished(client, slot).await?;
        take_replay(client, self.id).await?;
        let named: Vec<_> =
            keys.iter().map(|(topic, ordering_key)| Key { topic, ordering_key }).collect();
        let transaction = client.transaction().await.map_err(failed("begin a replay"))?;
        begin_replay(transaction.client(), row).await?;
        if let Some(other) = self.store().request_pauses(&transaction, self.id, &named).await? {
            let command = record::command_of(transaction.client(), &other).await;
            let what =
                format!("{command} {other} of one of these keys is not over; nothing was begun");
            return Err(Error::Unfinished { what, hint: record::unfinished_hint(&other) });
        }
        transaction.commit().await.map_err(failed("begin a replay"))?;
        tracing::info!(id = self.id, keys = keys.len(), "replay in place begins");
        failpoint::hit("replay-placed");
        Ok(())
    }

    /// Waits until the relay has confirmed every pause. After the keys were released, no pause is
    /// left.
    pub(in crate::commands) async fn held(
        &self,
        client: &SqlClient,
        shutdown: &Shutdown,
    ) -> Result<KeyPauseCounts, Error> {
        let mut told = WaitMessageTimer::new();
        loop {
            let holds = self.store().replay_holds(client, self.id).await?;
            if holds.wanted == 0 {
                failpoint::hit("replay-held");
                return Ok(holds);
            }
            if told.is_due() {
                self.tell(client, (holds.wanted, "key(s) to be held")).await?;
            }
            self.pause(holds.held, shutdown).await?;
        }
    }

    /// Returns a snapshot of the table that sees every row of the history. Waits until the relay
    /// has read the WAL up to the snapshot, so that the relay has recorded every other visible row.
    ///
    /// A commit that waits for a synchronous standby is in the WAL first, and the snapshot does not
    /// see it.
    pub(in crate::commands) async fn snapshot(
        &self,
        client: &SqlClient,
        shutdown: &Shutdown,
    ) -> Result<String, Error> {
        let sql = "SELECT pg_current_snapshot()::text AS snapshot,
                          (pg_current_wal_insert_lsn() - '0/0')::text AS wal_end";
        let row = client.query_typed_one(sql, &[]).await.map_err(failed("take a snapshot"))?;
        let end = Lsn::new(row.get::<_, &str>("wal_end").parse().unwrap_or(u64::MAX));
        let mut told = WaitMessageTimer::new();
        loop {
            let relay = read_relay_row(client, &self.settings.relay.outbox.slot).await?;
            let settled = relay.map_or(Lsn::ZERO, |relay| relay.settled_lsn);
            if settled >= end {
                return Ok(row.get("snapshot"));
            }
            if told.is_due() {
                let bytes = end.as_u64() - settled.as_u64();
                self.tell(client, (bytes, "byte(s) of log to be read")).await?;
            }
            self.pause(0, shutdown).await?;
        }
    }

    /// Returns a writer that adds the history to dispatch state.
    pub(in crate::commands) async fn writer(
        &self,
        client: &SqlClient,
        source: HistorySource,
    ) -> Result<HistoryWriter, Error> {
        let server = read_server_identity(client).await?;
        let connect = self.settings.connect.clone();
        Ok(HistoryWriter::new(connect, server, self.store(), (self.id.to_owned(), source)))
    }

    /// Releases all keys.
    pub(in crate::commands) async fn lift(&self, client: &mut SqlClient) -> Result<(), Error> {
        failpoint::hit("replay-added");
        let transaction = client.transaction().await.map_err(failed("let keys go on"))?;
        self.store().lift_pauses(&transaction, self.id).await?;
        transaction.commit().await.map_err(failed("let keys go on"))?;
        tracing::info!(id = self.id, "the history is in dispatch state, and its keys go on");
        failpoint::hit("replay-lifted");
        Ok(())
    }

    /// Waits until every row is published or dead, and records that the replay is finished. Returns
    /// the summary to print.
    pub(in crate::commands) async fn published(
        &self,
        client: &SqlClient,
        shutdown: &Shutdown,
    ) -> Result<String, Error> {
        let mut told = WaitMessageTimer::new();
        loop {
            let rows = self.store().replayed_rows(client, self.id).await?;
            if rows.retrying == 0 {
                finish_replay(client, self.id, rows.finished).await?;
                return Ok(self.summary(rows));
            }
            if rows.retrying == rows.behind_dead {
                let (id, rows) = (self.id.to_owned(), rows.retrying);
                return Err(Error::ReplayHeld { command: self.command, id, rows });
            }
            if told.is_due() {
                self.tell(client, (rows.retrying, "row(s) to be published")).await?;
            }
            self.pause(rows.finished, shutdown).await?;
        }
    }

    fn summary(&self, rows: ReplayedRows) -> String {
        let (command, id, published) = (self.command, self.id, rows.finished);
        let dead = match rows.dead {
            0 => String::new(),
            dead => format!("dead: {dead} row(s), in `walrelay dispatch list --status dead`\n"),
        };
        let copies = record::COPIES;
        format!("{command} {id}: {published} row(s) were published again in place\n{dead}{copies}")
    }

    pub(in crate::commands) fn store(&self) -> DispatchStore {
        let relay = &self.settings.relay;
        DispatchStore::new(relay.outbox.slot.clone()).with_on_dead(relay.on_dead)
    }

    /// Logs the reason for the wait, and warns if no relay is running.
    async fn tell(&self, client: &SqlClient, (count, what): (u64, &str)) -> Result<(), Error> {
        let (id, slot) = (self.id, &self.settings.relay.outbox.slot);
        match self.store().streaming_pid(client).await? {
            Some(_) => tracing::info!(id, "waiting for the relay: {count} {what}"),
            None => tracing::warn!(
                id,
                "no relay streams slot {slot:?}, and {count} {what} wait for one: start `walrelay run`, or press \
                 Ctrl-C and go on later with `walrelay replay resume {id}`"
            ),
        }
        Ok(())
    }

    async fn pause(&self, published: u64, shutdown: &Shutdown) -> Result<(), Error> {
        tokio::select! {
            () = sleep(LOOK_EVERY) => Ok(()),
            () = shutdown.requested() => {
                let id = self.id.to_owned();
                Err(Error::ReplayStopped { id, published })
            }
        }
    }
}

/// The time of the next message while the replay waits.
struct WaitMessageTimer {
    next: Instant,
}

impl WaitMessageTimer {
    fn new() -> Self {
        Self { next: Instant::now() + PATIENCE }
    }

    fn is_due(&mut self) -> bool {
        let is_due = Instant::now() >= self.next;
        if is_due {
            self.next = Instant::now() + TOLD_EVERY;
        }
        is_due
    }
}

fn failed(action: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |source| SqlError::Sql { action: action.to_owned(), source }.into()
}
