//! Tests of the decoder from outside.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod captured;
mod condense;
mod corpus;
mod handwritten;
mod live;
mod roundtrip;

// The checks of the fuzz targets.
#[path = "../../fuzz/checks/condenser.rs"]
mod condenser;
#[path = "../../fuzz/checks/decoder.rs"]
mod decoder;
#[path = "../../fuzz/checks/frame.rs"]
mod frame;
