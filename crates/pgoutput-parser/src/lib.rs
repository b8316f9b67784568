//! Decoder of Postgres logical replication: frames and pgoutput messages, without I/O.

mod lsn;

pub use lsn::{Boundary, Lsn, ParseLsnError, Position};
