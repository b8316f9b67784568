//! The command line of `consumer rebuild`.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{ArgGroup, Args};
use walrelay_pg_client::{QualifiedName, Secret};

use super::{ARGUMENTS, ChangeArgs};
use crate::options::values::{consumer_name, ordering_key, secret, text_form, time};
use crate::options::{DatabaseOptions, EndpointOptions, MessageOptions};

/// `walrelay consumer rebuild`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[command(group(ArgGroup::new("source").args(["from_time", "into", "key", "cancel"]).required(true)))]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct ConsumerRebuildArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    /// Apply again what was published since: 2026-01-31T12:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from_time: Option<SystemTime>,
    /// Apply the rows of the outbox in the tables of this schema, and switch to them in one transaction. The handler
    /// has to name its tables without a schema.
    #[arg(long, value_name = "SCHEMA", requires = "handler")]
    pub into: Option<String>,
    /// Rebuild this ordering key alone, from the rows of the outbox, in one transaction; may be given several times.
    #[arg(long, value_name = "KEY", requires = "handler", requires = "reset_function",
          value_parser = ordering_key)]
    pub key: Vec<String>,
    /// Cancel a rebuild that is not finished. The tables stay as they are.
    #[arg(long)]
    pub cancel: bool,
    /// Function that applies events, as for `walrelay consumer run`.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["from_time", "cancel"])]
    pub handler: Option<String>,
    /// Function f(text[]) or f(text) that removes the effect of the handler for keys; called with --key.
    #[arg(long, value_name = "FUNCTION", requires = "key", value_parser = text_form::<QualifiedName>)]
    pub reset_function: Option<QualifiedName>,
    /// File with the SQL that switches to the tables of --into. Without it their rows replace those of the tables of
    /// the same names.
    #[arg(long, value_name = "FILE", requires = "into")]
    pub switch_sql: Option<PathBuf>,
    /// Database of the outbox, if it is another than the consumer's. The password belongs in PGPASSWORD or a
    /// passfile.
    #[arg(long, value_name = "URL", conflicts_with = "from_time", value_parser = secret)]
    pub outbox_url: Option<Secret>,
    /// Only rows of this aggregate type, of those that the consumer receives; may be given several
    /// times.
    #[arg(long, value_name = "TYPE", conflicts_with = "from_time")]
    pub aggregate_type: Vec<String>,
    /// Leave out rows that are dead or that Pub/Sub would never accept, and list them. Without it the command changes
    /// nothing if there is one.
    #[arg(long, conflicts_with = "from_time")]
    pub skip_dead: bool,
    /// File with the SQL that empties the tables of the handler, such as TRUNCATE balances; runs in the
    /// transaction that begins the generation.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["into", "key", "cancel"])]
    pub reset_sql: Option<PathBuf>,
    /// Subscription to create and to read from then on; short or full name. Without it: the name of the one
    /// read so far with -g and the number of the generation, as in billing-g2.
    #[arg(long, value_name = "SUBSCRIPTION", conflicts_with_all = ["into", "key", "cancel"])]
    pub subscription: Option<String>,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}
