//! One suite of what a publisher and a subscriber may rely on, against both stand-ins for Pub/Sub.
//!
//! The official emulator is the reference for how the service behaves. The embedded one behaves the
//! same, except where the official emulator does not do what production does: a test of such a
//! difference says what either of them does.

mod dead_letters;
mod delivery;
mod exactly_once;
mod filters;
mod publishing;
mod relay;
mod seeking;
mod service;
mod streams;
