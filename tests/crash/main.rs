//! The real binary against real servers that crash, freeze, lose state and cut connections.
//!
//! After each fault, no row is lost, each key keeps its order, and every duplicate was unconfirmed
//! at the moment of the fault.

mod campaign;
mod consuming;
mod database;
mod freeze;
mod full_disk;
mod interrupted_recoveries;
mod interrupted_releases;
mod interrupted_resets;
mod interrupted_reshards;
mod kills;
mod network;
mod operators;
mod poisoned;
mod wal_history;
