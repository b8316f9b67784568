//! Parts of several commands.

pub(super) mod answer_timeout;
pub(super) mod cancellable;
pub(super) mod consent;
mod dead_letters;
pub(super) mod operator;
pub(super) mod operator_text;
mod ordered_subscription;
mod rebuild_text;
pub(super) mod subscription_setup;
pub(super) mod telemetry_export;
pub(super) mod topics;
