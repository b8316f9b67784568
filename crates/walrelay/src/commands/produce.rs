//! The commands for producers: `emit` and `snapshot` write events, and `forget` forgets aggregates.

pub(crate) mod emit;
pub(crate) mod forget;
mod progress;
pub(crate) mod snapshot;
mod step;
