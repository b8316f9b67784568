//! Tests of the binary as a process.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod http;
mod process;
