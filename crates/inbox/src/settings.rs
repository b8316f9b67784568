//! The settings of a consumer. Every value of these types is valid.

use std::time::Duration;

use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::Endpoint;

use crate::apply::handler_kind::Effect;
use crate::error::InboxError;
use crate::retention::{IdleKeys, InboxRetention};

/// The messages held, in rounds of batches: one round is in flight, one is next. Two more rounds
/// cover messages and acknowledgements that are on their way. More would only keep keys from other
/// instances, because a key with a held message belongs to this instance.
const ROUNDS_HELD: usize = 4;
/// The minimum number of messages held. With fewer, small batches would wait for the service.
const MESSAGES_MIN: usize = 1_000;

/// The lease on the stream. Renewals may be seconds late, and another consumer soon receives the
/// messages of a dead one.
pub(crate) const LEASE: Duration = Duration::from_secs(20);
/// The same, as requests have it.
pub(crate) const LEASE_SECONDS: i32 = 20;

/// The default of [`Until::CaughtUp`]. After a kill, Pub/Sub redelivers the killed consumer's messages
/// only when its leases run out.
pub const QUIET_FOR: Duration = Duration::from_secs(30);
const _: () =
    assert!(QUIET_FOR.as_secs() > LEASE.as_secs(), "a killed consumer's messages come in time");

/// The action after a dead event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDead {
    /// The event's key waits for an operator, because a gap corrupts a read model.
    Hold,
    /// The event's key continues.
    Continue,
}

impl OnDead {
    /// Returns the name that the inbox's functions take.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Continue => "continue",
        }
    }
}

/// The action for an event whose version shows that an earlier event of its key is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnGap {
    /// The event is applied, because versions need not be contiguous.
    Accept,
    /// The event is stored and waits until the missing version has arrived.
    Hold,
}

impl OnGap {
    /// Returns the name that the inbox's functions take.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Hold => "hold",
        }
    }
}

/// The events that count as seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedupe {
    /// Events that are in the inbox.
    Event,
    /// Events that are in the inbox, and events behind their key's position whose rows a prune may
    /// have deleted.
    Position,
}

impl Dedupe {
    /// Returns the name that the inbox's functions take.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Position => "position",
        }
    }
}

/// The condition for stopping unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Never.
    Stopped,
    /// Once Pub/Sub has answered and the quiet time has passed, in which no message arrives, no
    /// message is held and no row is due.
    CaughtUp {
        /// The quiet time. It must be longer than the leases of other consumers of the
        /// subscription, and [`QUIET_FOR`] is.
        quiet_for: Duration,
    },
}

/// All settings of a consumer. [`Settings::new`] has the defaults of `walrelay consumer run`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The consumer's name, as in its database row.
    pub consumer: String,
    /// A subscription other than that of the row, for example the consumer's dead-letter
    /// subscription.
    pub subscription: Option<String>,
    /// The handler of the events.
    pub effect: Effect,
    /// The database.
    pub connect: ConnectConfig,
    /// The endpoint of Pub/Sub.
    pub endpoint: Endpoint,
    /// The time that a handler may take. A batch that takes longer is retried in halves. A single
    /// event that takes longer has failed.
    pub handler_timeout: Duration,
    /// The maximum number of events in a transaction.
    pub batch: u32,
    /// The maximum number of concurrent transactions.
    pub workers: u32,
    /// The time for which a message is held while the database is unreachable.
    pub max_lease: Duration,
    /// The attempts before an event is dead.
    pub max_attempts: u32,
    /// The action after a dead event.
    pub on_dead: OnDead,
    /// The action for an event whose key lacks an earlier version.
    pub on_gap: OnGap,
    /// The events that count as seen.
    pub dedupe: Dedupe,
    /// The maximum bytes held.
    pub max_in_flight_bytes: usize,
    /// The time that a stop waits for batches in flight.
    pub drain_timeout: Duration,
    /// The condition for stopping unasked.
    pub until: Until,
    /// The periodic deletion of finished rows, if any.
    pub retention: Option<InboxRetention>,
}

impl Settings {
    /// Creates the default settings for a consumer whose row exists in the database.
    #[must_use]
    pub fn new(
        consumer: impl Into<String>,
        effect: Effect,
        connect: ConnectConfig,
        endpoint: Endpoint,
    ) -> Self {
        Self {
            consumer: consumer.into(),
            subscription: None,
            effect,
            connect,
            endpoint,
            handler_timeout: Duration::from_mins(1),
            batch: 200,
            workers: 4,
            max_lease: Duration::from_mins(30),
            max_attempts: 10,
            on_dead: OnDead::Hold,
            on_gap: OnGap::Accept,
            dedupe: Dedupe::Event,
            max_in_flight_bytes: 64 << 20,
            drain_timeout: Duration::from_secs(7),
            until: Until::Stopped,
            retention: None,
        }
    }

    /// Refuses to delete keys whose positions the consumer needs.
    pub(crate) fn refuse_needed_keys(&self) -> Result<(), InboxError> {
        let deletes_keys = self.retention.is_some_and(|it| it.idle_keys == IdleKeys::Delete);
        match deletes_keys && (self.dedupe == Dedupe::Position || self.on_gap == OnGap::Hold) {
            true => Err(InboxError::KeysNeeded),
            false => Ok(()),
        }
    }

    pub(crate) fn messages_held(&self) -> usize {
        let round = self.batch as usize * self.workers as usize;
        (round * ROUNDS_HELD).max(MESSAGES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_deleted_if_the_consumer_compares_positions_or_waits_for_versions() {
        let connect = ConnectConfig::parse("postgresql://a@b/c", &Default::default());
        let connect = connect.expect("a connection string");
        let effect = Effect::function("f".to_owned());
        let settings = Settings::new("c", effect, connect, Endpoint::production());
        let day = Duration::from_hours(24);
        let refused = |idle_keys, dedupe, on_gap| {
            let retention = Some(InboxRetention { older_than: day, every: day, idle_keys });
            let settings = Settings { retention, dedupe, on_gap, ..settings.clone() };
            settings.refuse_needed_keys().is_err()
        };
        assert!(!refused(IdleKeys::Delete, Dedupe::Event, OnGap::Accept));
        assert!(refused(IdleKeys::Delete, Dedupe::Position, OnGap::Accept));
        assert!(refused(IdleKeys::Delete, Dedupe::Event, OnGap::Hold));
        assert!(!refused(IdleKeys::Keep, Dedupe::Position, OnGap::Hold));
    }
}
