//! Proves that the published rows of an outbox are in an inbox.
//!
//! Outbox and inbox may be in two databases, so no query joins them. Both sides count and hash
//! their event ids per minute of `occurred_at`. Only minutes that differ are compared id by id. A
//! row in the inbox without an outbox row is no finding, because outboxes are pruned. A row that
//! `--dedupe position` discarded counts as missing, because nobody applied the event or decided
//! against it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::Value;
use tokio_postgres::Row;
use walrelay_pg_client::{
    QualifiedName, SCHEMA, SqlClient, SqlError, TableAccess, TimeType, is_settled_sql,
    own_rows_sql, quote_identifier, refuse_hidden_rows, sql, text_form_sql,
};

use crate::event_commands::{ConsumerGeneration, object};
use crate::subscription_messages::Messages;
use walrelay_inbox::InboxError;
use walrelay_inbox::access::failed;

/// The number of ids compared at once.
const PAGE: usize = 10_000;

/// An outbox table, in SQL about a row `o` of it.
#[derive(Debug, Clone)]
pub struct AuditedTable {
    table: QualifiedName,
    /// The event id as text.
    id: String,
    /// The column of the time.
    occurred_at: String,
    time: TimeType,
    aggregate_type: Option<String>,
    /// The condition on rows that the publication publishes.
    is_published: String,
}

impl AuditedTable {
    /// Creates the table from the names of three columns: event id, time, and aggregate type if the
    /// table has one. `row_filter` is the one of the publication, in SQL about a row.
    #[must_use]
    pub fn new(
        (table, row_filter): (QualifiedName, Option<&str>),
        id: &str,
        (occurred_at, time): (&str, TimeType),
        aggregate_type: Option<&str>,
    ) -> Self {
        let is_own = own_rows_sql(&table, "o");
        Self {
            is_published: format!("{is_own} AND ({})", row_filter.unwrap_or("true")),
            table,
            id: text_form_sql(&format!("o.{}", quote_identifier(id))),
            occurred_at: format!("o.{}", quote_identifier(occurred_at)),
            time,
            aggregate_type: aggregate_type
                .map(|column| text_form_sql(&format!("o.{}", quote_identifier(column)))),
        }
    }

    /// Returns the table with a further condition on its rows, in SQL about a row `o`.
    #[must_use]
    pub fn with_condition(&self, condition: &str) -> Self {
        Self { is_published: format!("{} AND ({condition})", self.is_published), ..self.clone() }
    }

    #[must_use]
    pub const fn name(&self) -> &QualifiedName {
        &self.table
    }

    /// Returns SQL for the time of the event as `timestamptz`.
    fn moment(&self) -> String {
        self.time.value_sql(&self.occurred_at)
    }

    /// Returns SQL for the minute of the event since 1970.
    fn minute(&self) -> String {
        format!("floor(extract(epoch FROM {}) / 60)::int8", self.moment())
    }

    /// Returns the test for events at `$1` or later.
    fn is_since(&self) -> String {
        format!(
            "{} >= {}",
            self.occurred_at,
            self.time.moment_sql("coalesce($1::timestamptz, '-infinity')")
        )
    }

    /// Returns the test for events before `$2`.
    fn is_before(&self) -> String {
        format!("{} < {}", self.occurred_at, self.time.moment_sql("$2::timestamptz"))
    }
}

/// The rows to audit.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The slots of the relays that published the rows, one for each shard.
    pub slots: Vec<String>,
    /// The settled transaction id of [`settled_by`], read before all other queries. Rows settled
    /// later might not have been visible to those queries.
    pub settled_by: Option<String>,
    pub tables: Vec<AuditedTable>,
    /// Only rows that occurred at this time or later. Without a time, those for which the consumer was
    /// there.
    pub since: Option<SystemTime>,
    /// Only rows that occurred before this time. Younger rows may be on their way.
    pub until: SystemTime,
    /// Only rows of these aggregate types. Empty: all types.
    pub aggregate_types: Vec<String>,
    /// The maximum number of missing events to list. Further ones are only counted.
    pub listed: usize,
}

