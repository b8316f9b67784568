//! The benchmark suite, and the instruments that bench/peers shares with it: servers, sinks,
//! processes and statistics.

#![expect(missing_docs, reason = "the two programs of this folder are its only users")]

pub mod clients;
pub mod consume;
mod consume_live;
pub mod database;
mod drain;
pub mod failure;
mod live;
pub mod machine;
mod outage;
pub mod process;
mod raw_codec;
pub mod report;
mod republish;
mod results;
mod shards;
pub mod sink;
pub mod size;
pub mod statistics;
pub mod suite;
mod targets;
pub mod terminal;
mod traced;
