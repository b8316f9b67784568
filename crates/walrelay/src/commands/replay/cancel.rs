//! `walrelay replay cancel`.

use clap::Args;
use walrelay_outbox_replay::replay::CancellableReplay;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::SqlClient;

use super::record::in_session;
use super::report;
use super::report::ReplayCancelJson;
use crate::commands::shared::operator::Terminal;
use crate::config::Checks;
use crate::error::Error;
use crate::options::values::replay_id;
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions};
use crate::plan::Plan;

/// Cancel an unfinished replay: published rows stay published.
///
/// After a replay in place, its keys continue without the rows that are not published yet.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay replay cancel 5f3a9c01"
)]
pub(crate) struct Cancel {
    /// Id of the replay.
    #[arg(value_name = "ID", value_parser = replay_id)]
    id: String,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Cancel {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| {
            let terminal = Terminal::new(self.change.options(), shutdown);
            in_session(&database, shutdown, async |client| {
                cancel(client, &database.outbox, &self.id, terminal).await
            })
            .await
        }))
    }
}

async fn cancel(
    client: &mut SqlClient,
    outbox: &Outbox,
    id: &str,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let replay = CancellableReplay::find(client, outbox, id).await?;
    let rows = replay.rows(client).await?;
    if !terminal.ask(format!("cancel replay {id}: {}", report::to_cancel(&rows))).await? {
        return Ok(());
    }
    let cancelled = replay.cancel(client).await?;
    let text = |it: &_| format!("replay {id} is cancelled: {}\n", report::cancelled(it));
    terminal.print_result(Some(&cancelled), text, |it| ReplayCancelJson::new(id, it))
}