/// The findings of an audit of one consumer.
#[derive(Debug, Default)]
pub struct Findings {
    /// The settled outbox rows that should be in the inbox.
    pub rows: u64,
    /// The first missing events, with the time at which each occurred.
    pub missing: Vec<(String, SystemTime)>,
    pub missing_count: u64,
    /// The number of found events, by status.
    pub inbox: BTreeMap<String, i64>,
    /// The outbox rows that were left out: not settled and not in dispatch state, or younger than
    /// the scope's end.
    pub left_out: u64,
    /// The time at which the last missing event occurred.
    pub last_missing: Option<SystemTime>,
    /// The time at which the first event of the inbox occurred. The consumer may have been set up
    /// later than others.
    pub first_seen: Option<SystemTime>,
    /// The start of the audited time, later than requested if the inbox was pruned.
    pub since: Option<SystemTime>,
}

impl Findings {
    /// Returns whether every missing event occurred before every event of the inbox. The consumer
    /// was then set up later.
    #[must_use]
    pub fn is_younger(&self) -> bool {
        matches!((self.last_missing, self.first_seen), (Some(last), Some(first)) if last < first)
    }

    fn has(&mut self, status: &str, count: i64) {
        *self.inbox.entry(status.to_owned()).or_default() += count;
    }

    fn miss(&mut self, event_id: String, occurred_at: SystemTime, listed: usize) {
        self.missing_count += 1;
        self.last_missing = self.last_missing.max(Some(occurred_at));
        if self.missing.len() < listed {
            self.missing.push((event_id, occurred_at));
        }
    }
}

/// The number of ids, and the XOR of their hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Digest {
    count: i64,
    hash: i64,
}

impl Digest {
    /// Adds the digest of a row: its second column is the count, its third the XOR of the hashes.
    fn add(&mut self, row: &Row) {
        self.count += row.get::<_, i64>(1);
        self.hash ^= row.get::<_, i64>(2);
    }
}

/// A digest for each minute since 1970.
type Minutes = BTreeMap<i64, Digest>;

/// The inbox's events of a time range.
#[derive(Debug, Default)]
struct Seen {
    minutes: Minutes,
    /// The number of events by minute and status.
    statuses: BTreeMap<(i64, String), i64>,
    first: Option<SystemTime>,
}

impl Seen {
    /// Returns the number of events of each status in a minute.
    fn of(&self, minute: i64) -> impl Iterator<Item = (&str, i64)> {
        let from = (minute, String::new());
        let found = self.statuses.range(from..(minute + 1, String::new()));
        found.map(|((_, status), count)| (status.as_str(), *count))
    }
}

/// The side that the outbox is compared with.
#[derive(Debug, Clone, Copy)]
pub enum AuditTarget<'a> {
    Inbox(&'a SqlClient, &'a ConsumerGeneration),
    Subscription(&'a Messages),
}

impl AuditTarget<'_> {
    /// Returns the time from which on the events of a scope can be there.
    async fn begin(self, scope: &Scope) -> Result<SystemTime, InboxError> {
        let asked = scope.since.unwrap_or(SystemTime::UNIX_EPOCH);
        let Self::Inbox(client, consumer) = self else { return Ok(asked) };
        let (pruned, began) = consumer.begin(client).await?;
        Ok(pruned.unwrap_or(asked).max(scope.since.unwrap_or(began)))
    }

    /// Returns the digests per minute. A subscription has none, so every id is compared.
    async fn seen(self, since: SystemTime, until: SystemTime) -> Result<Seen, InboxError> {
        match self {
            Self::Inbox(client, consumer) => consumer.seen(client, since, until).await,
            Self::Subscription(_) => Ok(Seen::default()),
        }
    }

    /// Returns the status of each of these events that exists.
    async fn held(self, ids: &[String]) -> Result<BTreeMap<String, String>, InboxError> {
        match self {
            Self::Inbox(client, consumer) => consumer.held(client, ids).await,
            Self::Subscription(messages) => {
                let delivered = ids.iter().filter(|id| messages.has(id));
                Ok(delivered.map(|id| (id.clone(), "delivered".to_owned())).collect())
            }
        }
    }
}

