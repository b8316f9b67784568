//! Tests of the relay's decisions from outside.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod budget;
mod lanes;
mod router;
mod tracker;
mod tracker_model;
mod window;
