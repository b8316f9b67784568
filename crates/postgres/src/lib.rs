//! The Postgres side of walrelay: replication connection, slot, preflight, dispatch state
