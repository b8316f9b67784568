//! Reports to operators: metrics, health, log messages and the status report.

pub mod anchors;
mod batch_log;
mod dead_rows;
pub mod health;
pub mod ignored_changes;
pub mod metrics;
pub mod observer;
mod problem;
pub mod publish_availability;
mod publish_rate;
mod refusals;
pub mod report;
pub mod retained_wal;
pub mod row_metrics;
mod rows_by_type;
pub mod server_stall;
mod spill_log;
mod topic_labels;
