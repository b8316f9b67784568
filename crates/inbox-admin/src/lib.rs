//! The operator commands on a consumer: register, inspect, retry, audit, reset and rebuild.
//! An application links `walrelay-inbox` alone.

pub mod admin;
pub mod audit;
pub mod consumer_status;
pub mod event_commands;
mod key_rebuild;
mod live_foreign_keys;
pub mod outbox_trace;
pub mod prunable_rows;
mod rebuild;
mod reset_key;
mod scaffold;
mod side_by_side_rebuild;
mod subscription_messages;

pub use live_foreign_keys::ForeignKeyConflict;
pub use rebuild::orders::{ConsumerRebuild, KeyRebuild, OutboxRows, SchemaRebuild};
pub use rebuild::rebuild_error::{RebuildError, TableMismatch};
pub use rebuild::rebuild_step::{RebuildChange, RebuildNote, RebuildStep, SubscriptionStep};
pub use rebuild::session::{RebuildOperator, RebuildSession};
pub use rebuild::subscription_names::succeeds;
pub use reset_key::{KeyPosition, reset_key};
pub use scaffold::{Scaffold, scaffold};
pub use side_by_side_rebuild::{GenerationDifference, RebuildHolder};
pub use subscription_messages::Messages;
