//! A small in-memory Pub/Sub that enforces production's limits and misbehaves on request.
//!
//! Publisher and Subscriber services over gRPC, without authentication and without disk: what is
//! stored is gone when the process ends. Point a client at it with `PUBSUB_EMULATOR_HOST`.
//!
//! # What it does
//!
//! - Publisher: CreateTopic, GetTopic, UpdateTopic (labels, retention), ListTopics,
//!   ListTopicSubscriptions, DeleteTopic, Publish.
//! - Subscriber: CreateSubscription, GetSubscription, UpdateSubscription, ListSubscriptions,
//!   DeleteSubscription, Pull, StreamingPull, Acknowledge, ModifyAckDeadline.
//! - Creating, getting, listing and deleting topics and subscriptions as JSON over HTTP/1.1, on the
//!   same port: the official Rust client administers that way.
//! - A subscription gets what is published after its creation and passes its filter. Unacknowledged messages come again
//!   after their deadline, or at once when they are given back. `delivery_attempt` is always set.
//! - With message ordering, the messages of a key come in the order they were stored; a key belongs
//!   to one stream until everything of it is acknowledged; redelivery of one message redelivers all
//!   later ones of its key, acknowledged ones too.
//! - `max_outstanding_messages` and `max_outstanding_bytes` of a stream are honoured.
//!
//! # What it enforces
//!
//! What production refuses, with INVALID_ARGUMENT: malformed names, an empty list, more than
//! [`REQUEST_MESSAGES_MAX`] messages, more than [`REQUEST_BYTES_MAX`] bytes, **two ordering keys in
//! one request** (no key counts as one), a message without data and attributes, more than
//! [`ATTRIBUTES_MAX`] attributes, attribute keys that are not 1 to [`ATTRIBUTE_KEY_BYTES_MAX`] bytes
//! or begin with `goog` (other than `googclient_`, which client libraries send), values over
//! [`ATTRIBUTE_VALUE_BYTES_MAX`] and ordering keys over [`ORDERING_KEY_BYTES_MAX`] bytes, and filters
//! that are malformed. An unknown topic is NOT_FOUND. Beyond [`Options::stored_bytes_max`] Publish is RESOURCE_EXHAUSTED.
//!
//! # What it does not do
//!
//! Push, BigQuery and Cloud Storage subscriptions, dead letters, exactly-once delivery,
//! schemas, transforms, snapshots, seek, detaching, IAM and compressed requests are refused.
//! Retention, expiry, retry policies, storage policies and keys are kept and have no effect. There
//! are no quotas, no regions and no throughput limit per key.
//!
//! # Faults
//!
//! A fault is conditions and one effect, separated by commas; a backslash takes the next character
//! literally. The request must meet all conditions; of several faults that hit a request, delays
//! add up and the first other one decides.
//!
//! | Term | Means |
//! | --- | --- |
//! | `topic=T` | the topic, by full name or last part |
//! | `key=K` | the ordering key; `key=` is requests without one |
//! | `event_type=V`, `event_id=V`, `attr.NAME=V` | any message of the request has this attribute |
//! | `percent=P` | this share of the matching requests, drawn from [`Options::seed`] |
//! | `skip=N`, `first=N` | leave out the first N matching requests; hit only N |
//! | `reject=CODE` | not stored, answered with the error |
//! | `fail-after-publish=CODE` | stored, answered with the error all the same |
//! | `hold` | stored at once, answered when released |
//! | `hold-before` | stored and answered when released; never, if the client gave up before |
//! | `delay=TIME` | stored at once, answered after `200ms` or `1s` |
//! | `black-hole` | neither stored nor answered |
//!
//! ```
//! # use walrelay_emulator::Fault;
//! let text = "topic=orders.events,key=A-17,percent=50,reject=UNAVAILABLE";
//! assert_eq!(text.parse::<Fault>()?.to_string(), text);
//! # Ok::<(), walrelay_emulator::FaultSyntaxError>(())
//! ```
//!
//! # The control port
//!
//! | Request | Does |
//! | --- | --- |
//! | `GET /faults` | lists faults with the number of requests they hit |
//! | `POST /faults` | sets the fault in the body, answers with its id |
//! | `DELETE /faults/{id}`, `DELETE /faults` | ends one or all, and releases what they hold |
//! | `POST /release` | releases what is held now |
//! | `GET /published?topic=…&after=ID&limit=N` | what was published, with [`Log::Keep`] |
//! | `GET /stats` | [`Stats`] |
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
pub use faults::fault::{Effect, Fault, FaultSyntaxError};
pub use faults::in_force::{FaultId, FaultReport};
pub use store::broker::Log;
pub use store::message::StoredMessage;
pub use store::queue::Ordering;
pub use wire::limits::{
    ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, ORDERING_KEY_BYTES_MAX,
    REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX,
};
