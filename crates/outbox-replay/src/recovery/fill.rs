//! Publishes the rows of a recovery, while another session holds the new slot.

use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;
use walrelay_core::{Random, WalBudgetLimit};
use walrelay_errors::{Chain, Coded};
use walrelay_pg_client::{SqlClient, connect_outbox};
use walrelay_relay::error::RelayError;
use walrelay_relay::failpoint;
use walrelay_relay::lifecycle::server::Server;
use walrelay_relay::lifecycle::session::{Purpose, SessionSettings};
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::{RelaySettings, Settings, Until};
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;
use walrelay_relay::stream::publisher::Publisher;

use super::place_recording::{PlaceInRelayRow, run_recording_place};
use super::progress::Progress;
use super::progress_reporting::ProgressReporting;
use super::recovery_work::RecoveryWork;
use super::source::TableSource;
use super::{published_table, rest};
use crate::lost_slot::refuse_other_outbox;
use crate::operation::{
    SlotOperation, SlotRecovery, SlotSnapshot, finish_part, finish_recovery, read_operation,
    release_operation, take_operation,
};
use crate::operation_resumer::OperationResumer;
use crate::operation_resumer::outcome::Outcome;
use crate::recovery_cursor::read_recovery_cursor;
use crate::rows::unsettled_rows::SourceTable;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryEnd {
    /// No row is left to publish.
    Done,
    /// A stop was requested. The next run resumes with the unsettled rows.
    Stopped,
}

/// Publishes the remaining rows of a recovery.
#[derive(Debug)]
pub struct Fill<'a, P, S> {
    pub settings: &'a Settings,
    pub publisher: P,
    /// Returns the server of the session that holds the slot of this part.
    pub new_slot: S,
    pub metrics: &'a Metrics,
    pub health: &'a Health,
    pub shutdown: &'a Shutdown,
}

/// The interval at which a waiting process checks whether it can continue.
const PAUSE: Duration = Duration::from_secs(1);

/// The pause between attempts to hold the slot after an error that a person has to fix.
const HOLD_PAUSE: Duration = Duration::from_secs(10);

/// The divisor of the byte budget that gives the share of the session that holds the slot.
const HOLDER_SHARE: usize = 4;

