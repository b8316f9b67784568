//! End to end: the real binary between a real Postgres and the embedded Pub/Sub.

mod anchors;
mod check;
mod columns;
mod consuming;
mod dispatch;
mod ending;
mod flow;
mod health;
mod hot_keys;
mod lost_slot;
mod matrix;
mod parking;
mod pgbouncer;
mod proof;
mod publication;
mod recover;
mod refusals;
mod replay;
mod reset;
mod setup;
mod sick;
mod stop;
mod take_over;
mod wal_budget;
mod weight;
