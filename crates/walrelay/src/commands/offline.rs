//! Commands that connect to nothing.

pub mod completions;
pub mod config;
pub mod explain;
pub mod version;
