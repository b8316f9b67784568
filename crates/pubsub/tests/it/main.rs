//! Tests of the Pub/Sub side against the embedded Pub/Sub.

mod emulator;
