//! The commands for producers: `emit` and `snapshot` write events, and `forget` forgets aggregates.

pub mod emit;
pub mod forget;
mod progress;
pub mod snapshot;
mod step;
