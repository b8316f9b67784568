//! Parts of several commands.

pub(super) mod answer_timeout;
pub(super) mod cancellable;
pub(super) mod consent;
pub(super) mod json_rows;
pub(super) mod operator;
pub(super) mod operator_text;
mod rebuild_text;
pub(super) mod subscription_setup;
pub(super) mod telemetry_export;
pub(super) mod topics;
