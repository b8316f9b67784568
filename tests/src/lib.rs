//! Tests of walrelay as a whole: the stage they are played on.
//!
//! A [`World`] is one test's own database, slot, publication, Pub/Sub and topic, around the real
//! binary. Nothing in it is shared with another test but the Postgres server, so tests run side by
//! side. Fails by panicking, as its callers are tests.

mod consuming;
mod pgbouncer;
mod producer;
mod pubsub;
mod world;

pub use consuming::CONSUMER;
pub use pgbouncer::PgBouncer;
pub use producer::Producer;
pub use pubsub::{PROJECT, PubSub, topic};
pub use world::{DEADLINE, World};
