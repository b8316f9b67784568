//! The commands that write events to the outbox: `emit` and `snapshot`.

pub mod emit;
mod progress;
pub mod snapshot;
mod step;
