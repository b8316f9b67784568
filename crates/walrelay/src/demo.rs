//! The parts around the relay in the demo: producer, subscriber, read model, and the ledger of
//! their rows.

mod faults;
mod ledger;
mod producer;
mod projection;
mod relay_process;
mod subscriber;

pub(crate) use faults::strike;
pub(crate) use ledger::{Ledger, Sum};
pub(crate) use producer::{CREATE_ORDERS, DEAD, ProducedRows, produce};
pub(crate) use projection::{Comparison, ReadModel};
pub(crate) use relay_process::RelayProcess;
pub(crate) use subscriber::{DemoOutput, subscribe};
