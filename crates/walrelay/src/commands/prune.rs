//! `walrelay prune`: deletes outbox rows that are old, confirmed and not parked.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use walrelay_core::ColumnNames;
use walrelay_outbox_admin::archive::{Archive, ArchiveLocation};
use walrelay_outbox_admin::protocols::{PruneOrder, PrunedTable, prune};
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::{archive_location, duration};
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::plan::Plan;

/// Delete outbox rows that are old, confirmed and not parked.
///
/// Never rows that a recovery would need. Of a partitioned outbox, partitions whose rows may all go are dropped.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay prune --older-than 30d --dry-run\n  \
    walrelay prune --older-than 30d --archive gs://my-bucket/outbox"
)]
pub(crate) struct Prune {
    /// Age a row must have to be deleted, such as 30d; 1s to 3650d.
    #[arg(long, value_name = "DURATION", required = true, value_parser = duration("1s", "3650d"))]
    older_than: Duration,
    /// Write the rows to this directory or bucket before they are deleted, as compressed JSON lines.
    ///
    /// A directory must exist. A URL is `file:///DIRECTORY`, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`.
    #[arg(long, value_name = "LOCATION", value_parser = archive_location)]
    archive: Option<ArchiveLocation>,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Prune {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let columns = checks.definition.columns.clone();
        checks.require_time(&columns, "needed: a row's age is read from it");
        let database = checks.database(&self.database)?;
        let archive = checks.archive(self.archive.as_ref());
        Some(Plan::new(async move |shutdown| {
            Box::pin(self.run(&database, &columns, archive.as_ref(), shutdown)).await
        }))
    }

    /// Deletes rows table by table, and prints their number.
    ///
    /// # Errors
    ///
    /// The relay has not yet recorded which rows are settled.
    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        columns: &ColumnNames,
        archive: Option<&Archive>,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let options = self.change.options();
        let terminal = Terminal::new(options, shutdown);
        let access = options.mode.access_of_deletion();
        let order = PruneOrder { outbox, columns, older_than: self.older_than, access, archive };
        let pruned = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            prune(session, order).await
        });
        // The steps have printed everything already.
        let text = |_: &Vec<_>| String::new();
        terminal.print_result(pruned.await?.as_ref(), text, |tables| PruneJson { tables })
    }
}

#[derive(Debug, Serialize)]
struct PruneJson<'a> {
    tables: &'a [PrunedTable],
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let pruned = PrunedTable {
            table: "public.app_outbox".to_owned(),
            deleted_rows: 20,
            dropped_partitions: vec!["outbox_2020".to_owned()],
            archived_rows: 0,
        };
        assert_documented("prune", &PruneJson { tables: &[pruned] });
    }
}
