//! What each command does: a file has the declaration, the checks, the work, the text, the JSON and
//! the tests of one command.

pub(crate) mod anchor;
pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod consumer;
pub(crate) mod demo;
pub(crate) mod dispatch;
pub(crate) mod emulator;
pub(crate) mod explain;
mod failed_events;
pub(crate) mod inbox;
pub(crate) mod init;
pub(crate) mod man;
pub(crate) mod produce;
pub(crate) mod prune;
pub(crate) mod replay;
pub(crate) mod reshard;
pub(crate) mod run;
mod shared;
pub(crate) mod slot;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod trace;
pub(crate) mod version;

pub(crate) use shared::definition_on_record::named_outbox;
