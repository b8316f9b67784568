//! Parts of several commands.

pub(super) mod activity;
pub(super) mod answer_timeout;
pub(super) mod cancellable;
mod consent;
pub(super) mod dead_letters;
pub(super) mod definition_on_record;
pub(super) mod operator;
mod ordered_subscription;
pub(super) mod session;
pub(super) mod set_up_report;
pub(super) mod subscription_setup;
pub(super) mod telemetry_export;
