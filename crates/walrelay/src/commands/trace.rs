//! `walrelay trace`: one event's life, from the outbox to each inbox.

use serde_json::{Map, Value, json};
use walrelay_inbox::audit::{trace_dispatch, trace_outbox};
use walrelay_inbox::operate::InConsumer;
use walrelay_postgres::{SqlClient, connect_sql};

use super::before::every_shard;
use super::columns::column_of;
use crate::config::{InboxPlace, OutputFormat, TraceConfig};
use crate::error::Error;
use crate::output::{print, visible};

/// Looks everywhere, and prints what is there.
///
/// # Errors
///
/// A database cannot be reached or refuses, or the event is nowhere.
pub async fn execute(config: TraceConfig) -> Result<(), Error> {
    let outbox = connect_sql(&config.database.connect).await?;
    let found = trace(&outbox, &config).await?;
    outbox.close().await;
    print(&match config.format {
        OutputFormat::Json => format!("{found:#}\n"),
        OutputFormat::Text => as_text(&found),
    })?;
    let inboxes = found["inboxes"].as_object().into_iter().flatten().map(|(_, row)| row);
    match inboxes.chain([&found["outbox"], &found["dispatch"]]).all(Value::is_null) {
        true => Err(Error::NoTrace { event_id: config.event_id }),
        false => Ok(()),
    }
}

async fn trace(outbox: &SqlClient, config: &TraceConfig) -> Result<Value, Error> {
    let id = &config.event_id;
    let shards = every_shard(outbox, &config.database.outbox).await?;
    let slots: Vec<String> = shards.into_iter().map(|shard| shard.slot).collect();
    let mut row = Value::Null;
    for table in &config.database.outbox.tables {
        let column = column_of(outbox, table, &config.columns.id).await?;
        let found = trace_outbox(outbox, (&slots, table), (&column, id)).await?;
        if !found.is_null() {
            row = found;
        }
    }
    let mut inboxes = Map::new();
    for inbox in open_inboxes(outbox, &config.inboxes).await? {
        let found = inbox.consumer.trace(inbox.client(outbox), id).await?;
        inboxes.insert(inbox.consumer.name().to_owned(), found);
        inbox.close().await;
    }
    let dispatch = trace_dispatch(outbox, &slots, id).await?;
    Ok(json!({ "event_id": id, "outbox": row, "dispatch": dispatch, "inboxes": inboxes }))
}

fn as_text(found: &Value) -> String {
    let mut text = String::new();
    part(
        &mut text,
        "outbox",
        &found["outbox"],
        "not in the table: pruned, deleted, or never committed",
    );
    let went_out = "no row: it went out at the first try, or not yet";
    part(&mut text, "dispatch state", &found["dispatch"], went_out);
    for (name, row) in found["inboxes"].as_object().into_iter().flatten() {
        part(&mut text, &format!("inbox of {}", visible(name)), row, "not there");
    }
    text
}

fn part(text: &mut String, heading: &str, row: &Value, absent: &str) {
    text.push_str(&format!("{heading}\n"));
    let Some(fields) = row.as_object() else {
        text.push_str(&format!("  {absent}\n"));
        return;
    };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        for (index, line) in value.lines().enumerate() {
            let name = if index == 0 { name.replace('_', " ") } else { String::new() };
            text.push_str(&format!("  {name:<18} {}\n", visible(line)));
        }
    }
}

/// A consumer to look at, and its database unless that is the outbox's own.
pub(super) struct Inbox {
    pub(super) consumer: InConsumer,
    client: Option<SqlClient>,
}

impl Inbox {
    pub(super) fn client<'a>(&'a self, outbox: &'a SqlClient) -> &'a SqlClient {
        self.client.as_ref().unwrap_or(outbox)
    }

    pub(super) async fn close(self) {
        if let Some(client) = self.client {
            client.close().await;
        }
    }
}

/// The inboxes that were named; those of the outbox's own database when none was.
pub(super) async fn open_inboxes(
    outbox: &SqlClient,
    places: &[InboxPlace],
) -> Result<Vec<Inbox>, Error> {
    let mut inboxes = Vec::new();
    for place in places {
        let client = connect_sql(&place.connect).await?;
        let consumer = InConsumer::find(&client, Some(&place.consumer)).await?;
        inboxes.push(Inbox { consumer, client: Some(client) });
    }
    if places.is_empty() {
        let here = InConsumer::all(outbox).await?;
        inboxes.extend(here.into_iter().map(|consumer| Inbox { consumer, client: None }));
    }
    if inboxes.is_empty() {
        return Err(Error::Unfit {
            what: "the outbox's database has no consumer".to_owned(),
            hint: "name each consumer and its database: --inbox NAME=postgresql://...",
        });
    }
    Ok(inboxes)
}
