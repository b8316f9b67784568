//! Fuzzes the decoder with any bytes as a stream of pgoutput messages.

#![no_main]

#[path = "../checks/decoder.rs"]
mod decoder;

libfuzzer_sys::fuzz_target!(|input: &[u8]| decoder::check(input));
