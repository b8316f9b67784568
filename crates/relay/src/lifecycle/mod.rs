//! How sessions start, end and follow each other. Read [`supervisor`] first.

pub mod anchor_keeper;
mod new_slot;
pub mod opening;
pub mod operation;
pub mod operation_resumer;
pub mod preflight_check;
pub mod reset;
pub mod server;
pub mod server_history;
pub mod session;
pub mod standby;
pub mod supervisor;
mod unsendable;
mod wait_log;
mod wal_monitor;
