//! The data path of one session; [`pipeline`] is meant to be read first.

mod ending;
pub mod goal;
pub mod pipeline;
pub mod publishes;
mod record;
pub mod recorded_rows;
pub mod recorder;
pub mod seams;
pub mod wal_end;
