//! `walrelay dispatch`: lists and changes rows that were not published at the first attempt.

pub(super) mod attributes;
mod bulk;
pub(super) mod edit;
mod show;

use serde_json::Value;
use walrelay_outbox_store::{
    DispatchQuery, DispatchRow, DispatchStatus, DispatchStore, PageStart, StateFilter, relay_tables,
};
use walrelay_pg_client::{SqlClient, TableAccess, connect_sql, refuse_hidden_rows};
use walrelay_relay::shutdown::Shutdown;

use self::bulk::BulkAction;
use self::show::{detail_json, detail_text, pretty, row_json, table};
use super::shared::cancellable::run_until_shutdown;
use super::shared::preconditions::refuse_other_shards;
use crate::config::{DispatchAction, DispatchConfig, DispatchList, OutputFormat};
use crate::error::Error;
use crate::output::{Reader, print, print_part};

/// Rows per query when all rows are listed. This bounds memory to some megabytes.
const PAGE_ROWS: u32 = 1_000;

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached, the row does not exist or has the wrong status, or a file cannot be
/// read.
pub async fn execute(config: DispatchConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let connecting = async { Ok(connect_sql(&config.database.connect).await?) };
    let mut client = run_until_shutdown(connecting, shutdown).await?;
    let store = DispatchStore::new(config.database.outbox.slot.clone());
    let fits = refuse_other_shards(&client, &config.database.outbox);
    let done = match run_until_shutdown(fits, shutdown).await {
        Ok(()) => act(&store, &mut client, &config.action, shutdown).await,
        Err(error) => Err(error),
    };
    client.close().await;
    let looks = matches!(config.action, DispatchAction::List(_) | DispatchAction::Show { .. });
    print(&done.map_err(|error| if looks { error.for_read_only_command() } else { error })?)
}

async fn act(
    store: &DispatchStore,
    client: &mut SqlClient,
    action: &DispatchAction,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    match action {
        DispatchAction::List(asked) => {
            run_until_shutdown(list(store, client, asked), shutdown).await
        }
        DispatchAction::Show { id, format } => {
            let shown = async { Ok(store.show(client, id).await?) };
            let detail = run_until_shutdown(shown, shutdown).await?;
            Ok(match format {
                OutputFormat::Json => pretty(&detail_json(&detail)),
                OutputFormat::Text => detail_text(&detail),
            })
        }
        DispatchAction::Retry(chosen) => {
            refuse_hidden_changes(client).await?;
            bulk::act(store, client, (BulkAction::Retry, chosen), shutdown).await
        }
        DispatchAction::Edit(asked) => {
            refuse_hidden_changes(client).await?;
            run_until_shutdown(edit::edit(store, client, asked), shutdown).await
        }
        DispatchAction::Discard { chosen, reason } => {
            refuse_hidden_changes(client).await?;
            bulk::act(store, client, (BulkAction::Discard(reason), chosen), shutdown).await
        }
    }
}

/// Refuses if row level security hides rows from UPDATE: such rows would silently stay unchanged.
async fn refuse_hidden_changes(client: &SqlClient) -> Result<(), Error> {
    Ok(refuse_hidden_rows(client, &relay_tables()[..1], TableAccess::Update).await?)
}

/// Lists one page and the number of further rows, or all pages.
async fn list(
    store: &DispatchStore,
    client: &SqlClient,
    asked: &DispatchList,
) -> Result<String, Error> {
    let behind = asked.after.map(|position| PageStart { position, event_id: None });
    let Some(limit) = asked.limit else {
        return list_all(store, client, (asked, behind)).await;
    };
    let rows = store.page(client, &asked.query, behind.as_ref(), limit).await?;
    match asked.format {
        OutputFormat::Json => Ok(json_of(&rows)),
        OutputFormat::Text => {
            let footer = footer(store, client, (&asked.query, &rows, limit)).await?;
            let body = if rows.is_empty() { String::new() } else { table(&rows) };
            Ok(body + &footer)
        }
    }
}

async fn list_all(
    store: &DispatchStore,
    client: &SqlClient,
    (asked, mut behind): (&DispatchList, Option<PageStart>),
) -> Result<String, Error> {
    let mut all = Vec::new();
    let mut count = 0;
    loop {
        let page = store.page(client, &asked.query, behind.as_ref(), PAGE_ROWS).await?;
        let Some(last) = page.last() else { break };
        behind = Some(PageStart::from(last));
        count += page.len();
        match asked.format {
            // JSON output is one value, so all rows are collected first. Without their messages
            // rows are small.
            OutputFormat::Json => all.extend(page),
            OutputFormat::Text if print_part(&table(&page))? == Reader::Gone => break,
            OutputFormat::Text => {}
        }
    }
    match asked.format {
        OutputFormat::Json => Ok(json_of(&all)),
        OutputFormat::Text => Ok(format!("{count} row(s)\n")),
    }
}

fn json_of(rows: &[DispatchRow]) -> String {
    pretty(&Value::Array(rows.iter().map(row_json).collect()))
}

/// Returns the total count with the option that shows the next page. It also counts the rows that
/// are not listed because nobody has to act on them.
async fn footer(
    store: &DispatchStore,
    client: &SqlClient,
    (query, rows, limit): (&DispatchQuery, &[DispatchRow], u32),
) -> Result<String, Error> {
    let mut text = String::new();
    if let Some(last) = rows.last().filter(|_| rows.len() >= limit as usize) {
        let total = store.count(client, query).await?;
        text.push_str(&format!(
            "{} of {total} row(s); the next: --after {}, or --all\n",
            rows.len(),
            last.position
        ));
    } else if rows.is_empty() {
        text.push_str(match query.state {
            StateFilter::NeedsPerson => "no row needs a person\n",
            StateFilter::Open | StateFilter::Queued | StateFilter::Only(_) | StateFilter::Any => {
                "no row matches\n"
            }
        });
    }
    if query.state == StateFilter::NeedsPerson {
        let count =
            async |state| store.count(client, &DispatchQuery { state, ..query.clone() }).await;
        let open = count(StateFilter::Only(DispatchStatus::Retrying)).await?
            + count(StateFilter::Only(DispatchStatus::Dead)).await?;
        let queued = count(StateFilter::Queued).await?;
        let needs_person = count(StateFilter::NeedsPerson).await?;
        let retried = open.saturating_sub(needs_person + queued);
        if retried > 0 {
            text.push_str(&format!(
                "{retried} row(s) are tried again by themselves: --status retrying\n"
            ));
        }
        if queued > 0 {
            text.push_str(&format!(
                "{queued} row(s) are queued behind other rows of their keys: --status retrying\n"
            ));
        }
    }
    Ok(text)
}
