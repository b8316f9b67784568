//! The parts around the relay in the demo: producer, subscriber, read model, and the ledger of
//! their rows.

mod ledger;
mod producer;
mod projection;
mod subscriber;

pub use ledger::{Ledger, Sum};
pub use producer::{CREATE_ORDERS, produce};
pub use projection::{Comparison, ReadModel};
pub use subscriber::subscribe;
