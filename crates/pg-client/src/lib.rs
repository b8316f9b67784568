//! Connections to Postgres: connection strings, TLS, passwords, sessions, quoting of names, and checks that every
//! user of a session needs.

#![warn(missing_docs)]

#[macro_use]
mod named_sql;

mod answer_watch;
mod auth_methods;
mod blockers;
mod cancellable;
mod columns;
mod connect;
mod conninfo;
mod error;
mod names;
mod password_source;
mod row_security;
mod row_sql;
mod schema;
mod secret;
mod server_error;
mod session_limits;
mod session_lock;
mod session_proof;
mod settled_sql;
mod sql_error;
mod stream;
mod tls;
mod value_formats;

pub use blockers::{Blockers, backend_pid, blockers, cancel_statement};
pub use cancellable::run_cancellable;
pub use columns::{TableColumn, TimeType, read_columns};
pub use connect::{
    Parameter, SessionCheck, SessionStartup, SqlClient, connect_outbox, connect_shared,
    connect_sql, open_session,
};
pub use conninfo::{
    APPLICATION_NAME, CONNECT_TIMEOUT_DEFAULT, ChannelBinding, ConnectConfig, ConninfoProblem,
    Endpoint, PgEnv, TargetSession,
};
pub use error::{PgError, TlsError, UNBOUND, UNSUPPORTED};
pub use named_sql::named_sql;
pub use names::{ParseNameError, QualifiedName, quote_identifier, quote_literal, table_literals};
pub use password_source::{PasswordFuture, PasswordSource};
pub use row_security::{IS_HIDDEN, TableAccess, refuse_hidden_rows};
pub use row_sql::{nullable_text_form_sql, own_rows_sql, text_form_sql};
pub use schema::{
    ParseSchemaError, ProcessSchema, SCHEMA, Schema, SchemaAlreadySet, SchemaText, SqlText,
    own_table, schema, schema_sql, set_schema,
};
pub use secret::Secret;
pub use server_error::{ServerError, ServerErrorKind};
pub use session_limits::{
    LimitHandling, NO_TRANSACTION_TIMEOUT, SESSION_LIMITS, SET_SESSION_LIMITS, SessionLimit,
    startup_limits,
};
pub use session_lock::lock_is_taken;
pub use settled_sql::{HORIZON_AGE_MAX, is_comparable_sql, is_settled_sql, is_unsettled_sql};
pub use sql_error::SqlError;
pub use stream::Stream;
pub use value_formats::{VALUE_FORMATS, local_value_formats_sql};