/// Compares the settled rows of the outbox with the inbox of one consumer, or with a subscription.
pub async fn audit(
    outbox: &SqlClient,
    against: AuditTarget<'_>,
    scope: &Scope,
) -> Result<Findings, InboxError> {
    scope.refuse_hidden(outbox).await?;
    let since = against.begin(scope).await?;
    let scope = Scope { since: Some(since), ..scope.clone() };
    let settled = settled_minutes(outbox, &scope).await?;
    let seen = against.seen(since, scope.until).await?;
    let rows = settled.values().map(|digest| u64::try_from(digest.count).unwrap_or_default()).sum();
    let mut findings = Findings {
        rows,
        left_out: left_out(outbox, &scope).await?,
        first_seen: seen.first,
        since: (since > SystemTime::UNIX_EPOCH).then_some(since),
        ..Findings::default()
    };
    for (minute, digest) in &settled {
        if seen.minutes.get(minute) == Some(digest) {
            seen.of(*minute).for_each(|(status, count)| findings.has(status, count));
            continue;
        }
        for table in &scope.tables {
            let of = AuditedMinute { table, minute: *minute, scope: &scope };
            of.compare(outbox, against, &mut findings).await?;
        }
    }
    Ok(findings)
}

/// Counts the outbox rows of the scope that are in dispatch state and not published, by status.
/// They are in no inbox, and are not missing. Copies of a replay and rows that their producer has
/// deleted do not count.
pub async fn count_in_dispatch(
    outbox: &SqlClient,
    scope: &Scope,
) -> Result<BTreeMap<String, i64>, InboxError> {
    scope.refuse_hidden(outbox).await?;
    let mut statuses = BTreeMap::new();
    for table in &scope.tables {
        let AuditedTable { table: name, id, .. } = table;
        // spliced: names of the outbox table and its columns.
        let sql = format!(
            "SELECT d.status, count(*)
               FROM (SELECT {id} AS event_id FROM {name} AS o WHERE {} AND {} AND {}) AS o
               JOIN {SCHEMA}.app_outbox_dispatch AS d ON d.event_id = o.event_id
              WHERE d.slot = ANY ($3) AND d.status <> 'published' AND d.replay_id = ''
              GROUP BY d.status",
            table.is_since(),
            table.is_before(),
            is_audited(table)
        );
        let [since, until, slots, types, _] = scope.parameters();
        let rows = outbox.query(&sql, &[since, until, slots, types]).await;
        for row in &rows.map_err(outbox_failed("count dispatch state"))? {
            *statuses.entry(row.get(0)).or_default() += row.get::<_, i64>(1);
        }
    }
    Ok(statuses)
}

async fn settled_minutes(outbox: &SqlClient, scope: &Scope) -> Result<Minutes, InboxError> {
    let mut minutes = Minutes::new();
    for table in &scope.tables {
        // spliced: names of the outbox table and its columns.
        let sql = format!(
            "SELECT {}, count(*), bit_xor(hashtextextended({}, 0)) FROM {} GROUP BY 1",
            table.minute(),
            table.id,
            settled_rows(table)
        );
        let rows = outbox.query(&sql, &scope.parameters()).await;
        for row in &rows.map_err(outbox_failed("read the outbox"))? {
            minutes.entry(row.get(0)).or_default().add(row);
        }
    }
    Ok(minutes)
}

/// Counts the rows of the scope that the audit does not cover.
async fn left_out(outbox: &SqlClient, scope: &Scope) -> Result<u64, InboxError> {
    let mut rows = 0;
    for table in &scope.tables {
        // spliced: names of the outbox table and its columns.
        let sql = format!(
            "SELECT count(*) FROM {} AS o WHERE {} AND {} AND (NOT {} OR NOT {} AND NOT {})",
            table.table,
            table.is_since(),
            is_audited(table),
            table.is_before(),
            settled(),
            is_held_back(table)
        );
        let row = outbox.query_one(&sql, &scope.parameters()).await;
        let counted: i64 = row.map_err(outbox_failed("count the outbox"))?.get(0);
        rows += u64::try_from(counted).unwrap_or_default();
    }
    Ok(rows)
}

