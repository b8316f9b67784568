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
pub(crate) mod orders;
mod outbox_row_check;
pub(crate) mod rebuild_error;
pub(crate) mod rebuild_step;
pub(crate) mod session;
mod single_keys;
pub(crate) mod subscription_names;
