//! The data path of one session. Read [`pipeline`] first.

pub mod already_recorded;
pub mod catch_up_target;
pub mod continuity;
pub mod dispatch_writer;
pub mod mode;
pub mod outbox_tables;
pub mod pipeline;
pub mod pipeline_error;
pub mod publish_calls;
pub mod publisher;
pub mod replay_filter;
mod session_end;
pub mod stop_position;
mod store_command;
pub mod unsent_wal;
pub mod wal_end;
pub mod watermark_journal;
