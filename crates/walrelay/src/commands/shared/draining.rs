//! Steps before a command drops a slot for good: relays release it, and its remaining rows are
//! published.

use std::time::Duration;
use walrelay_pg_replication::{SlotError, read_slot};

use tokio::time::{Instant, sleep};
use walrelay_core::Random;
use walrelay_outbox_admin::lifecycle::postgres_server::Postgres;
use walrelay_outbox_admin::{AdminError, read_slot_holder};
use walrelay_pg_client::SqlClient;
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;

use crate::error::Error;

/// Longest time for a relay to release the slot.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between checks whether the slot is free.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits until no session holds the slot. Each relay releases it when it sees the recorded
/// operation.
///
/// # Errors
///
/// A session does not release the slot, the slot does not exist, the server refuses, or the wait
/// was interrupted.
pub(in crate::commands) async fn wait_until_free(
    client: &SqlClient,
    slot: &str,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let until = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let missing = || AdminError::Slot(SlotError::SlotMissing { slot: slot.to_owned() });
        let state = read_slot(client, slot).await?.ok_or_else(missing)?;
        let Some(pid) = state.active_pid else { return Ok(()) };
        if Instant::now() >= until {
            let holder = read_slot_holder(client, pid).await?.to_string();
            return Err(AdminError::SlotHeld { slot: slot.to_owned(), holder }.into());
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = shutdown.requested() => return Err(Error::Interrupted),
        }
    }
}

/// Connects to Pub/Sub and checks the credentials.
///
/// # Errors
///
/// Pub/Sub refuses, or the command was interrupted.
pub(in crate::commands) async fn publisher(
    settings: &Settings,
    shutdown: &Shutdown,
) -> Result<GrpcPublisher, Error> {
    let publisher = GrpcPublisher::connect(&settings.pubsub.publisher).map_err(Error::PubSub)?;
    tokio::select! {
        biased;
        () = shutdown.requested() => return Err(Error::Interrupted),
        token = publisher.authenticate() => token.map_err(Error::PubSub)?,
    }
    Ok(publisher)
}

/// Publishes and confirms the slot's rows up to `until`, or records them in dispatch state, as a
/// relay does.
///
/// # Errors
///
/// Returns the errors that stop a relay, or that the command was interrupted.
pub(in crate::commands) async fn drain(
    settings: &Settings,
    publisher: GrpcPublisher,
    until: Until,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let slot = settings.relay.outbox.slot.as_str();
    let requests_max = settings.pubsub.max_outstanding_requests;
    let sessions = SessionSettings::of(&settings.relay, requests_max, until);
    let health = Health::new();
    let supervisor = Supervisor {
        settings: &sessions,
        server: Postgres::new(settings, health.clone()).for_a_command(),
        publisher,
        metrics: Metrics::new(),
        health,
        random: Random::new(random_seed()),
    };
    tracing::info!(slot, "draining: what is committed is published and confirmed");
    match Box::pin(supervisor.run(shutdown)).await.map_err(Error::Relay)? {
        Some(StopReason::CaughtUp) => Ok(()),
        Some(StopReason::Stopped) | None => Err(Error::Interrupted),
    }
}
