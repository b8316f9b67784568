//! Fuzzes the frame parser with any bytes as one CopyData payload.

#![no_main]

#[path = "../checks/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|input: &[u8]| frame::check(input));
