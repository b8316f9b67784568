//! `walrelay trace`: the life of one event, from the outbox to each inbox.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use walrelay_core::ColumnNames;
use walrelay_errors::Code;
use walrelay_inbox::InboxError;
use walrelay_inbox_admin::event_commands::ConsumerGeneration;
use walrelay_inbox_admin::outbox_trace::{
    LEFT_OUT, dispatch_ids_like, outbox_ids_like, trace_dispatch, trace_outbox,
};
use walrelay_outbox_admin::protocols::{
    column_of, every_shard, refuse_without_outbox, time_column_of,
};
use walrelay_outbox_replay::read_row_filter;
use walrelay_pg_client::{SqlClient, TimeType, connect_outbox, connect_shared};
use walrelay_pubsub::parse_rfc3339;

use crate::commands::failed_events::{PREFIX_MIN, meant};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{Checks, DatabaseConfig, InboxPlace};
use crate::error::{Error, NAME_INBOXES};
use crate::options::{ARGUMENTS, DatabaseOptions, InboxPlaces, OutputOptions};
use crate::output::print_result;
use crate::output::text::{quoted, visible};
use crate::plan::Plan;

/// Trace one event: row, position, dispatch state, each inbox.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay trace 6f1c9a9e-…"
)]
pub(crate) struct Trace {
    /// Event id, or its first six characters or more.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    places: InboxPlaces,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    database: DatabaseOptions,
}

struct TraceScope {
    database: DatabaseConfig,
    columns: ColumnNames,
    /// The consumers. Empty means those in the outbox's own database.
    inboxes: Vec<InboxPlace>,
}

impl Trace {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let inboxes = checks.inbox_places(&self.places);
        let scope = TraceScope {
            database: checks.database(&self.database)?,
            columns: checks.definition.columns.clone(),
            inboxes: inboxes?,
        };
        Some(Plan::new(async move |shutdown| {
            let done = Box::pin(run_until_shutdown(self.run(&scope), shutdown)).await;
            done.map_err(|error| error.for_read_only_command(scope.database.connect.user()))
        }))
    }

    /// Searches outbox, dispatch state and inboxes, and prints the findings.
    ///
    /// # Errors
    ///
    /// A database cannot be reached or refuses, the event is nowhere, or an inbox lacks it.
    async fn run(&self, scope: &TraceScope) -> Result<(), Error> {
        let outbox = connect_outbox(&scope.database.connect).await?;
        refuse_without_outbox(&outbox, &scope.database.outbox).await?;
        let mut found = trace(&outbox, &self.id, scope).await?;
        if found.is_nowhere() && self.id.len() >= PREFIX_MIN {
            let id = whole_id(&outbox, &self.id, scope).await?;
            found = trace(&outbox, &id, scope).await?;
        }
        outbox.close().await;
        print_result(self.output.output, &found, || found.text())?;
        found.verdict()
    }
}

/// The columns of a row, by name. Null if there is no row.
type TracedRow = Value;

#[derive(Debug, Default, Serialize)]
struct EventTrace {
    event_id: String,
    /// When it was written, by the row of the outbox.
    #[serde(skip)]
    occurred_at: Option<String>,
    outbox: TracedRow,
    dispatch: TracedRow,
    /// The message in Pub/Sub, if an inbox or dispatch state knows it.
    message: Option<TracedMessage>,
    /// The row in each inbox, by consumer.
    inboxes: BTreeMap<String, TracedRow>,
    /// The consumers that should have the event, and lack it.
    not_in: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct TracedMessage {
    /// Pub/Sub's id.
    message_id: String,
    /// The time at which Pub/Sub stored the message. Dispatch state does not have it.
    publish_time: Option<String>,
}

impl TracedMessage {
    /// Returns the message that an inbox has received. The relay records only rows that failed at
    /// first, so dispatch state is the second choice.
    fn find(inboxes: &BTreeMap<String, TracedRow>, dispatch: &TracedRow) -> Option<Self> {
        inboxes.values().chain([dispatch]).find_map(Self::of_row)
    }

    fn of_row(row: &TracedRow) -> Option<Self> {
        let message_id = row["message_id"].as_str()?.to_owned();
        let publish_time = row["publish_time"].as_str().map(str::to_owned);
        Some(Self { message_id, publish_time })
    }

