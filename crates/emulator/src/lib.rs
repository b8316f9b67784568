//! A small in-memory Pub/Sub that enforces production's limits and misbehaves on request.
//!
//! Publisher and Subscriber services over gRPC, without authentication and without disk: what is
//! stored is gone when the process ends. Point a client at it with `PUBSUB_EMULATOR_HOST`.
//!
//! What it does and does not do, how it differs from production and from the official emulator, the
//! language of faults and the control port are described in `docs/emulator.md`.
//!
//! ```
//! # use walrelay_emulator::{Call, Effect, Fault};
//! let text = "on=acknowledge,subscription=billing,percent=10,lose";
//! let fault = Fault::all(Effect::Lose).on(Call::Acknowledge).on_subscription("billing").percent(10);
//! assert_eq!(text.parse::<Fault>()?, fault);
//! # Ok::<(), walrelay_emulator::FaultSyntaxError>(())
//! ```
//!
//! # Where things are
//!
//! Each folder uses those above it only.
//!
//! | Part | Holds |
//! | --- | --- |
//! | `wire` | bytes: protobuf, gRPC frames, limits, names |
//! | `faults` | what a fault says, and which one a call meets |
//! | `store` | topics, subscriptions and messages: all state, no sockets |
//! | `emulator` | the handle, and the lock around all state |
//! | `calls` | the calls of Publisher and Subscriber |
//! | `serve` | gRPC connections, JSON, the control port |

mod calls;
mod emulator;
mod faults;
mod serve;
mod store;
mod wire;

pub use emulator::{Emulator, Options, Stats, SubscriptionOptions};
pub use faults::fault::{Call, Effect, Fault, Unconfirmed};
pub use faults::in_force::{FaultId, FaultReport};
pub use faults::text::FaultSyntaxError;
pub use serve::tls::Tls;
pub use store::broker::Log;
pub use store::message::StoredMessage;
pub use store::queue::Ordering;
pub use wire::limits::{
    ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, ORDERING_KEY_BYTES_MAX,
    REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX,
};
