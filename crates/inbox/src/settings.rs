//! What a consumer is told; a value of these types is valid.

use std::time::Duration;

use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::Endpoint;

use crate::effect::Effect;

/// Messages held, in rounds of batches: one that is out, one that is next, and as much again for what is on
/// its way while acknowledgements are. More would only keep from other instances what this one cannot
/// begin: a key of which it holds something is its own.
const ROUNDS_HELD: usize = 4;
/// Never held fewer, or small batches would wait for the service between them.
const MESSAGES_MIN: usize = 1_000;

/// After an event that is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDead {
    /// Its key waits for a person: a gap corrupts a read model.
    Hold,
    /// Its key goes on.
    Continue,
}

impl OnDead {
    /// As the functions of the inbox take it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Continue => "continue",
        }
    }
}

/// When an event comes before one of its key that is missing: their versions say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnGap {
    /// It is applied: versions need not be contiguous.
    Accept,
    /// It waits, stored, until what is missing has come.
    Hold,
}

/// What counts as seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedupe {
    /// An event that is in the inbox.
    Event,
    /// One that is behind its key's position besides.
    Position,
}

impl Dedupe {
    /// As the functions of the inbox take it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Position => "position",
        }
    }
}

/// When to stop without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Never.
    Stopped,
    /// Once nothing has come for a while, nothing is held and nothing is due.
    CaughtUp,
}

/// Everything a consumer is told; [`Settings::new`] has what `walrelay consume` has by default.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, which its row in the database has.
    pub consumer: String,
    /// Another subscription than its row's: that of its dead letters.
    pub subscription: Option<String>,
    /// What is done with events.
    pub effect: Effect,
    /// The database.
    pub connect: ConnectConfig,
    /// Where Pub/Sub is.
    pub endpoint: Endpoint,
    /// How long a handler may take: a batch that takes longer is tried in halves, and an event that does
    /// alone has failed.
    pub handler_timeout: Duration,
    /// Events in a transaction.
    pub batch: u32,
    /// Transactions at once.
    pub workers: u32,
    /// How long a message is held while the database is not there.
    pub max_lease: Duration,
    /// Attempts before an event is dead.
    pub max_attempts: u32,
    /// What happens to its key then.
    pub on_dead: OnDead,
    /// What happens to an event before which a version of its key is missing.
    pub on_gap: OnGap,
    /// What counts as seen.
    pub dedupe: Dedupe,
    /// Bytes held.
    pub max_in_flight_bytes: usize,
    /// How long a stop waits for what is out.
    pub drain_timeout: Duration,
    /// When to stop.
    pub until: Until,
}

impl Settings {
    /// A consumer of this name, as its row in the database has it.
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
        }
    }

    /// Messages held at most.
    pub(crate) fn messages_held(&self) -> usize {
        let round = self.batch as usize * self.workers as usize;
        (round * ROUNDS_HELD).max(MESSAGES_MIN)
    }
}