    fn text(message: Option<&Self>) -> String {
        let mut text = String::new();
        let row = message.map_or(Value::Null, |it| json!(it));
        let absent = "not known: no inbox has the event, and dispatch state has no message id";
        part(&mut text, "pub/sub", &row, absent);
        text
    }
}

impl EventTrace {
    fn is_nowhere(&self) -> bool {
        self.inboxes.values().chain([&self.outbox, &self.dispatch]).all(Value::is_null)
    }

    /// Checks that the event is where it should be, as far as that is known.
    fn verdict(&self) -> Result<(), Error> {
        let event_id = &self.event_id;
        let has_inboxes = !self.inboxes.is_empty();
        if self.is_nowhere() {
            let inboxes = match has_inboxes {
                true => "and in no inbox",
                false => "and there was no inbox to search",
            };
            let what =
                format!("event {event_id:?} is in no outbox, in no dispatch state, {inboxes}");
            return Err(Error::refused(Code::TraceFoundNothing, what));
        }
        let lacking: Vec<_> = self.not_in.iter().map(|name| visible(name)).collect();
        match lacking.as_slice() {
            [] => Ok(()),
            lacking => {
                let lacking = lacking.join(", ");
                let what =
                    format!("event {event_id:?} is settled, and not in the inbox of {lacking}");
                Err(Error::refused(Code::EventNotApplied, what))
            }
        }
    }

    /// Formats the steps of the event with the time since it was written. The clocks of three machines
    /// may differ.
    fn timeline(&self) -> String {
        let time_of = |row: &Value, name| row[name].as_str().and_then(parse_rfc3339);
        let occurred_at = self.occurred_at.as_deref().map(|at| at.replace(" UTC", "Z"));
        let Some((at, written)) = occurred_at.and_then(|at| Some((parse_rfc3339(&at)?, at))) else {
            return String::new();
        };
        let mut steps = Vec::new();
        if let Some(TracedMessage { message_id, publish_time: Some(time) }) = &self.message {
            let stored = format!("stored as message {}", visible(message_id));
            steps.extend(parse_rfc3339(time).map(|time| (time, stored)));
        }
        for (name, row) in &self.inboxes {
            let (name, status) = (visible(name), row["status"].as_str().unwrap_or_default());
            let ended = if status == "done" { "applied" } else { status };
            steps.extend(time_of(row, "received_at").map(|it| (it, format!("received by {name}"))));
            steps.extend(time_of(row, "done_at").map(|it| (it, format!("{ended} by {name}"))));
        }
        // Stable, because an event may be received and applied at one moment.
        steps.sort_by_key(|(time, _)| *time);
        let mut text = format!("{:>12}  written at {written}\n", "");
        for (time, step) in steps {
            let (sign, elapsed) = match time.duration_since(at) {
                Ok(elapsed) => ('+', elapsed),
                Err(error) => ('-', error.duration()),
            };
            let elapsed = match elapsed.as_secs() {
                0..10 => format!("{sign}{:.1} ms", elapsed.as_secs_f64() * 1_000.0),
                10.. => format!("{sign}{:.1} s", elapsed.as_secs_f64()),
            };
            text.push_str(&format!("{elapsed:>12}  {step}\n"));
        }
        text
    }

