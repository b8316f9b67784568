//! The inbox on real servers of every version: each event once and in order, and only a failing
//! event is stored.

mod accepting;
mod alike;
mod applying;
mod concurrency;
mod cost;
mod failing;
mod holding;
mod messages;
mod migrating;
mod refusing;
mod settings;
mod world;
