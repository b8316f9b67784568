//! Lists events, page by page.

use pgoutput_parser::Position;
use walrelay_pg_client::SqlClient;

use super::event::{FailedEvent, PageBegin};
use super::page::table;
use super::side::FailedEvents;
use crate::config::OutputFormat;
use crate::error::Error;
use crate::options::PageArgs;
use crate::output::json::json_text;
use crate::output::text::quoted;
use crate::output::{Reader, print_part, terminal};

/// Events on one page.
const LIMIT: u32 = 100;

/// Events per query when all are listed. This bounds memory to some megabytes.
const PAGE_ROWS: u32 = 1_000;

#[derive(Debug, Clone)]
pub(crate) struct EventList<Q> {
    pub(crate) query: Q,
    /// Only events after this position.
    pub(crate) after: Option<Position>,
    /// Most events to print. None prints all.
    pub(crate) limit: Option<u32>,
    pub(crate) format: OutputFormat,
}

impl<Q> EventList<Q> {
    pub(in crate::commands) fn new(query: Q, page: &PageArgs, format: OutputFormat) -> Self {
        let limit = (!page.all).then_some(page.limit.unwrap_or(LIMIT));
        Self { query, after: page.after, limit, format }
    }
}

/// Lists one page and the number of further events, or all pages.
pub(in crate::commands) async fn list<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    asked: &EventList<S::Query>,
) -> Result<String, Error> {
    let behind = asked.after.map(|position| PageBegin { position: Some(position), event_id: None });
    let Some(limit) = asked.limit else { return list_all(side, client, asked, behind).await };
    let rows = side.page(client, &asked.query, behind.as_ref(), limit).await?;
    match asked.format {
        OutputFormat::Json => json_text(&rows),
        OutputFormat::Text => {
            let footer = footer(side, client, &asked.query, &rows, limit).await?;
            let body = if rows.is_empty() { String::new() } else { table_of::<S>(&rows) };
            Ok(body + &footer)
        }
    }
}

fn table_of<S: FailedEvents>(rows: &[FailedEvent]) -> String {
    table(rows, S::GROUP, terminal().map(|size| size.columns))
}

async fn list_all<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    asked: &EventList<S::Query>,
    mut behind: Option<PageBegin>,
) -> Result<String, Error> {
    let mut all = Vec::new();
    let mut count = 0;
    loop {
        let page = side.page(client, &asked.query, behind.as_ref(), PAGE_ROWS).await?;
        let Some(last) = page.last() else { break };
        behind = Some(last.begin());
        count += page.len();
        match asked.format {
            // JSON output is one value, so all events are collected first. Without their messages
            // they are small.
            OutputFormat::Json => all.extend(page),
            OutputFormat::Text if print_part(&table_of::<S>(&page))? == Reader::Gone => break,
            OutputFormat::Text => {}
        }
    }
    match asked.format {
        OutputFormat::Json => json_text(&all),
        OutputFormat::Text => Ok(format!("{count} {}(s)\n", S::NOUN)),
    }
}

/// Returns the total count with the option that shows the next page.
async fn footer<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    query: &S::Query,
    rows: &[FailedEvent],
    limit: u32,
) -> Result<String, Error> {
    let mut text = String::new();
    if let Some(last) = rows.last().filter(|_| rows.len() >= limit as usize) {
        let total = side.count(client, query).await?;
        let after = match last.position() {
            Some(position) => format!("--after {position}, or --all"),
            None => "--all".to_owned(),
        };
        text.push_str(&format!("{} of {total} {}(s); the next: {after}\n", rows.len(), S::NOUN));
    } else if rows.is_empty() {
        text.push_str(side.none(query));
        text.push('\n');
    }
    text.push_str(&side.not_listed(client, query).await?);
    text.push_str(&next_step::<S>(rows));
    Ok(text)
}

/// Returns the next step for the first dead event of a page, else for the first that has failed.
fn next_step<S: FailedEvents>(rows: &[FailedEvent]) -> String {
    let is_failing = |row: &&FailedEvent| row.status == "retrying" && row.attempts > 0;
    let first = rows.iter().find(|row| row.status == "dead");
    let Some(first) = first.or_else(|| rows.iter().find(is_failing)) else { return String::new() };
    let (command, id) = (S::COMMAND, quoted(&first.event_id));
    match first.status == "dead" {
        true => format!("next: {command} show {id}; then {command} retry, edit or discard {id}\n"),
        false => format!("next: {command} show {id}\n"),
    }
}
