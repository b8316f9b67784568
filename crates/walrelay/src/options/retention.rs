//! The options of retention, for `run` and `consumer run`.

use std::time::Duration;

use clap::Args;
use walrelay_outbox_admin::archive::ArchiveLocation;

use super::headings::OWN_OPTIONS;
use super::values::{OrNever, archive_location, duration, duration_or_never};

/// How long finished rows stay.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct RetentionOptions {
    /// Delete finished rows that are older than this, such as 30d, or `never`; 1s to 3650d
    ///
    /// The rules are those of `prune` and `consumer prune`. `run` deletes from the outbox, and needs DELETE there.
    /// `consumer run` deletes from the inbox, and refuses an age within which Pub/Sub may deliver an event again.
    #[arg(long, value_name = "DURATION", default_value = "never", value_parser = duration_or_never("1s", "3650d"))]
    pub prune_older_than: OrNever,
    /// Time between two runs of --prune-older-than; 1s to 1d
    #[arg(long, value_name = "DURATION", default_value = "1h", hide_short_help = true, value_parser = duration("1s", "1d"))]
    pub prune_interval: Duration,
}

/// Whether `consumer run` deletes positions of idle keys.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct PruneKeysOption {
    /// With --prune-older-than: also delete the positions of ordering keys that had no event for as long
    ///
    /// Not with --dedupe position or --on-gap hold, which compare each event with the position of its key.
    #[arg(long)]
    pub prune_keys: bool,
}

/// Where `run` archives rows.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct PruneArchiveOption {
    /// With --prune-older-than: write the rows to this directory or bucket before they are deleted [default: no archive]
    ///
    /// The files are compressed JSON lines, as those of `prune --archive`. A URL is `file:///DIRECTORY`,
    /// `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`.
    #[arg(long, value_name = "LOCATION", value_parser = archive_location)]
    pub prune_archive: Option<ArchiveLocation>,
}
