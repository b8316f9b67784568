//! How sessions start, end and follow each other. Read [`supervisor`] first.

pub mod opening;
pub mod server;
pub mod server_history;
pub mod session;
pub mod standby;
pub mod supervisor;
mod unsendable;
mod wait_log;

pub use wait_log::WaitLog;
