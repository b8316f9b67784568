//! Tests of the consumer's decisions from outside.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod alone;
mod simulation;
