//! The consumer's loop: pull events, apply them in transactions, acknowledge them.

pub(super) mod apply_batch;
pub(super) mod apply_batch_in_rust;
pub(super) mod apply_error;
pub(super) mod apply_options;
pub(super) mod delivery;
pub(super) mod handler;
pub(super) mod handler_kind;
pub(super) mod job;
pub(super) mod loop_reporter;
pub(super) mod loop_state;
pub(super) mod pings;
pub(super) mod prune_step;
pub(super) mod pull_stream;
pub(super) mod run;
pub(super) mod sql_failure;
pub(super) mod subscription_check;
pub(super) mod undelivered;
