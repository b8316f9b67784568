//! Tests of parts of the relay's loop.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod stream;
