//! Steps before a protocol drops a slot for good: relays release it, and its remaining rows are
//! published.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_core::{OnDead, Random};
use walrelay_outbox_replay::{AdminError, read_slot_holder};
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::{SlotError, read_slot};
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;

use super::protocol_error::ProtocolError;
use crate::lifecycle::postgres_server::Postgres;

/// Longest time for a relay to release the slot.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between checks whether the slot is free.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits until no session holds the slot. Each relay releases it when it sees the recorded
/// operation.
pub(super) async fn wait_until_free(
    client: &SqlClient,
    slot: &str,
    stop: &Shutdown,
) -> Result<(), ProtocolError> {
    let until = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let missing = || SlotError::SlotMissing { slot: slot.to_owned() };
        let state = read_slot(client, slot).await?.ok_or_else(missing)?;
        let Some(pid) = state.active_pid else { return Ok(()) };
        if Instant::now() >= until {
            let holder = read_slot_holder(client, pid).await?.to_string();
            return Err(AdminError::SlotHeld { slot: slot.to_owned(), holder }.into());
        }
        pause(PAUSE, stop).await?;
    }
}

/// Waits, unless the operator asks to stop.
pub(super) async fn pause(time: Duration, stop: &Shutdown) -> Result<(), ProtocolError> {
    tokio::select! {
        () = sleep(time) => Ok(()),
        () = stop.requested() => Err(ProtocolError::Interrupted),
    }
}

/// Connects to Pub/Sub and checks the credentials.
pub(super) async fn connect_publisher(
    settings: &Settings,
    stop: &Shutdown,
) -> Result<GrpcPublisher, ProtocolError> {
    let publisher = GrpcPublisher::connect(&settings.pubsub.publisher)?;
    tokio::select! {
        biased;
        () = stop.requested() => return Err(ProtocolError::Interrupted),
        token = publisher.authenticate() => token?,
    }
    Ok(publisher)
}

/// Publishes and confirms the slot's rows up to `until`, or records them in dispatch state, as a
/// relay does. Rows behind a dead row of their key stay in dispatch state. The relay that starts
/// afterwards publishes or holds them, by its own setting.
pub(super) async fn drain(
    settings: &Settings,
    publisher: GrpcPublisher,
    until: Until,
    stop: &Shutdown,
) -> Result<(), ProtocolError> {
    let requests_max = settings.pubsub.max_outstanding_requests;
    let mut settings = settings.clone();
    settings.relay.on_dead = OnDead::Hold;
    let sessions = SessionSettings::of(&settings.relay, requests_max, until);
    let health = Health::new();
    let supervisor = Supervisor {
        settings: &sessions,
        server: Postgres::new(&settings, health.clone()).for_a_command(),
        publisher,
        metrics: Metrics::new(),
        health,
        random: Random::new(random_seed()),
    };
    let slot = settings.relay.outbox.slot.as_str();
    tracing::info!(slot, "draining: what is committed is published and confirmed");
    match Box::pin(supervisor.run(stop)).await? {
        Some(StopReason::CaughtUp) => Ok(()),
        Some(StopReason::Stopped) | None => Err(ProtocolError::Interrupted),
    }
}