impl<P, C, S> Fill<'_, P, S>
where
    P: Publisher,
    C: Server,
    S: Fn(&SlotSnapshot) -> C,
{
    /// Publishes the rows, if a recovery was begun. Waits while another process works on it.
    pub async fn run(&self) -> Result<RecoveryEnd, RelayError> {
        let outbox = &self.settings.relay.outbox;
        let slot = &outbox.slot;
        let client = connect_outbox(&self.settings.connect).await.map_err(RelayError::Connect)?;
        match read_operation(&client, slot).await {
            Ok(Some(SlotOperation::Recovery(_))) => refuse_other_outbox(&client, outbox).await?,
            // The next session encounters and reports any other operation or error.
            Ok(
                Some(
                    SlotOperation::Reset(_)
                    | SlotOperation::Release(_)
                    | SlotOperation::Resharding(_),
                )
                | None,
            )
            | Err(_) => {
                return Ok(RecoveryEnd::Done);
            }
        }
        let finisher = OperationResumer {
            client: &client,
            connect: &self.settings.connect,
            slot,
            health: self.health,
            // The caller drops this future if the start is cancelled, so no stop signal is needed.
            stop: &Shutdown::new(),
        };
        loop {
            if let Some(ended) = self.take_recovery(&finisher).await? {
                return Ok(ended);
            }
            // Reads the operation again, now that this process has the lock.
            let Some((recovery, work)) = rest(&client, slot).await? else {
                return Ok(RecoveryEnd::Done);
            };
            match Box::pin(self.publish(&finisher, (&recovery, &work))).await {
                Ok(Some(StopReason::CaughtUp)) => failpoint::hit("recovery-filled"),
                Ok(Some(StopReason::Stopped) | None) => return Ok(RecoveryEnd::Stopped),
                Err(error) if finisher.has_slot().await.is_ok_and(|has_slot| !has_slot) => {
                    let error_code = error.code().name();
                    tracing::warn!(error_code, slot, error = %Chain(&error), "the new slot is lost; creating another one");
                    release_operation(&client, slot).await?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let is_finished = recovery.parts.len() <= 1;
            match is_finished {
                true => finish_recovery(&client, slot).await?,
                false => finish_part(&client, slot).await?,
            }
            failpoint::hit("recovery-part-finished");
            release_operation(&client, slot).await?;
            if is_finished {
                self.health.set_operation(None);
                client.close().await;
                tracing::info!(slot, "the slot is recovered");
                return Ok(RecoveryEnd::Done);
            }
        }
    }

    /// Waits until this process owns the recovery and its slot exists. Returns how it ends if there
    /// is nothing to publish.
    async fn take_recovery(
        &self,
        finisher: &OperationResumer<'_>,
    ) -> Result<Option<RecoveryEnd>, RelayError> {
        let slot = finisher.slot;
        loop {
            match finisher.finish().await? {
                Outcome::Nothing
                | Outcome::Finished(_)
                | Outcome::ResetCancelled(_)
                | Outcome::ReleaseCancelled(_) => {
                    return Ok(Some(RecoveryEnd::Done));
                }
                Outcome::Pending(_) if take_operation(finisher.client, slot).await? => {
                    return Ok(None);
                }
                Outcome::Pending(_) | Outcome::Elsewhere { .. } => {}
            }
            tracing::info!(slot, "waiting: another process recovers the slot");
            tokio::select! {
                biased;
                () = self.shutdown.requested() => return Ok(Some(RecoveryEnd::Stopped)),
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// Publishes the rows of the first part, while another session holds the current slot.
    async fn publish(
        &self,
        finisher: &OperationResumer<'_>,
        (recovery, work): (&SlotRecovery, &RecoveryWork),
    ) -> Result<Option<StopReason>, RelayError> {
        let (settings, outbox) = (self.settings, &self.settings.relay.outbox);
        let client = finisher.client;
        let mut tables = Vec::new();
        for name in &outbox.tables {
            let columns = &settings.relay.router.columns;
            tables.push(published_table(client, (outbox, name), columns).await?);
        }
        let (Some(part), Some(current)) = (recovery.parts.first(), recovery.parts.last()) else {
            return Ok(None);
        };
        let place = read_recovery_cursor(client, (&outbox.slot, part)).await?;
        let place = place.filter(|place| place.table_among(&tables).is_some());
        match &place {
            Some(place) => {
                tracing::info!(
                    settled = place.number,
                    "continuing behind the rows that are settled"
                );
            }
            None => forget_overtaking(client, &outbox.slot, (work, &tables)).await?,
        }
        let progress = Progress::from(place);
        let mut relay = settings.relay.clone();
        relay.router.replay_id = Some(recovery.id.clone());
        // These rows do not come from the WAL.
        relay.wal_budget = WalBudgetLimit::Off;
        relay.max_in_flight_bytes -= relay.max_in_flight_bytes / HOLDER_SHARE;
        let requests_max = settings.pubsub.max_outstanding_requests;
        let supervisor = Supervisor {
            settings: &SessionSettings::of(&relay, requests_max, Until::CaughtUp),
            server: TableSource::new(settings, work.clone(), (tables, progress.clone())),
            publisher: ProgressReporting::new(self.publisher.clone(), progress.clone()),
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            random: Random::new(random_seed()),
        };
        let noting = PlaceInRelayRow { client, slot: &outbox.slot, part };
        let stop = Shutdown::new();
        let running = Box::pin(supervisor.run(&stop));
        let filling = run_recording_place(running, (noting, &progress), (&stop, self.shutdown));
        let holding = Box::pin(self.hold(finisher, (current, &stop)));
        hold_slot(filling, holding, &stop).await
    }

    /// Holds the slot until `stop` is requested, or the slot is lost. After any other error the rows
    /// are still published, and the relay that streams the slot afterwards meets it again.
    async fn hold(
        &self,
        finisher: &OperationResumer<'_>,
        (current, stop): (&SlotSnapshot, &Shutdown),
    ) -> Result<(), RelayError> {
        let Settings { relay, pubsub, .. } = self.settings;
        let settings = holder_settings(relay, pubsub.max_outstanding_requests);
        loop {
            let supervisor = Supervisor {
                settings: &settings,
                server: (self.new_slot)(current),
                publisher: self.publisher.clone(),
                metrics: self.metrics.of_slot_holder(),
                health: self.health.of_slot_holder(),
                random: Random::new(random_seed()),
            };
            let Err(error) = Box::pin(supervisor.run(stop)).await else { return Ok(()) };
            let error_code = error.code().name();
            if finisher.has_slot().await.is_ok_and(|has_slot| !has_slot) {
                return Err(error);
            }
            tracing::error!(error_code, error = %Chain(&error), "nothing holds the new slot, which retains WAL; trying again");
            tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                () = sleep(HOLD_PAUSE) => {}
            }
        }
    }
}

/// Returns the settings of the session that holds the slot.
fn holder_settings(live: &RelaySettings, requests_max: usize) -> SessionSettings {
    let mut relay = live.clone();
    relay.max_in_flight_bytes /= HOLDER_SHARE;
    let mut settings = SessionSettings::of(&relay, requests_max, Until::Stopped);
    settings.purpose = Purpose::Record;
    settings
}

/// Runs the sessions that publish the rows of a recovery, and beside them the sessions that hold the
/// slot. Requests `stop`, which both obey, once the rows are published or the slot is lost.
///
/// # Errors
///
/// Errors of the first sessions, or the loss of the slot.
pub async fn hold_slot(
    filling: impl Future<Output = Result<Option<StopReason>, RelayError>>,
    holding: impl Future<Output = Result<(), RelayError>>,
    stop: &Shutdown,
) -> Result<Option<StopReason>, RelayError> {
    let (mut filling, mut holding) = (pin!(filling), pin!(holding));
    tokio::select! {
        biased;
        filled = &mut filling => {
            stop.request();
            // Rows that are not recorded stay in the slot.
            drop(holding.await);
            filled
        }
        held = &mut holding => {
            if held.is_err() {
                stop.request();
            }
            let filled = filling.await;
            held.and(filled)
        }
    }
}

/// Takes recorded rows back into the recovery if they would overtake an earlier row.
async fn forget_overtaking(
    client: &SqlClient,
    slot: &str,
    (work, tables): (&RecoveryWork, &[SourceTable]),
) -> Result<(), RelayError> {
    for table in tables {
        let rows = work.gap.forget_overtaking(client, (table, slot)).await?;
        if rows > 0 {
            tracing::info!(
                table = %table.name,
                rows,
                "recorded rows are read from the table again, behind earlier rows of their keys"
            );
        }
    }
    Ok(())
}
