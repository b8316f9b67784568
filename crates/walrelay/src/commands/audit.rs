//! `walrelay audit`: checks that every published event is in each consumer's inbox.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use clap::Args;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use serde::Serialize;
use tokio::time::timeout;
use walrelay_core::{ColumnAliases, RouterConfig};
use walrelay_errors::{Chain, Code};
use walrelay_inbox_admin::audit::{
    AuditTarget, AuditedTable, Findings, Scope, audit, count_in_dispatch, settled_by,
};
use walrelay_inbox_admin::{Messages, admin};
use walrelay_outbox_admin::protocols::{
    column_of, every_shard, refuse_unrecorded, refuse_without_outbox, time_column_of,
};
use walrelay_outbox_replay::{TopicRows, read_row_filter, recovery};
use walrelay_pg_client::{SqlClient, connect_outbox};
use walrelay_pubsub::{Endpoint, Subscriber};
use walrelay_relay::observe::report::rfc3339;

use super::trace::{Inbox, open_inboxes};
use crate::commands::shared::answer_timeout::ANSWER_TIMEOUT;
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{Checks, DatabaseConfig, InboxPlace, ResourceKind};
use crate::error::Error;
use crate::options::values::{duration, time};
use crate::options::{
    ARGUMENTS, DatabaseOptions, EndpointOptions, InboxPlaces, MessageOptions, OutputOptions,
};
use crate::output::print_result;
use crate::output::text::visible;
use crate::plan::Plan;

/// Number of missing events that the text report lists, and the JSON report, without `--all`.
const NAMED: usize = 20;
const LISTED: usize = 1_000;

/// Prove that every published event is in each consumer's inbox.
///
/// Counts and hashes the settled rows of the outbox and the rows of each inbox by minute, and compares
/// the minutes that differ id by id. Missing events are named, and the exit code is 1. Rows in
/// dispatch state (retrying, dead, discarded) and pruned events are counted separately. A consumer should have the
/// events of its topic since it was set up.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay audit --from-time 7d\n  \
    walrelay audit --inbox billing=postgresql://app@billing.example:5432/app --aggregate-type order\n  \
    walrelay audit --subscription audit --from-time 2d"
)]
pub(crate) struct Audit {
    /// Only events that occurred at this time or later: 2026-01-31T12:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", value_parser = time)]
    from_time: Option<SystemTime>,
    /// Events younger than this may be on their way, and are left out.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration("0s", "7d"))]
    grace: Duration,
    /// Only events of this aggregate type, where a consumer does not read all of them; may be given
    /// several times.
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Vec<String>,
    /// Compare with what this subscription holds, short or full name, instead of with inboxes: it is read and
    /// handed back, and nothing of it is acknowledged. What is published meanwhile is not waited for. For
    /// consumers without an inbox, a subscription that nobody else reads.
    #[arg(long, value_name = "SUBSCRIPTION", conflicts_with = "inbox")]
    subscription: Option<String>,
    /// Name every event that is missing: without it the first 20, with --output json the first thousand.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    places: InboxPlaces,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    database: DatabaseOptions,
    #[command(flatten)]
    messages: MessageOptions,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

struct AuditPlaces {
    database: DatabaseConfig,
    occurred_at: ColumnAliases,
    /// The consumers. Empty means those in the outbox's own database.
    inboxes: Vec<InboxPlace>,
    /// Full name of a subscription to compare with instead.
    subscription: Option<String>,
    endpoint: Endpoint,
    router: RouterConfig,
}

impl Audit {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let inboxes = checks.inbox_places(&self.places);
        let columns = checks.definition.columns.clone();
        let reason = "not set; an audit goes by the time at which events occurred";
        checks.require_time(&columns, reason);
        let subscription = self.subscription.as_ref().map(|given| {
            let kind = ResourceKind::Subscription;
            let project = &self.messages.project;
            checks.full_name("subscription", given, project, kind).unwrap_or_default()
        });
        let places = AuditPlaces {
            subscription,
            endpoint: checks.endpoint(&self.endpoint),
            router: checks.router(&self.messages),
            database: checks.database(&self.database)?,
            occurred_at: columns.occurred_at?,
            inboxes: inboxes?,
        };
        Some(Plan::new(async move |shutdown| {
            let done = Box::pin(run_until_shutdown(self.run(&places), shutdown)).await;
            done.map_err(|error| error.for_read_only_command(places.database.connect.user()))
        }))
    }

