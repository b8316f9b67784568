//! The data path of one session. Read [`pipeline`] first.

pub mod continuity;
mod ending;
pub mod extent;
pub mod goal;
pub mod mode;
pub mod pipeline;
pub mod pipeline_error;
pub mod publishes;
pub mod record;
pub mod recorded_rows;
pub mod recorder;
pub mod seams;
pub mod selected;
mod store_command;
pub mod wal_end;
