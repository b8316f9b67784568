//! The parts around the relay in the demo: producer, subscriber, read model, and the ledger of
//! their rows.

mod ledger;
mod producer;
mod projection;
mod subscriber;

pub(crate) use ledger::Ledger;
pub(crate) use producer::{CREATE_ORDERS, ProducedRows, produce};
pub(crate) use projection::{Comparison, ReadModel};
pub(crate) use subscriber::{DemoOutput, subscribe};