    /// Compares outbox and inboxes, and prints the findings.
    ///
    /// # Errors
    ///
    /// A database cannot be reached or refuses, no row is known to be settled, or an event is missing.
    async fn run(&self, places: &AuditPlaces) -> Result<(), Error> {
        let outbox = connect_outbox(&places.database.connect).await?;
        refuse_without_outbox(&outbox, &places.database.outbox).await?;
        let scope = scope(&outbox, self, places).await?;
        let dispatch = count_in_dispatch(&outbox, &scope).await?;
        let mut consumers: Vec<ConsumerAudit> = Vec::new();
        if let Some(subscription) = &places.subscription {
            let subscriber = Subscriber::connect(&places.endpoint)?;
            let messages = Messages::read(&subscriber, subscription).await?;
            let findings = audit(&outbox, AuditTarget::Subscription(&messages), &scope).await?;
            consumers.push(ConsumerAudit::of(subscription, findings));
        } else {
            let inboxes = open_inboxes(&outbox, &places.inboxes).await?;
            if inboxes.is_empty() {
                let what =
                    "the outbox's database has no consumer, so there is no inbox to compare with";
                return Err(Error::refused(Code::InboxNotNamed, what.to_owned()));
            }
            for inbox in inboxes {
                let found = self.audit_inbox(&outbox, &inbox, places, &scope).await;
                inbox.close().await;
                consumers.push(found?);
            }
        }
        outbox.close().await;
        let report = AuditReport { consumers, dispatch };
        let named = if self.all { usize::MAX } else { NAMED };
        print_result(self.output.output, &report, || report.text(named))?;
        report.verdict()
    }

    /// Audits one inbox. If it lacks events, Pub/Sub is asked for its topic, because the rows of other
    /// topics are not for it.
    async fn audit_inbox(
        &self,
        outbox: &SqlClient,
        inbox: &Inbox,
        places: &AuditPlaces,
        scope: &Scope,
    ) -> Result<ConsumerAudit, Error> {
        let against = AuditTarget::Inbox(inbox.client(outbox), &inbox.consumer);
        let name = inbox.consumer.name();
        let findings = audit(outbox, against, scope).await?;
        if findings.missing_count == 0 || !self.aggregate_type.is_empty() {
            return Ok(ConsumerAudit::of(name, findings));
        }
        match rows_of_topic(outbox, inbox, places, scope).await {
            Ok(tables) => {
                let scope = Scope { tables, ..scope.clone() };
                Ok(ConsumerAudit::of(name, audit(outbox, against, &scope).await?))
            }
            Err(note) => {
                Ok(ConsumerAudit { note: Some(note), ..ConsumerAudit::of(name, findings) })
            }
        }
    }
}

/// Limits the tables to rows that lead to the topic of the consumer's subscription. Returns why the topic
/// is not known.
async fn rows_of_topic(
    outbox: &SqlClient,
    inbox: &Inbox,
    places: &AuditPlaces,
    scope: &Scope,
) -> Result<Vec<AuditedTable>, String> {
    let name = inbox.consumer.name();
    let found = async {
        let subscription = admin::subscription(inbox.client(outbox), name).await?;
        Ok::<_, Error>(Subscriber::connect(&places.endpoint)?.subscription(&subscription).await?)
    };
    let unasked =
        |why: &dyn std::fmt::Display| format!("Pub/Sub did not say which topic it reads ({why})");
    let found = timeout(ANSWER_TIMEOUT, found).await.map_err(|_| unasked(&"no answer"))?;
    let found = found.map_err(|error| unasked(&Chain(&error)))?;
    let Some(Subscription { topic, filter, .. }) = found else {
        return Err("its subscription does not exist".to_owned());
    };
    if !filter.is_empty() {
        return Err(
            "its subscription has a filter, and what that leaves out is counted too".to_owned()
        );
    }
    let topic = TopicRows::new(topic, &places.router);
    let mut tables = Vec::new();
    for audited in &scope.tables {
        let columns = &places.router.columns;
        let table = recovery::table(outbox, audited.name(), columns).await;
        let table = table.map_err(|error| Chain(&error).to_string())?;
        tables.push(audited.with_condition(&topic.filter(&table, "o")));
    }
    Ok(tables)
}

