//! Tests of set-up and records against a real server.

mod relay_row;
mod settled_sql;
mod setup;
