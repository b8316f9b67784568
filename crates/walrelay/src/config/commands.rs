//! The settings of each command, built from its options.

pub(super) mod actions;
pub(super) mod anchors;
pub(super) mod audit_and_trace;
pub(super) mod config_command;
pub(super) mod consumer_commands;
pub(super) mod consumers;
pub(super) mod event_actions;
pub(super) mod failed_events;
pub(super) mod replay_orders;
pub(super) mod replays;
pub(super) mod snapshots;
