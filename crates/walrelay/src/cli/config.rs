//! The command line of `walrelay config`.

use clap::{Args, Subcommand};

use super::ARGUMENTS;
use crate::options::OutputOptions;

/// `walrelay config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub action: ConfigActionArgs,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigActionArgs {
    /// Show the effective value of every option of a command, and its source.
    ///
    /// The source is the command line, a variable, the configuration file or the default. Values that may contain a
    /// password are masked. Nothing is connected to.
    #[command(after_help = "Examples:\n  walrelay config show --config walrelay.toml\n  \
        walrelay config show --output json -- consumer status billing")]
    Show(ConfigShowArgs),
    /// Check the options of a command without connecting to anything.
    ///
    /// Exits with 2 if the command would refuse an option or the configuration file.
    #[command(after_help = "Examples:\n  walrelay config check --config walrelay.toml\n  \
        walrelay config check -- status --watch=10s")]
    Check(ConfigCheckArgs),
    /// Print the JSON schema of the configuration file.
    #[command(after_help = "Example:\n  walrelay config schema > walrelay.schema.json")]
    Schema,
}

/// `walrelay config show`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConfigShowArgs {
    /// The command, with its options after `--`.
    #[arg(value_name = "COMMAND", default_value = "run")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}

/// `walrelay config check`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConfigCheckArgs {
    /// The command, with its options after `--`.
    #[arg(value_name = "COMMAND", default_value = "run")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}
