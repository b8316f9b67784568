//! The parts of a relay's start that read the set-up of the server, and the operations on its slot.

pub mod anchor_keeper;
mod new_slot;
pub mod operation_resumer;
pub mod outcome;
pub mod postgres_server;
pub mod preflight_check;
pub mod reset;
pub mod retention;
mod wal_monitor;
