//! Commands that connect to nothing.

pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod version;