    fn text(&self) -> String {
        let mut text = self.timeline();
        let absent = "not in the table: pruned, deleted, never committed, or not an event id";
        part(&mut text, "outbox", &self.outbox, absent);
        let unrecorded = match self.outbox["settled"].as_bool() {
            Some(_) if self.outbox[LEFT_OUT] == true => {
                "no row: the row filter of the publication leaves the event out"
            }
            Some(true) => "no row: the event was published without being parked",
            Some(false) if self.message.is_some() => {
                "no row: the event is published, and the position waits for an earlier row"
            }
            Some(false) => "no row: the event is not published yet",
            None => "no row: the event never failed, or its record was deleted",
        };
        part(&mut text, "dispatch state", &self.dispatch, unrecorded);
        text.push_str(&TracedMessage::text(self.message.as_ref()));
        for (name, row) in &self.inboxes {
            let may_be_absent =
                is_published(&self.outbox, &self.dispatch) && !self.not_in.contains(name);
            let not_there = if may_be_absent { NEED_NOT_BE_THERE } else { "not there" };
            part(&mut text, &format!("inbox of {}", visible(name)), row, not_there);
        }
        if self.dispatch["status"] == "dead" {
            text.push_str(&format!("next: walrelay dispatch show {}\n", quoted(&self.event_id)));
        }
        if self.inboxes.is_empty() {
            let unknown = format!("not searched: there is none in this database: {NAME_INBOXES}");
            part(&mut text, "inbox", &Value::Null, &unknown);
        }
        text
    }
}

const NEED_NOT_BE_THERE: &str =
    "not there, and need not be: the consumer began later, or reads other topics";

/// Returns whether a row of the outbox has been published, as far as the relay knows.
fn is_published(row: &Value, dispatch: &Value) -> bool {
    row["settled"] == true
        && row[LEFT_OUT] != true
        && (dispatch.is_null() || dispatch["status"] == "published")
}

async fn whole_id(outbox: &SqlClient, given: &str, scope: &TraceScope) -> Result<String, Error> {
    let mut found = dispatch_ids_like(outbox, &slots_of(outbox, scope).await?, given).await?;
    for table in &scope.database.outbox.tables {
        let column = column_of(outbox, table, &scope.columns.id).await?;
        found.extend(outbox_ids_like(outbox, table, &column, given).await?);
    }
    for inbox in open_inboxes(outbox, &scope.inboxes).await? {
        found.extend(inbox.consumer.ids_like(inbox.client(outbox), given).await?);
        inbox.close().await;
    }
    found.sort_unstable();
    found.dedup();
    meant(given, found)
}

async fn slots_of(outbox: &SqlClient, scope: &TraceScope) -> Result<Vec<String>, Error> {
    let shards = every_shard(outbox, &scope.database.outbox).await?;
    Ok(shards.into_iter().map(|shard| shard.slot).collect())
}

async fn trace(outbox: &SqlClient, id: &str, scope: &TraceScope) -> Result<EventTrace, Error> {
    let slots = slots_of(outbox, scope).await?;
    let (mut row, mut occurred_at) = (Value::Null, None);
    for table in &scope.database.outbox.tables {
        let column = column_of(outbox, table, &scope.columns.id).await?;
        let filter = read_row_filter(outbox, &scope.database.outbox, table).await?;
        let found = trace_outbox(outbox, &slots, (table, filter.as_deref()), &column, id).await?;
        if found.is_null() {
            continue;
        }
        let names = scope.columns.occurred_at.as_ref();
        if let Ok((time_column, time)) = time_column_of(outbox, table, names).await {
            let zone = if time == TimeType::WithoutZone { " UTC" } else { "" };
            occurred_at = found[&time_column].as_str().map(|moment| format!("{moment}{zone}"));
        }
        row = found;
    }
    let dispatch = trace_dispatch(outbox, &slots, id).await?;
    let is_published = is_published(&row, &dispatch);
    let (mut inboxes, mut not_in) = (BTreeMap::new(), Vec::new());
    for inbox in open_inboxes(outbox, &scope.inboxes).await? {
        let name = inbox.consumer.name().to_owned();
        let client = inbox.client(outbox);
        let found = inbox.consumer.trace(client, id).await?;
        if is_published
            && found.is_null()
            && !inbox.consumer.may_be_absent(client, occurred_at.as_deref()).await?
        {
            not_in.push(name.clone());
        }
        inboxes.insert(name, found);
        inbox.close().await;
    }
    let message = TracedMessage::find(&inboxes, &dispatch);
    let event_id = id.to_owned();
    Ok(EventTrace { event_id, occurred_at, outbox: row, dispatch, message, inboxes, not_in })
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

/// A consumer to search, and its database unless that is the outbox's own.
pub(super) struct Inbox {
    pub(super) consumer: ConsumerGeneration,
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

/// Opens the named inboxes. If none is named, opens those in the outbox's own database, which may
/// have none.
pub(super) async fn open_inboxes(
    outbox: &SqlClient,
    places: &[InboxPlace],
) -> Result<Vec<Inbox>, Error> {
    let mut inboxes = Vec::new();
    for place in places {
        let client = connect_shared(&place.connect).await.map_err(InboxError::Connect)?;
        let consumer = ConsumerGeneration::find(&client, Some(&place.consumer)).await?;
        inboxes.push(Inbox { consumer, client: Some(client) });
    }
    if places.is_empty() {
        let here = ConsumerGeneration::all(outbox).await?;
        inboxes.extend(here.into_iter().map(|consumer| Inbox { consumer, client: None }));
    }
    Ok(inboxes)
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let inboxes = BTreeMap::from([("billing".to_owned(), json!({ "status": "done" }))]);
        let dispatch = json!({ "status": "published" });
        let not_in = vec!["search".to_owned()];
        let message = TracedMessage {
            message_id: "4711".to_owned(),
            publish_time: Some("2026-01-31T12:00:00.5+00:00".to_owned()),
        };
        let trace = EventTrace { dispatch, message: Some(message), inboxes, not_in, ..settled() };
        assert_documented("trace", &trace);
    }

    fn settled() -> EventTrace {
        let outbox = json!({ "settled": true });
        EventTrace { event_id: "e-1".to_owned(), outbox, ..EventTrace::default() }
    }

    fn found(not_in: &[&str]) -> EventTrace {
        let inboxes = BTreeMap::from([("billing".to_owned(), Value::Null)]);
        EventTrace {
            inboxes,
            not_in: not_in.iter().map(|it| (*it).to_owned()).collect(),
            ..settled()
        }
    }

    #[test]
    fn the_steps_of_an_event_are_shown_with_the_time_since_it_was_written() {
        let done = json!({
            "status": "done",
            "received_at": "2026-01-31T12:00:00.5125+00:00",
            "done_at": "2026-01-31T12:00:14.5+00:00"
        });
        let trace = EventTrace {
            occurred_at: Some("2026-01-31T12:00:00.5 UTC".to_owned()),
            message: Some(TracedMessage {
                message_id: "4711".to_owned(),
                publish_time: Some("2026-01-31T12:00:00.4997Z".to_owned()),
            }),
            inboxes: BTreeMap::from([("billing".to_owned(), done)]),
            ..settled()
        };
        let expected = "              written at 2026-01-31T12:00:00.5Z
     -0.3 ms  stored as message 4711
    +12.5 ms  received by billing
     +14.0 s  applied by billing
";
        assert_eq!(trace.timeline(), expected);
        assert_eq!(settled().timeline(), "", "without a time there is none");
    }

    #[test]
    fn without_an_inbox_the_rest_is_shown() {
        let text = settled().text();
        assert!(text.contains("settled            true"), "{text}");
        assert!(text.contains("was published without being parked"), "{text}");
        let pending = EventTrace { outbox: json!({ "settled": false }), ..settled() };
        assert!(pending.text().contains("is not published yet"), "{}", pending.text());
        assert!(text.contains("inbox\n  not searched") && text.contains("--inbox NAME="), "{text}");
        assert!(settled().verdict().is_ok(), "the question was where the event is");

        let unknown = EventTrace::default().text();
        assert!(!unknown.contains("is not published yet"), "{unknown}");
        let none = EventTrace::default().verdict().expect_err("it is nowhere");
        assert_eq!(none.exit().code(), 1);
        assert!(none.report().contains("there was no inbox to search"), "{}", none.report());
    }

    #[test]
    fn the_message_is_the_one_that_an_inbox_received_or_else_the_one_on_record() {
        let dispatch = json!({ "message_id": "1", "status": "published" });
        let received = json!({ "message_id": "2", "publish_time": "2026-01-31T12:00:00+00:00" });
        let none = json!({ "message_id": null, "publish_time": null });
        let inboxes = BTreeMap::from([("a".to_owned(), none), ("b".to_owned(), received)]);
        let found = TracedMessage::find(&inboxes, &dispatch).expect("b has it");
        assert_eq!(found.message_id, "2");
        let text = TracedMessage::text(Some(&found));
        assert!(text.contains("publish time       2026-01-31T12:00:00+00:00"), "{text}");

        let recorded = TracedMessage::find(&BTreeMap::new(), &dispatch).expect("on record");
        assert_eq!((&*recorded.message_id, recorded.publish_time), ("1", None));
        assert_eq!(TracedMessage::find(&BTreeMap::new(), &Value::Null), None);
        assert!(TracedMessage::text(None).contains("not known"));
    }

    #[test]
    fn an_event_that_was_published_and_is_not_in_an_inbox_is_no_success() {
        assert!(is_published(&json!({ "settled": true }), &Value::Null));
        assert!(is_published(&json!({ "settled": true }), &json!({ "status": "published" })));
        assert!(!is_published(&json!({ "settled": true }), &json!({ "status": "dead" })));
        assert!(!is_published(&json!({ "settled": false }), &Value::Null));

        let error = found(&["billing"]).verdict().expect_err("it is not there");
        assert_eq!(error.exit().code(), 1);
        assert!(error.report().contains("not in the inbox of billing"), "{}", error.report());
        assert!(found(&[]).verdict().is_ok());
    }
}
