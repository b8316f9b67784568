//! The producer's SQL functions on real servers of every version: gapless versions, and captured
//! tables.

mod capturing;
mod emitting;
mod once;
mod payload_types;
mod snapshots;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;
mod world;
