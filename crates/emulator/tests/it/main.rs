//! Tests of the emulator over real gRPC and HTTP.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod wire;
