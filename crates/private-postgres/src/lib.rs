//! A private Postgres server from the binaries on the machine, for the demo and the tests.
//!
//! Owns one throwaway server: its directory, its processes and its port. Promises that the server
//! never outlives its owner. Dropping [`PrivatePostgres`] stops the server and removes its data,
//! and a panic drops it. When the owning process is killed, the supervisor notices the closed pipe
//! and cleans up in the same way. Errors carry the tail of the server's log. Databases, roles and
//! slots are left to the caller.
//!
//! The server trusts every client that can connect. The server listens on 127.0.0.1 and on a Unix
//! socket, and runs with `fsync` off. Never store data worth keeping in it.

mod account;
mod error;
mod installation;
mod readiness;
mod server;
mod settings;
mod storage;
mod supervisor;

pub use error::StartError;
pub use error::StopError;
pub use installation::Installation;
pub use installation::installations;
pub use installation::installations_in;
pub use server::{Backup, PrivatePostgres};
