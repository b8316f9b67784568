//! The run of a replay to its end: to another topic in one pass, or in place.
//!
//! In place, the history of some keys is published to their live topics, before the keys' queued
//! rows. The keys are paused meanwhile: a pause is a row of `app_outbox_hold`.
//!
//! ```text
//! keys of the rows ──▶ pauses placed ── the relay confirms ──▶ history added ──▶ keys released ──▶ published
//! ```
//!
//! Once the pauses are placed, the tables record each step, so a resumed replay knows where to
//! continue.

use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep};
use walrelay_core::Topic;
use walrelay_outbox_store::{HistorySource, KeyPauseCounts, ReplayedRows, read_relay_row};
use walrelay_pg_client::{SqlClient, connect_sql, sql};
use walrelay_pg_replication::read_server_identity;
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::failpoint;
use walrelay_relay::settings::Settings;

use super::in_place::{HELD_KEYS_MAX, HistoryWriter, KeysSeen};
use super::pass::{Pass, ReplayEnv};
use super::record::{ReplayEnd, ReplayJob, end_replay};
use super::replay_error::ReplayError;
use super::replay_step::{RelayWork, ReplayStep, ReplayWait, report};
use super::request::{Destination, ReplaySource};
use crate::lost_slot::existing_slot;
use crate::operation::read_operation;

/// Interval between queries while the replay waits.
const CHECKED_EVERY: Duration = Duration::from_millis(300);

/// Time to wait before the first report. A running relay usually answers sooner.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between reports: an hour of waiting fills one page of log.
const REPORTED_EVERY: Duration = Duration::from_secs(10);

