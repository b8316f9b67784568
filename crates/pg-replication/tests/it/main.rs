//! Tests of connecting and streaming against a real server.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod connect;
mod limits;
mod replication;
