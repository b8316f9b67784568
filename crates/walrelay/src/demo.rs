//! The demo's ends: who writes rows, who receives messages, whose tables they change, and what they have seen.

mod ledger;
mod producer;
mod projection;
mod subscriber;

pub use ledger::{Ledger, Sum};
pub use producer::produce;
pub use projection::{Comparison, ReadModel};
pub use subscriber::subscribe;
