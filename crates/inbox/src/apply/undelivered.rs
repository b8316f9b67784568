//! The reason why an event was not delivered to a receiver outside the database.

use std::time::Duration;

use walrelay_inbox_core::Failure;

/// The longest time that a receiver may ask for: the longest wait between two counted attempts.
pub const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);

/// The cause of a failed delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The event. It is dead, because no attempt can succeed.
    Event,
    /// The receiver failed on the event, and another attempt may succeed. Counts as an attempt,
    /// unless the receiver is away.
    Attempt,
    /// The receiver has no capacity. Does not count as an attempt.
    Capacity,
    /// The receiver was not reached. Does not count as an attempt, and all events wait.
    Unreachable,
    /// An operator has to act. Does not count as an attempt, and all events wait.
    Operator,
}

/// The reason why an event was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Undelivered {
    /// The cause.
    pub fault: Fault,
    /// The code of a counted attempt in the inbox, for example `HTTP_500`.
    pub code: String,
    /// The reason, without data of the event, because logs contain it.
    pub text: String,
    /// The receiver's own words, which only the inbox stores.
    pub detail: Option<String>,
    /// The time that the receiver asks for, of which at most [`RETRY_AFTER_MAX`] counts.
    pub retry_after: Option<Duration>,
}

impl Undelivered {
    /// Returns the code that counts no attempt. `app_inbox_fault` knows its prefix.
    pub(crate) const fn uncounted_code(&self) -> &'static str {
        match self.fault {
            Fault::Operator => "DELIVERY_REFUSED",
            Fault::Event | Fault::Attempt | Fault::Capacity | Fault::Unreachable => {
                "DELIVERY_UNAVAILABLE"
            }
        }
    }

    /// Returns the failure if the error may concern every event.
    pub(crate) const fn failure(&self) -> Option<Failure> {
        match self.fault {
            Fault::Operator => Some(Failure::Operator),
            Fault::Unreachable => Some(Failure::Outage),
            Fault::Event | Fault::Attempt | Fault::Capacity => None,
        }
    }
}
