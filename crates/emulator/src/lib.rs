//! A small in-memory Pub/Sub that enforces production's limits and injects faults on request.
//!
//! The emulator serves the Publisher and Subscriber services over gRPC, without authentication. It
//! stores messages in memory, and loses them when the process ends. Set `PUBSUB_EMULATOR_HOST` to
//! point a client at it.
//!
//! `docs/reference/emulator.md` describes the supported features, the differences from production and from
//! the official emulator, the language of faults, and the control port.
//!
//! ```
//! # use walrelay_emulator::{Call, Effect, Fault};
//! let text = "on=acknowledge,subscription=billing,percent=10,lose";
//! let fault = Fault::all(Effect::Lose).on(Call::Acknowledge).on_subscription("billing").percent(10);
//! assert_eq!(text.parse::<Fault>()?, fault);
//! # Ok::<(), walrelay_emulator::FaultSyntaxError>(())
//! ```
//!
//! # Modules
//!
//! Each module uses only the modules above it.
//!
//! | Module | Contents |
//! | --- | --- |
//! | `wire` | bytes: protobuf, gRPC frames, limits, names |
//! | `faults` | the definition of faults, and their match with calls |
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
pub use faults::active_faults::{FaultId, FaultReport};
pub use faults::fault::{AckFailure, Call, Effect, Fault};
pub use faults::text::FaultSyntaxError;
pub use serve::tls::Tls;
pub use store::broker::Log;
pub use store::message::StoredMessage;
pub use store::queue::Ordering;
pub use wire::limits::{
    ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, ORDERING_KEY_BYTES_MAX,
    REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX,
};
