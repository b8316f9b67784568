//! Rebuilds the read model of a consumer: its events are applied again, by a new generation of the
//! inbox.
//!
//! | Module | Source of the events |
//! | --- | --- |
//! | `from_topic` | the messages that the topic retains |
//! | `into_schema` | the rows of the outbox, applied to tables in another schema |
//! | `single_keys` | the rows of some ordering keys, applied in one transaction |
//!
//! A protocol reports steps to the operator, asks before it changes anything, and names no command.

mod event_batch;
mod from_topic;
mod into_schema;
mod lock_retry;
mod orders;
mod outbox_row_check;
mod rebuild_error;
mod rebuild_step;
mod session;
mod single_keys;
mod subscription_names;

pub use orders::{ConsumerRebuild, KeyRebuild, OutboxRows, SchemaRebuild};
pub use rebuild_error::{RebuildError, TableMismatch};
pub use rebuild_step::{RebuildChange, RebuildNote, RebuildStep, SubscriptionStep};
pub use session::{RebuildOperator, RebuildSession};
pub use subscription_names::succeeds;