/// The rows that a replay would publish.
#[derive(Debug)]
pub struct ReplayCounts {
    pub rows: u64,
    /// Number of rows that Pub/Sub never accepts, and that are left out.
    pub left_out: u64,
    /// Topic and ordering key of each key, at most one more than a replay in place may pause.
    pub keys: Vec<(Topic, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestInPlace {
    /// Number of keys that are paused, and whose history may not be complete yet.
    pub keys: u64,
    /// Number of rows in dispatch state that are still to be published.
    pub rows: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayDone {
    pub published: u64,
    /// Number of rows that Pub/Sub never accepts: left out, or dead in dispatch state.
    pub refused: u64,
}

impl ReplayJob {
    /// Reads and counts the rows that are not published yet, and publishes nothing.
    ///
    /// # Errors
    ///
    /// A row cannot be read or published, a replay in place would pause too many keys, or a stop was
    /// requested.
    pub async fn count(
        &self,
        client: &SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<ReplayCounts, ReplayError> {
        let seen = KeysSeen::default();
        let tally = Box::pin(self.read(client, env, &Pass::Count, Some(seen.clone()))).await?;
        let rows = tally.published() - self.progress.rows;
        let (left_out, keys) = (tally.left_out(), seen.keys());
        // A replay to a topic pauses no key.
        if self.request.destination == Destination::InPlace && keys.len() > HELD_KEYS_MAX {
            return Err(ReplayError::TooManyKeys);
        }
        Ok(ReplayCounts { rows, left_out, keys })
    }

    /// Counts what is left of a replay in place that is on record.
    pub async fn count_in_place(
        &self,
        client: &SqlClient,
        settings: &Settings,
    ) -> Result<RestInPlace, ReplayError> {
        let store = self.dispatch(settings);
        let pauses = store.replay_holds(client, &self.id).await?;
        let rows = store.replayed_rows(client, &self.id).await?;
        Ok(RestInPlace { keys: pauses.wanted + pauses.held, rows: rows.retrying })
    }

    /// Publishes what is left of the replay, and records that it is done.
    ///
    /// # Errors
    ///
    /// A row cannot be read or published, or a stop was requested. The replay can be resumed.
    pub async fn run(
        &self,
        client: &mut SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<ReplayDone, ReplayError> {
        match &self.request.destination {
            Destination::Topic { .. } => Box::pin(self.to_topic(client, env)).await,
            Destination::InPlace => Box::pin(self.in_place(client, env)).await,
        }
    }

    /// Refuses if no relay can publish in place, because there is no slot to stream.
    pub async fn refuse_without_slot(&self, client: &SqlClient) -> Result<(), ReplayError> {
        // An operation that replaces the slot ends by itself.
        if read_operation(client, &self.slot).await?.is_some() {
            return Ok(());
        }
        existing_slot(client, &self.slot).await?;
        Ok(())
    }

    async fn to_topic(
        &self,
        client: &SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<ReplayDone, ReplayError> {
        let publisher = GrpcPublisher::connect(&env.settings.pubsub.publisher)?;
        tokio::select! {
            biased;
            () = env.shutdown.requested() => return Err(self.stopped(self.progress.rows)),
            token = publisher.authenticate() => token?,
        }
        let tally = Box::pin(self.read(client, env, &Pass::Publish, Some(publisher))).await?;
        // The session of `client` may have ended during a long pass.
        let recording = connect_sql(&env.settings.connect).await?;
        end_replay(&recording, &self.id, ReplayEnd::Done, tally.published()).await?;
        recording.close().await;
        Ok(ReplayDone { published: tally.published(), refused: tally.left_out() })
    }

    async fn in_place(
        &self,
        client: &mut SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<ReplayDone, ReplayError> {
        let pauses = self.paused(client, env).await?;
        // After the keys were released, no pause is left.
        if pauses.held > 0 {
            let (source, snapshot) = match &self.request.source {
                ReplaySource::Wal(_) => (HistorySource::Log, None),
                ReplaySource::Table(_) => {
                    (HistorySource::Table, Some(self.snapshot(client, env).await?))
                }
            };
            let server = read_server_identity(client).await?;
            let (connect, store) = (env.settings.connect.clone(), self.dispatch(env.settings));
            let writer = HistoryWriter::new(connect, server, store, (self.id.clone(), source));
            let history = writer.clone();
            let pass = Pass::WriteHistory { through: pauses.through, snapshot, history };
            Box::pin(self.read(client, env, &pass, Some(writer))).await?;
            self.lift(client, env).await?;
        }
        let rows = self.published(client, env).await?;
        Ok(ReplayDone { published: rows.finished, refused: rows.dead })
    }

    /// Waits until the relay has confirmed every pause.
    async fn paused(
        &self,
        client: &SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<KeyPauseCounts, ReplayError> {
        let mut wait = Wait::new(self, env);
        loop {
            let pauses = self.dispatch(env.settings).replay_holds(client, &self.id).await?;
            if pauses.wanted == 0 {
                failpoint::hit("replay-held");
                return Ok(pauses);
            }
            wait.pass(client, RelayWork::PauseKeys(pauses.wanted), pauses.held).await?;
        }
    }

    /// Returns a snapshot of the table that sees every row of the history. Waits until the relay
    /// has read the WAL up to the snapshot, so that the relay has recorded every other visible row.
    ///
    /// A commit that waits for a synchronous standby is in the WAL first, and the snapshot does not
    /// see it.
    async fn snapshot(
        &self,
        client: &SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<String, ReplayError> {
        let row = client.query_typed_one(sql!("run.sql", "snapshot_with_end"), &[]).await;
        let row = row.map_err(ReplayError::sql("take a snapshot"))?;
        let end = Lsn::new(row.get::<_, &str>("wal_end").parse().unwrap_or(u64::MAX));
        let mut wait = Wait::new(self, env);
        loop {
            let relay = read_relay_row(client, &self.slot).await?;
            let settled = relay.map_or(Lsn::ZERO, |relay| relay.settled_lsn);
            if settled >= end {
                return Ok(row.get("snapshot"));
            }
            let bytes = end.as_u64() - settled.as_u64();
            wait.pass(client, RelayWork::ReadBytes(bytes), 0).await?;
        }
    }

    /// Releases all keys.
    async fn lift(&self, client: &mut SqlClient, env: ReplayEnv<'_>) -> Result<(), ReplayError> {
        failpoint::hit("replay-added");
        let failed = || ReplayError::sql("release the keys");
        let transaction = client.transaction().await.map_err(failed())?;
        self.dispatch(env.settings).lift_pauses(&transaction, &self.id).await?;
        transaction.commit().await.map_err(failed())?;
        report(env.steps, &ReplayStep::LiftsPauses(self))?;
        failpoint::hit("replay-lifted");
        Ok(())
    }

    /// Waits until every row is published or dead, and records that the replay is done. Fails if a
    /// dead row stops a key and rows of that key wait behind it.
    async fn published(
        &self,
        client: &SqlClient,
        env: ReplayEnv<'_>,
    ) -> Result<ReplayedRows, ReplayError> {
        let mut wait = Wait::new(self, env);
        let rows = loop {
            let rows = self.dispatch(env.settings).replayed_rows(client, &self.id).await?;
            if rows.retrying == rows.behind_dead {
                break rows;
            }
            wait.pass(client, RelayWork::PublishRows(rows.retrying), rows.finished).await?;
        };
        // A pause may cover only a part of a key. The rest waits under its own ids.
        let blocked = rows.behind_dead + rows.others_behind_dead;
        if blocked > 0 {
            return Err(ReplayError::BehindDeadRow { id: self.id.clone(), rows: blocked });
        }
        end_replay(client, &self.id, ReplayEnd::Done, rows.finished).await?;
        Ok(rows)
    }
}

/// A wait for the relay.
struct Wait<'a> {
    job: &'a ReplayJob,
    env: ReplayEnv<'a>,
    next_report: Instant,
}

impl<'a> Wait<'a> {
    fn new(job: &'a ReplayJob, env: ReplayEnv<'a>) -> Self {
        Self { job, env, next_report: Instant::now() + PATIENCE }
    }

    /// Reports the wait now and then, and waits until the next query is due.
    async fn pass(
        &mut self,
        client: &SqlClient,
        work: RelayWork,
        published: u64,
    ) -> Result<(), ReplayError> {
        let ReplayEnv { settings, steps, shutdown } = self.env;
        if Instant::now() >= self.next_report {
            self.next_report = Instant::now() + REPORTED_EVERY;
            let relay = self.job.dispatch(settings).streaming_pid(client).await?;
            if relay.is_none() {
                self.job.refuse_without_slot(client).await?;
            }
            let ReplayJob { id, slot, .. } = self.job;
            report(steps, &ReplayStep::Waits(ReplayWait { id, slot, work, relay }))?;
        }
        tokio::select! {
            () = sleep(CHECKED_EVERY) => Ok(()),
            () = shutdown.requested() => Err(self.job.stopped(published)),
        }
    }
}