/// Returns the transaction id below which the relays of these slots have settled every transaction.
pub async fn settled_by(
    outbox: &SqlClient,
    slots: &[String],
) -> Result<Option<String>, InboxError> {
    let sql = sql!("audit.sql", "settled_by");
    let row = outbox.query_opt(sql, &[&slots]).await;
    Ok(row.map_err(outbox_failed("read how far the relay is"))?.map(|row| row.get(0)))
}

/// Returns whether every relay has settled the row's transaction. `prune` uses the same test. `$5`
/// is the settled transaction id.
fn settled() -> String {
    is_settled_sql("o.xmin", "$5::text::xid8")
}

/// Parameters: since, until, slots, aggregate types, settled by.
fn settled_rows(table: &AuditedTable) -> String {
    // spliced: names of the outbox table and its columns.
    format!(
        "{} AS o WHERE {} AND {} AND {} AND {} AND NOT {}",
        table.table,
        table.is_since(),
        table.is_before(),
        settled(),
        is_audited(table),
        is_held_back(table)
    )
}

/// Returns the test for published rows of the audited aggregate types. `$4` has the types, and is
/// empty for all.
fn is_audited(table: &AuditedTable) -> String {
    let kind = match &table.aggregate_type {
        None => "NULL::text".to_owned(),
        Some(text) => text.clone(),
    };
    format!("{} AND (cardinality($4::text[]) = 0 OR {kind} = ANY ($4))", table.is_published)
}

/// Returns the test for a row in dispatch state that is not published. `$3` has the slots.
fn is_held_back(table: &AuditedTable) -> String {
    // spliced: names of the outbox table and its columns.
    format!(
        "EXISTS (SELECT FROM {SCHEMA}.app_outbox_dispatch AS d
                  WHERE d.slot = ANY ($3) AND d.event_id = {} AND d.status <> 'published')",
        table.id
    )
}

/// The settled rows of one minute in one table.
struct AuditedMinute<'a> {
    table: &'a AuditedTable,
    minute: i64,
    scope: &'a Scope,
}

impl AuditedMinute<'_> {
    /// Compares the ids of the minute with the other side.
    async fn compare(
        &self,
        outbox: &SqlClient,
        against: AuditTarget<'_>,
        findings: &mut Findings,
    ) -> Result<(), InboxError> {
        let (id, moment, minute) = (&self.table.id, self.table.moment(), self.table.minute());
        // spliced: names of the outbox table and its columns.
        let sql = format!(
            "SELECT {id}, {moment} FROM {}
                AND {minute} = $6
                AND {id} COLLATE \"C\" > $7
              ORDER BY {id} COLLATE \"C\" LIMIT {PAGE}",
            settled_rows(self.table)
        );
        let [since, until, slots, types, settled] = self.scope.parameters();
        let mut last = String::new();
        loop {
            let parameters: [Parameter<'_>; 7] =
                [since, until, slots, types, settled, &self.minute, &last];
            let page =
                outbox.query(&sql, &parameters).await.map_err(outbox_failed("read the outbox"))?;
            let ids: Vec<String> = page.iter().map(|row| row.get(0)).collect();
            let held = against.held(&ids).await?;
            for row in &page {
                match held.get(row.get::<_, &str>(0)) {
                    Some(status) => findings.has(status, 1),
                    None => findings.miss(row.get(0), row.get(1), self.scope.listed),
                }
            }
            match ids.last() {
                Some(highest) if ids.len() == PAGE => last.clone_from(highest),
                Some(_) | None => return Ok(()),
            }
        }
    }
}

type Parameter<'a> = &'a (dyn tokio_postgres::types::ToSql + Sync);

