//! The parts of the data path by themselves, on virtual time. The loop they make is in the
//! simulation.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bench;
mod publishes;
mod recorder;