async fn scope(outbox: &SqlClient, command: &Audit, places: &AuditPlaces) -> Result<Scope, Error> {
    let shards = every_shard(outbox, &places.database.outbox).await?;
    for shard in &shards {
        refuse_unrecorded(outbox, &shard.slot).await?;
    }
    let mut tables = Vec::new();
    let columns = &places.router.columns;
    for table in &places.database.outbox.tables {
        let id = column_of(outbox, table, &columns.id).await?;
        let (occurred_at, time) = time_column_of(outbox, table, Some(&places.occurred_at)).await?;
        let aggregate_type = match &columns.aggregate_type {
            Some(names) => Some(column_of(outbox, table, names).await?),
            None => None,
        };
        let filter = read_row_filter(outbox, &places.database.outbox, table).await?;
        let published = (table.clone(), filter.as_deref());
        tables.push(AuditedTable::new(
            published,
            &id,
            (&occurred_at, time),
            aggregate_type.as_deref(),
        ));
    }
    let slots: Vec<String> = shards.into_iter().map(|shard| shard.slot).collect();
    Ok(Scope {
        settled_by: settled_by(outbox, &slots).await?,
        slots,
        tables,
        since: command.from_time,
        until: SystemTime::now().checked_sub(command.grace).unwrap_or(SystemTime::UNIX_EPOCH),
        aggregate_types: command.aggregate_type.clone(),
        listed: if command.all { usize::MAX } else { LISTED },
    })
}

#[derive(Debug, Serialize)]
struct AuditReport {
    consumers: Vec<ConsumerAudit>,
    /// Rows that the relay retains in dispatch state, by their status.
    dispatch: BTreeMap<String, i64>,
}

/// The result of the audit of one consumer, or of one subscription.
#[derive(Debug, Serialize)]
struct ConsumerAudit {
    consumer: String,
    /// Settled rows of the outbox that were compared.
    rows: u64,
    /// Rows that are not settled yet, or younger than `--grace`.
    left_out: u64,
    /// Start of the audited time, if it was limited.
    since: Option<String>,
    missing: u64,
    /// When the first event of the inbox occurred.
    first_seen: Option<String>,
    missing_events: Vec<MissingEvent>,
    /// Found events, by their status in the inbox.
    inbox: BTreeMap<String, i64>,
    /// What the audit could not find out.
    note: Option<String>,
    /// Whether all missing events are older than the inbox.
    #[serde(skip)]
    is_younger: bool,
}

#[derive(Debug, Serialize)]
struct MissingEvent {
    event_id: String,
    occurred_at: String,
}

impl ConsumerAudit {
    fn of(consumer: &str, findings: Findings) -> Self {
        let is_younger = findings.is_younger();
        let missing = findings.missing.into_iter();
        Self {
            consumer: consumer.to_owned(),
            rows: findings.rows,
            left_out: findings.left_out,
            since: findings.since.map(rfc3339),
            missing: findings.missing_count,
            first_seen: findings.first_seen.map(rfc3339),
            missing_events: missing
                .map(|(event_id, at)| MissingEvent { event_id, occurred_at: rfc3339(at) })
                .collect(),
            inbox: findings.inbox,
            note: None,
            is_younger,
        }
    }

    fn text(&self, named: usize) -> String {
        let since = self.since.as_ref().map(|at| format!(" since {at}")).unwrap_or_default();
        let verdict = match (self.rows, self.missing) {
            (0, _) => format!("no settled event{since}, so nothing was compared"),
            (rows, 0) => format!("{rows} settled event(s){since}, all are there"),
            (rows, missing) => format!("{rows} settled event(s){since}, {missing} are MISSING"),
        };
        let mut text = format!("{}: {verdict}\n", visible(&self.consumer));
        text.push_str(&counted("  there", &self.inbox));
        if self.left_out > 0 {
            let why = "row(s) that are not settled yet, or younger than --grace (1m unless given)";
            text.push_str(&format!("  left out: {} {why}\n", self.left_out));
        }
        for MissingEvent { event_id, occurred_at } in self.missing_events.iter().take(named) {
            text.push_str(&format!(
                "  missing: {}, occurred at {occurred_at}\n",
                visible(event_id)
            ));
        }
        let others = self.missing.saturating_sub(named as u64);
        if others > 0 {
            text.push_str(&format!("  and {others} others: --all names them\n"));
        }
        if let Some(note) = &self.note {
            text.push_str(&format!("  note: {note}\n"));
        }
        if let Some(first) = self.first_seen.as_ref().filter(|_| self.is_younger) {
            text.push_str(&format!(
                "  all of them occurred before the first event that it has: if it was set up then, --from-time {first} \
                 leaves out events that it was not meant to receive\n"
            ));
        }
        text
    }
}

