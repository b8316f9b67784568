//! What an operator does with a consumer: register, inspect, retry, audit, reset and rebuild.

pub mod admin;
pub mod audit;
pub mod consumer_status;
pub mod event_commands;
pub(super) mod idle_keys;
pub(super) mod key_rebuild;
pub(super) mod live_foreign_keys;
pub(super) mod outbox_applier;
pub mod outbox_trace;
pub(super) mod pending_counts;
pub mod prunable_rows;
pub(super) mod reset_key;
pub(super) mod scaffold;
pub(super) mod side_by_side_rebuild;
pub(super) mod unfinished_rebuild;
