//! The settings of the service, whether they came from flags, variables or a file.

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_core::{OnDead, RouterConfig, WalBudgetLimit};
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::PublisherConfig;

/// Everything the relay needs to know to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to connect to Postgres.
    pub connect: ConnectConfig,
    /// How the relay behaves.
    pub relay: RelaySettings,
    /// Where Pub/Sub is.
    pub pubsub: PubSubSettings,
    /// When the run ends by itself.
    pub until: Until,
}

/// How the relay behaves: what the pipeline is built from.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// Which slot, publication and outbox tables.
    pub outbox: Outbox,
    /// How a row becomes a message.
    pub router: RouterConfig,
    /// A lane stuck this long while others succeed is parked.
    pub park_after: Duration,
    /// Tries of a parked row before it is dead.
    pub max_attempts: u32,
    /// What happens to a key after a dead row.
    pub on_dead: OnDead,
    /// The one byte budget (I6).
    pub max_in_flight_bytes: usize,
    /// How much log may wait for us (I10).
    pub wal_budget: WalBudgetLimit,
    /// How long a stop waits for what is in flight.
    pub drain_timeout: Duration,
    /// After how much silence to end the session of another holder of the slot; `None` never does.
    pub take_over_after: Option<Duration>,
    /// How often the server is told what is confirmed.
    pub status_interval: Duration,
    /// The `wal_sender_timeout` that our connection sets for itself.
    pub wal_sender_timeout: Duration,
    /// How long published and discarded rows stay in dispatch state.
    pub dispatch_retention: Duration,
}

impl RelaySettings {
    /// The sender timeout asked for. A walsender in the middle of a transaction listens to us only
    /// after half of it (walsender.c, `WalSndWriteData`), and until then a standby sees no sign of
    /// life: so it is not longer than a standby with the same settings waits.
    #[must_use]
    pub fn sender_timeout(&self) -> Duration {
        self.take_over_after
            .map_or(self.wal_sender_timeout, |after| after.min(self.wal_sender_timeout))
    }
}

/// Where Pub/Sub is and how hard it may be worked.
#[derive(Debug, Clone)]
pub struct PubSubSettings {
    /// The endpoint, the number of connections, and how long a call may take.
    pub publisher: PublisherConfig,
    /// How many Publish calls may be unanswered at once.
    pub max_outstanding_requests: usize,
}

/// When a run ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Only when it is asked to stop.
    Stopped,
    /// Once everything committed before its start is confirmed, none of it waits spilled, and nothing is due.
    CaughtUp,
    /// Once everything committed before this position is confirmed. What is committed from there on is
    /// somebody else's: nothing of it is taken in.
    Position(Lsn),
}
