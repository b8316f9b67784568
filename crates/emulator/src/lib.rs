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
//! - With exactly-once delivery each ack id is confirmed: on streams in confirmations, otherwise by an
//!   error whose `google.rpc.ErrorInfo` lists the ids that failed. Ids that are malformed, have
//!   expired or were used are invalid; messages of a key are acknowledged in their order only.
//!
//! # What it enforces
//!
//! What production refuses, with INVALID_ARGUMENT: malformed names, an empty list, more than
//! [`REQUEST_MESSAGES_MAX`] messages, more than [`REQUEST_BYTES_MAX`] bytes, **two ordering keys in
//! one request** (no key counts as one), a message without data and attributes, more than
//! [`ATTRIBUTES_MAX`] attributes, attribute keys that are not 1 to [`ATTRIBUTE_KEY_BYTES_MAX`] bytes
//! or begin with `goog` (other than `googclient_`, which client libraries send), values over
//! [`ATTRIBUTE_VALUE_BYTES_MAX`] and ordering keys over [`ORDERING_KEY_BYTES_MAX`] bytes, and filters
//! that are malformed. An unknown topic is NOT_FOUND. Beyond [`Options::stored_bytes_max`] Publish is
//! RESOURCE_EXHAUSTED.
//!
//! # What it does not do
//!
//! Push, BigQuery and Cloud Storage subscriptions, dead letters, schemas, transforms, snapshots, seek,
//! detaching, IAM and compressed requests are refused. Retention, expiry, retry policies, storage policies and keys are kept and have no effect. There
//! are no quotas, no regions and no throughput limit per key.
//!
//! # Faults
//!
//! A fault is conditions and one effect, separated by commas; a backslash takes the next character
//! literally. A call must meet all conditions; of several faults that hit a call, delays add up and
//! the first other one decides. A call that is decided is not counted by the faults set later.
//!
//! | Condition | Means |
//! | --- | --- |
//! | `on=CALL` | what it strikes, from the table below; `publish` if it is not said |
//! | `topic=T` | the topic, by full name or last part |
//! | `subscription=S` | the subscription, by full name or last part |
//! | `key=K` | any message of the call has this ordering key; `key=` is messages without one |
//! | `event_type=V`, `event_id=V`, `attr.NAME=V` | any message of the call has this attribute |
//! | `percent=P` | this share of the matching calls, drawn from [`Options::seed`] |
//! | `skip=N`, `first=N` | leave out the first N matching calls; hit only N |
//!
//! | `on=` | Strikes | Effects besides those for all |
//! | --- | --- | --- |
//! | `publish` | a Publish request | `fail-after-publish`, `fail-after`, `hold` |
//! | `pull` | a Pull request when it arrives; no conditions on messages | |
//! | `streaming-pull` | a StreamingPull when it is opened; no conditions on messages | |
//! | `delivery` | a response with messages, of Pull or on a stream | `fail-after`, `hold`, `expire` |
//! | `acknowledge` | acknowledgements, as a request or on a stream | `fail-after`, `hold`, `lose`, `fail-ids` |
//! | `modify-ack-deadline` | changes of deadlines, nacks among them, as a request or on a stream | the same |
//!
//! "Done" is stored, leased, acknowledged or moved, as the call would have it.
//!
//! | Effect | Means |
//! | --- | --- |
//! | `reject=CODE` | for all: not done, answered with the error; a stream ends with it |
//! | `hold-before` | for all: done and answered when released; never, if the client gave up before |
//! | `delay=TIME` | for all: done at once, answered after `200ms` or `1s` |
//! | `black-hole` | for all: neither done nor answered; messages of a delivery are leased and lost |
//! | `fail-after=CODE` | done, answered with the error all the same; a stream sends and then ends with it |
//! | `fail-after-publish=CODE` | the same, for Publish |
//! | `hold` | done at once, answered when released |
//! | `expire` | delivered, and leased for no time at all: delivered again, to anybody |
//! | `lose` | not done, answered as if it were: a lost acknowledgement |
//! | `fail-ids=REASON` | not done; with exactly-once delivery the ids come back as `invalid`, `unordered` or `temporary`, without it the reply looks as usual |
//!
//! On a stream nothing overtakes what a fault keeps back: no later message overtakes a held delivery,
//! no later request a held acknowledgement; the other direction goes on.
//!
//! ```
//! # use walrelay_emulator::Fault;
//! for text in [
//!     "topic=orders.events,key=A-17,percent=50,reject=UNAVAILABLE",
//!     "on=acknowledge,subscription=billing,percent=10,lose",
//!     "on=delivery,skip=3,first=1,fail-after=UNAVAILABLE",
//! ] {
//!     assert_eq!(text.parse::<Fault>()?.to_string(), text);
//! }
//! # Ok::<(), walrelay_emulator::FaultSyntaxError>(())
//! ```
//!
//! # The control port
//!
//! | Request | Does |
//! | --- | --- |
//! | `GET /faults` | lists faults with the number of calls they hit |
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
pub use faults::fault::{Call, Effect, Fault, Unconfirmed};
pub use faults::in_force::{FaultId, FaultReport};
pub use faults::text::FaultSyntaxError;
pub use store::broker::Log;
pub use store::message::StoredMessage;
pub use store::queue::Ordering;
pub use wire::limits::{
    ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, ORDERING_KEY_BYTES_MAX,
    REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX,
};
