//! The settings of the service, from flags, environment variables or a file.

use std::num::NonZeroU32;
use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_core::{OnDead, RouterConfig, WalBudgetLimit};
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::PublisherConfig;

#[derive(Debug, Clone)]
pub struct Settings {
    pub connect: ConnectConfig,
    pub relay: RelaySettings,
    pub pubsub: PubSubSettings,
    pub until: Until,
}

#[derive(Debug, Clone)]
pub struct RelaySettings {
    pub outbox: Outbox,
    pub router: RouterConfig,
    /// The time after which a failing lane is parked while others succeed.
    pub park_after: Duration,
    /// The number of attempts before a parked row is dead.
    pub max_attempts: u32,
    /// The treatment of a key after a dead row.
    pub on_dead: OnDead,
    /// The one byte budget (I6).
    pub max_in_flight_bytes: usize,
    /// The limit of retained WAL (I10).
    pub wal_budget: WalBudgetLimit,
    /// How long a stop waits for requests in flight.
    pub drain_timeout: Duration,
    /// The silence after which another holder's session is ended. `None` never ends it.
    pub take_over_after: Option<Duration>,
    /// The interval between status updates to the server.
    pub status_interval: Duration,
    /// The `wal_sender_timeout` of the replication connection.
    pub wal_sender_timeout: Duration,
    /// How long published and discarded rows stay in dispatch state.
    pub dispatch_retention: Duration,
    /// The most rows to publish per second. `None` sets no limit.
    pub rate: Option<NonZeroU32>,
}

impl RelaySettings {
    /// Returns the sender timeout to set. In the middle of a transaction a walsender reads our
    /// messages only after half of the timeout (walsender.c, `WalSndWriteData`). Until then a
    /// standby sees no sign of life. The timeout is therefore no longer than `take_over_after`.
    #[must_use]
    pub fn sender_timeout(&self) -> Duration {
        self.take_over_after
            .map_or(self.wal_sender_timeout, |after| after.min(self.wal_sender_timeout))
    }
}

#[derive(Debug, Clone)]
pub struct PubSubSettings {
    /// The endpoint, the number of connections, and the timeout of a call.
    pub publisher: PublisherConfig,
    /// The maximum number of concurrent Publish calls.
    pub max_outstanding_requests: usize,
}

/// When a run ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Only when a stop is requested.
    Stopped,
    /// Once everything committed before its start is confirmed, none of these rows is spilled, and
    /// no parked key is due.
    CaughtUp,
    /// Once everything committed before this position is confirmed. Later commits are not read:
    /// another process publishes them.
    Position(Lsn),
}
