//! The demo's two ends: who writes rows, who receives messages, and what they have seen.

mod ledger;
mod producer;
mod subscriber;

pub use ledger::{Ledger, Sum};
pub use producer::produce;
pub use subscriber::subscribe;
