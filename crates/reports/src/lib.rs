//! What the commands print, from data to text and JSON.
//!
//! Nothing here reads or writes: a command gathers data, and this crate describes it, with the
//! command that comes next. The crates below return codes and data, and name no command.

pub mod check;
pub mod colour;
pub mod error;
#[cfg(test)]
mod error_table;
pub mod exact_json;
pub mod explain;
pub mod failed_events;
pub mod fixes;
pub mod json;
pub mod replay;
pub mod status;
pub mod steps;
pub mod table;
pub mod text;
pub mod topics;
