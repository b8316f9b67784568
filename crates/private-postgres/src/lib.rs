//! A private Postgres server from the binaries on the machine, for the demo and the tests.
//!
//! Owns one throwaway server: its directory, its processes, its port. Promises that neither outlives
//! the owner: dropping [`PrivatePostgres`] stops the server and removes its data, a panic drops it,
//! and when the owning process is killed the supervisor notices the closed pipe and does the same.
//! Fails with the tail of the server's log. Leaves databases, roles and slots to the caller.
//!
//! The server trusts everybody who reaches it. It listens on 127.0.0.1 and on a Unix socket, and
//! runs with `fsync` off: never put anything into it that is worth keeping.

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
