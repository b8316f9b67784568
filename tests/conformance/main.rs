//! One suite of the behaviour that publishers and subscribers rely on, run against both emulators.
//!
//! The official emulator is the reference. The embedded emulator behaves the same, except where the
//! official emulator differs from production. A test of such a difference names the behaviour of
//! each.

mod dead_letters;
mod delivery;
mod exactly_once;
mod filters;
mod official_clients;
mod publishing;
mod relay;
mod seeking;
mod service;
mod streams;
