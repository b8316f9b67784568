//! Dispatch state on a real server: no row is lost, no row overtakes another, and operators are
//! safe.

mod bounded;
mod claiming;
mod finishing;
mod holding;
mod operating;
mod parking;
mod rows;
mod speed;
mod spilled;
