//! The arguments that `walrelay dispatch` and `walrelay inbox` share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pgoutput_parser::Position;

use super::ARGUMENTS;
use crate::options::values::{behind, count, duration};

/// Filters of events.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct EventFilterArgs {
    /// Only events of this ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only events whose last failure has this code, as in NOT_FOUND.
    #[arg(long, value_name = "CODE")]
    pub error: Option<String>,
    /// Only events recorded longer ago than this, as in 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration("0s", "3650d"))]
    pub older_than: Option<Duration>,
}

impl EventFilterArgs {
    /// Returns whether at least one filter is given.
    pub(crate) fn is_given(&self) -> bool {
        self.key.is_some() || self.error.is_some() || self.older_than.is_some()
    }
}

/// Which page of events.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct PageArgs {
    /// How many events at most; 1 to 100000 [default: 100].
    #[arg(long, value_name = "COUNT", value_parser = count(1_u32, 100_000))]
    pub limit: Option<u32>,
    /// Every event that matches, in place of a page.
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Only events behind this position, which the page before it names, or of later transactions than this LSN.
    #[arg(long, value_name = "POSITION", value_parser = behind)]
    pub after: Option<Position>,
}

/// The files of an edit.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct EditFiles {
    /// File whose bytes become the payload.
    #[arg(long, value_name = "FILE")]
    pub payload_file: Option<PathBuf>,
    /// File with a JSON object of strings, which replaces the attributes that are not the relay's own.
    #[arg(long, value_name = "FILE")]
    pub attributes_file: Option<PathBuf>,
}
