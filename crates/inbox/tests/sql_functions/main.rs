//! The inbox against real servers of every version: each event once, in order, and a culprit alone.

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
mod world;
