//! The producer's SQL functions on real servers of every version: gapless versions, and captured
//! tables.

mod capturing;
mod emitting;
mod once;
mod payload_types;
mod snapshots;
mod world;
