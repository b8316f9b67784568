//! The server of a relay: the set-up that its start reads, its WAL monitor and its anchors.

pub mod anchor_keeper;
pub mod postgres_server;
pub mod preflight_check;
mod wal_monitor;
