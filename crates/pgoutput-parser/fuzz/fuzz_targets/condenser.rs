//! Fuzzes the condenser with any bytes as one large CopyData payload, in parts.

#![no_main]

#[path = "../checks/condenser.rs"]
mod condenser;

libfuzzer_sys::fuzz_target!(|input: &[u8]| condenser::check(input));