impl Scope {
    /// Refuses an outbox whose rows row level security hides, because the audit would not miss
    /// those rows.
    async fn refuse_hidden(&self, outbox: &SqlClient) -> Result<(), InboxError> {
        let tables: Vec<_> = self.tables.iter().map(|it| it.table.clone()).collect();
        refuse_hidden_rows(outbox, &tables, TableAccess::Read).await.map_err(InboxError::Outbox)
    }

    /// Returns the parameters of [`settled_rows`].
    fn parameters(&self) -> [Parameter<'_>; 5] {
        [&self.since, &self.until, &self.slots, &self.aggregate_types, &self.settled_by]
    }
}

impl ConsumerGeneration {
    /// Returns an event's row in the inbox, without its message. Null if there is no row.
    pub async fn trace(&self, client: &SqlClient, event_id: &str) -> Result<Value, InboxError> {
        // A dead event that holds its key has no next attempt.
        let sql = sql!("audit.sql", "trace");
        let (name, generation) = self.place();
        let row = client.query_opt(sql, &[&name, &generation, &event_id]).await;
        Ok(object_of(row.map_err(failed("read the inbox"))?.as_ref()))
    }

    /// Returns whether the inbox may lack an event that occurred at this time: the consumer was not
    /// registered yet, or `consumer prune` may have deleted the row.
    pub async fn may_be_absent(
        &self,
        client: &SqlClient,
        occurred_at: Option<&str>,
    ) -> Result<bool, InboxError> {
        let sql = sql!("audit.sql", "may_be_absent");
        let row = client.query_one(sql, &[&self.place().0, &occurred_at]).await;
        Ok(row.map_err(failed("read the consumer"))?.get(0))
    }

    /// Returns the status of each of these events that the inbox has, without those that
    /// `--dedupe position` discarded.
    async fn held(
        &self,
        client: &SqlClient,
        ids: &[String],
    ) -> Result<BTreeMap<String, String>, InboxError> {
        let sql = sql!("audit.sql", "held");
        let (name, generation) = self.place();
        let rows = client.query(sql, &[&name, &generation, &ids]).await;
        let rows = rows.map_err(failed("read the inbox"))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Returns the inbox's events that occurred in this time range, without those that `--dedupe
    /// position` discarded.
    async fn seen(
        &self,
        client: &SqlClient,
        since: SystemTime,
        until: SystemTime,
    ) -> Result<Seen, InboxError> {
        let sql = sql!("audit.sql", "seen");
        let (name, generation) = self.place();
        let rows = client.query(sql, &[&name, &generation, &since, &until]).await;
        let mut seen = Seen::default();
        for row in &rows.map_err(failed("read the inbox"))? {
            seen.minutes.entry(row.get(0)).or_default().add(row);
            *seen.statuses.entry((row.get(0), row.get(3))).or_default() += row.get::<_, i64>(1);
            let first: SystemTime = row.get(4);
            seen.first = Some(seen.first.map_or(first, |other| other.min(first)));
        }
        Ok(seen)
    }

    /// Returns the time before which finished events were deleted, if any were, and the time at which
    /// the consumer began: its first event, or its registration if that is earlier.
    pub(crate) async fn begin(
        &self,
        client: &SqlClient,
    ) -> Result<(Option<SystemTime>, SystemTime), InboxError> {
        let (name, generation) = self.place();
        let row = client.query_one(sql!("audit.sql", "begin"), &[&name, &generation]).await;
        let row = row.map_err(failed("read the consumer"))?;
        Ok((row.get("pruned_before"), row.get("began")))
    }
}

pub(super) fn object_of(row: Option<&Row>) -> Value {
    row.map_or(Value::Null, object)
}

/// Converts an error of the outbox's database, which may have another operator than the inbox's.
pub(super) fn outbox_failed(action: &str) -> impl FnOnce(tokio_postgres::Error) -> InboxError {
    let action = action.to_owned();
    move |source| InboxError::Outbox(SqlError::Sql { action, source })
}
