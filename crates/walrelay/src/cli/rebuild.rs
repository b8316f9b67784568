//! The command line of `consumer rebuild`.

#![expect(missing_docs, reason = "doc comments are the text of --help; groups are named by type")]

use std::path::PathBuf;

use clap::Args;

use super::ARGUMENTS;
use crate::options::{ConsumerDatabaseOptions, EndpointOption, ProjectOption};

/// `walrelay consumer rebuild`.
#[derive(Debug, Args)]
pub struct ConsumerRebuildArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", help_heading = ARGUMENTS)]
    pub name: String,
    /// Apply again what was published since: 2026-01-31T12:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", help_heading = ARGUMENTS)]
    pub seek_to: String,
    /// File with the SQL that empties the tables of the handler, such as TRUNCATE balances; runs in the
    /// transaction that begins the generation.
    #[arg(long, value_name = "FILE", help_heading = ARGUMENTS)]
    pub reset_sql: Option<PathBuf>,
    /// Subscription to create and to read from then on; short or full name. Without it: the name of the one
    /// read so far with -g and the number of the generation, as in billing-g2.
    #[arg(long, value_name = "SUBSCRIPTION", help_heading = ARGUMENTS)]
    pub subscription: Option<String>,
    #[command(flatten)]
    pub database: ConsumerDatabaseOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub endpoint: EndpointOption,
}
