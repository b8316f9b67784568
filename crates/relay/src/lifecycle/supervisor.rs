//! One session after the other: connect, stream, back off, again; or stop.
//!
//! ```text
//! Opening ─▶ (slot free) ─▶ Streaming ─▶ asked to stop, caught up ─▶ (done)
//!   ▲  │                        │
//!   │  └─ held ─▶ Standby ─┐    │ broke off
//!   └──────────────────────┴────┴── back-off
//! ```
//!
//! Nothing survives in memory from one session to the next but the publisher's connections: a
//! session is rebuilt from the slot and from dispatch state, as after a restart of the process.

use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep};
use walrelay_core::Backoff;
use walrelay_pubsub::GrpcPublisher;

use crate::error::RelayError;
use crate::lifecycle::session::{self, Opened};
use crate::observe::health::{Health, Phase};
use crate::observe::metrics::{Metrics, ReasonLabel};
use crate::observe::observer::Observer;
use crate::policy::{Chain, Disposition};
use crate::seed::random_u32;
use crate::settings::{Settings, Until};
use crate::shutdown::Shutdown;
use crate::stream::pipeline;

/// Delays between sessions that break off. The slot holds what happens meanwhile.
const RECONNECT: Backoff =
    Backoff { base: Duration::from_millis(200), cap: Duration::from_secs(15) };

/// A session this long was a good one: the next failure is not its continuation.
const GOOD_SESSION: Duration = Duration::from_secs(30);

/// What outlives sessions.
#[derive(Debug)]
pub struct Supervisor<'a> {
    /// The configuration.
    pub config: &'a Settings,
    /// Connections to Pub/Sub.
    pub publisher: GrpcPublisher,
    /// Figures.
    pub metrics: Metrics,
    /// Readiness.
    pub health: Health,
}

/// How one turn ended that did not fail.
enum Turn {
    Done,
    Again,
}

impl Supervisor<'_> {
    /// Runs sessions until one ends well, or cannot be followed by another.
    ///
    /// # Errors
    ///
    /// Nothing will change until a person changes it.
    pub async fn run(&self, shutdown: &Shutdown) -> Result<(), RelayError> {
        let mut failures = 0;
        let mut goal = None;
        let mut has_connected = false;
        loop {
            let began = Instant::now();
            let error = match self.turn(&mut goal, &mut has_connected, shutdown).await {
                Ok(Turn::Done) => return Ok(()),
                Ok(Turn::Again) => continue,
                Err(error) if has_connected => error,
                Err(error) => error.at_first(),
            };
            if let Disposition::Stop { .. } = error.disposition() {
                return Err(error);
            }
            failures = if began.elapsed() >= GOOD_SESSION { 1 } else { failures + 1 };
            let delay = RECONNECT.delay(failures, random_u32());
            let reason = error.reason();
            self.metrics.reconnects.get_or_create(&ReasonLabel { reason }).inc();
            tracing::warn!(error = %Chain(&error), ?delay, "session broke off; connecting again");
            self.health.set_phase(Phase::Reconnecting { reason: reason.to_owned() });
            tokio::select! {
                () = sleep(delay) => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    async fn turn(
        &self,
        goal: &mut Option<Lsn>,
        has_connected: &mut bool,
        shutdown: &Shutdown,
    ) -> Result<Turn, RelayError> {
        let observer = Observer::new(self.metrics.clone(), self.health.clone());
        let opened = tokio::select! {
            opened = session::open(self.config, &self.publisher, observer) => opened?,
            () = shutdown.requested() => return Ok(Turn::Done),
        };
        *has_connected = true;
        let (mut session, at) = match opened {
            Opened::Session(session, at) => (session, at),
            Opened::Held(holder, sql) => {
                self.health.set_phase(Phase::Standby { holder: holder.to_string() });
                let until_free = session::stand_by(&sql, self.config, holder);
                return tokio::select! {
                    free = until_free => free.map(|()| Turn::Again),
                    () = shutdown.requested() => Ok(Turn::Done),
                };
            }
        };
        if self.config.until == Until::CaughtUp {
            session.goal = Some(*goal.get_or_insert(at.wal_end));
        }
        self.health.set_phase(Phase::Streaming);
        self.health.progress();
        tracing::info!(
            slot = self.config.relay.slot,
            confirmed_flush = %at.confirmed_flush,
            parked_keys = at.parked_keys,
            "streaming"
        );
        pipeline::run(*session, shutdown).await?;
        Ok(Turn::Done)
    }
}
