//! Connections to Postgres: connection strings, TLS, passwords, sessions, quoting of names, and checks that every
//! user of a session needs.

mod blockers;
mod columns;
mod connect;
mod conninfo;
mod error;
mod error_chain;
mod names;
mod row_security;
mod secret;
mod session_lock;
mod sql_error;
mod stream;
mod tls;

pub use blockers::{Blockers, backend_pid, blockers, cancel_statement};
pub use columns::{TableColumn, read_columns};
pub use connect::{SessionCheck, SessionStartup, SqlClient, connect_sql, open_session};
pub use conninfo::{
    CONNECT_TIMEOUT_DEFAULT, ConnectConfig, ConninfoProblem, Endpoint, PgEnv, TargetSession,
};
pub use error::{PgError, ServerError, ServerErrorKind, TlsError};
pub use error_chain::Chain;
pub use names::{ParseNameError, QualifiedName, quote_identifier, quote_literal};
pub use row_security::{IS_HIDDEN, TableAccess, refuse_hidden_rows};
pub use secret::Secret;
pub use session_lock::lock_is_taken;
pub use sql_error::SqlError;
pub use stream::Stream;
