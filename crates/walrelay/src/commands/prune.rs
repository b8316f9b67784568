//! `walrelay prune`: deletes outbox rows that are old, confirmed and not parked.

use crate::config::{ChangeMode, PruneConfig};
use crate::error::Error;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{PruneOrder, PrunedTable, prune};
use walrelay_pg_client::TableAccess;
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};

/// Deletes rows table by table, and prints their number.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, or the relay has not yet recorded which rows are settled.
pub(crate) async fn execute(config: PruneConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let PruneConfig { database, columns, older_than, archive, options } = config;
    let terminal = Terminal::new(options, shutdown);
    let access = match options.mode {
        ChangeMode::DryRun => TableAccess::Read,
        ChangeMode::Agreed | ChangeMode::Ask => TableAccess::Delete,
    };
    let order = PruneOrder {
        outbox: &database.outbox,
        columns: &columns,
        older_than,
        access,
        archive: archive.as_ref(),
    };
    let pruned = run_protocol(&database.connect, terminal, StopMode::Cancel, async |session| {
        prune(session, order).await
    });
    let pruned = pruned.await?;
    // The steps have printed everything already.
    let text = |_: &Vec<_>| String::new();
    terminal.print_result(pruned.as_ref(), text, |tables| PruneJson { tables })
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
