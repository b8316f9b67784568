//! Tests of the producer crate against a real server.

mod emitting;
