//! The shared environment for tests of walrelay as a whole.
//!
//! A [`InboxDatabase`] is one test's own database, slot, publication, Pub/Sub and topic, around the real
//! binary. Tests share only the Postgres server, so they can run in parallel. Errors panic, because
//! all callers are tests.

mod consuming;
mod object_store;
mod pgbouncer;
mod producer;
mod pubsub;
mod world;

pub use consuming::{CONSUMER, applied_event};
pub use object_store::{ObjectStore, ObjectStoreKind};
pub use pgbouncer::PgBouncer;
pub use producer::Producer;
pub use pubsub::{PROJECT, PubSub, topic};
pub use world::{DEADLINE, InboxDatabase};
