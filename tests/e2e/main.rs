//! End to end: the real binary between a real Postgres and the embedded Pub/Sub.

mod columns;
mod dispatch;
mod flow;
mod hot_keys;
mod matrix;
mod parking;
mod refusals;
mod setup;
mod stop;
mod weight;
