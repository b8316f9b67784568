//! How sessions start, end and follow each other. Read [`supervisor`] first.

pub mod anchor_keeper;
pub mod finisher;
pub mod gate;
mod log_gauge;
mod new_slot;
pub mod opening;
pub mod operation;
pub mod reset;
pub mod server;
pub mod session;
pub mod standby;
pub mod supervisor;
mod unsendable;
mod wait_log;
