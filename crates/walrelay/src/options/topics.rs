//! The options of commands that create topics.

use clap::Args;

use super::headings::OWN_OPTIONS;
use super::values::{OrNever, duration_or_never, region};

/// How a topic is created.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct TopicOptions {
    /// How long a topic that is created retains its messages, or `never`; 10m to 31d
    ///
    /// Acknowledged messages count also. `consumer rebuild --from-time` reads them again. Pub/Sub bills the storage.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration_or_never("10m", "31d"))]
    pub message_retention: OrNever,
    /// Regions that may store the messages of a topic that is created, such as europe-west1 [default: all regions]
    ///
    /// Pub/Sub keeps the order of a key within one region only.
    #[arg(long, value_name = "REGION", value_delimiter = ',', value_parser = region)]
    pub regions: Vec<String>,
}
