//! Dispatch state against a real server: nothing is lost, nothing overtakes, operators are safe.

mod bounded;
mod claiming;
mod finishing;
mod holding;
mod operating;
mod parking;
mod rows;
mod speed;
mod spilled;
#[path = "../support/mod.rs"]
mod support;
