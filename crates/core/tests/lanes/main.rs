//! Tests of all lanes: step by step, under failures, and against a naive model.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bench;
mod failing;
mod model;
mod parking;
mod resting;
mod sick;
mod steps;