impl AuditReport {
    fn text(&self, named: usize) -> String {
        let mut text: String = self.consumers.iter().map(|it| it.text(named)).collect();
        text.push_str(&counted("retained by the relay, in no inbox", &self.dispatch));
        text
    }

    /// Fails if an inbox lacks events, or if there was nothing to compare it with.
    fn verdict(&self) -> Result<(), Error> {
        let lacking = self.consumers.iter().filter(|it| it.missing > 0);
        let lacking: Vec<_> =
            lacking.map(|it| format!("{} lacks {}", visible(&it.consumer), it.missing)).collect();
        if !lacking.is_empty() {
            let what = format!("events that were published are missing: {}", lacking.join(", "));
            return Err(Error::refused(Code::AuditEventsMissing, what));
        }
        let uncompared = self.consumers.iter().filter(|it| it.rows == 0);
        let uncompared: Vec<_> = uncompared.map(|it| visible(&it.consumer)).collect();
        match uncompared.as_slice() {
            [] => Ok(()),
            consumers => {
                let consumers = consumers.join(", ");
                let what = format!(
                    "nothing was compared with the inbox of {consumers}: the selection has no settled event"
                );
                Err(Error::refused(Code::AuditComparedNothing, what))
            }
        }
    }
}

fn counted(what: &str, counts: &BTreeMap<String, i64>) -> String {
    if counts.is_empty() {
        return String::new();
    }
    let counts: Vec<_> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    format!("{what}: {}\n", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use walrelay_errors::Coded as _;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn what_is_missing_is_counted_and_the_first_are_named() {
        let missing = (0..30).map(|n| (format!("e-{n}"), SystemTime::UNIX_EPOCH)).collect();
        let inbox = BTreeMap::from([("done".to_owned(), 70), ("dead".to_owned(), 2)]);
        let findings = Findings {
            rows: 100,
            missing,
            missing_count: 30,
            inbox,
            left_out: 2,
            ..Findings::default()
        };
        let report = |of| AuditReport {
            consumers: vec![ConsumerAudit::of("ledger", of)],
            dispatch: BTreeMap::new(),
        };
        let holed = report(findings);
        let text = holed.text(NAMED);
        assert!(text.starts_with("ledger: 100 settled event(s), 30 are MISSING\n"), "{text}");
        assert!(text.contains("there: 2 dead, 70 done\n"), "{text}");
        assert_eq!(text.matches("missing: ").count(), NAMED, "{text}");
        assert!(text.contains("and 10 others: --all names them\n"), "{text}");
        let error = holed.verdict().expect_err("events are missing");
        assert_eq!((error.code(), error.exit().code()), (Code::AuditEventsMissing, 1));

        let all = holed.text(usize::MAX);
        assert_eq!(all.matches("missing: ").count(), 30, "{all}");
        assert!(!all.contains("others"), "{all}");

        let whole = report(Findings { rows: 100, ..Findings::default() });
        assert!(whole.text(NAMED).contains("100 settled event(s), all are there"));
        assert!(whole.verdict().is_ok());
    }

    #[test]
    fn the_json_is_documented() {
        let now = SystemTime::UNIX_EPOCH;
        let findings = Findings {
            missing: vec![("e-1".to_owned(), now)],
            inbox: BTreeMap::from([("done".to_owned(), 1)]),
            ..Findings::default()
        };
        let report = AuditReport {
            consumers: vec![ConsumerAudit::of("billing", findings)],
            dispatch: BTreeMap::from([("dead".to_owned(), 1)]),
        };
        assert_documented("audit", &report);
    }

    #[test]
    fn an_audit_that_had_nothing_to_compare_says_so_and_is_no_success() {
        let empty = Findings { left_out: 3, ..Findings::default() };
        let report = AuditReport {
            consumers: vec![ConsumerAudit::of("ledger", empty)],
            dispatch: BTreeMap::new(),
        };
        let text = report.text(NAMED);
        assert!(text.starts_with("ledger: no settled event, so nothing was compared\n"), "{text}");
        assert!(text.contains("left out: 3 row(s)"), "{text}");
        let error = report.verdict().expect_err("nothing is proved");
        assert_eq!((error.code(), error.exit().code()), (Code::AuditComparedNothing, 2));
    }
}
