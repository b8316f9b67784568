//! Tests the parts of the data path one by one in virtual time. The simulation tests the whole
//! loop.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod fake_store;
mod publishes;
mod recorder;
