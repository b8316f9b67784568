//! The proof that what an outbox has published is in an inbox.
//!
//! Outbox and inbox may stand in two databases, so nothing is joined: both sides count and hash their
//! event ids by minute of `occurred_at`, and only minutes that differ are compared id by id. A row
//! that is in the inbox and not in the outbox is no finding: outboxes are pruned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio_postgres::Row;
use walrelay_postgres::{QualifiedName, SqlClient, quote_identifier};

use crate::admin::failed;
use crate::error::InboxError;
use crate::operate::InConsumer;

/// Ids compared at once.
const PAGE: usize = 10_000;

/// Missing events that are listed; the others are counted.
const LISTED: usize = 1_000;

/// An outbox table and what its columns are called.
#[derive(Debug, Clone)]
pub struct AuditedTable {
    /// The table.
    pub table: QualifiedName,
    /// Its event id.
    pub id: String,
    /// Its moment; every event has one, or the audit says that there is none.
    pub occurred_at: String,
    /// What tells which events a consumer reads, and those that count; all of them when empty.
    pub aggregate_type: String,
}

/// Which rows are looked at.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The relay that published them.
    pub slot: String,
    /// The outbox.
    pub tables: Vec<AuditedTable>,
    /// Only rows that occurred at this moment or later.
    pub since: SystemTime,
    /// Only rows that occurred before it: what is younger may be on its way.
    pub until: SystemTime,
    /// Only rows of these aggregate types; all when empty.
    pub aggregate_types: Vec<String>,
}

/// What an audit of one consumer has found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Settled rows of the outbox that should be there.
    pub rows: u64,
    /// The first of the events that are not, with the moment they occurred.
    pub missing: Vec<(String, SystemTime)>,
    /// How many are not.
    pub missing_count: u64,
    /// What the inbox holds of the same time, by status.
    pub inbox: BTreeMap<String, i64>,
    /// Since when the audit looks: later than asked for where the inbox was pruned.
    pub since: Option<SystemTime>,
}

impl Findings {
    fn miss(&mut self, event_id: String, occurred_at: SystemTime) {
        self.missing_count += 1;
        if self.missing.len() < LISTED {
            self.missing.push((event_id, occurred_at));
        }
    }
}

/// How many ids, and all of them folded into one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Digest {
    count: i64,
    hash: i64,
}

/// Minutes since 1970, with what occurred in them.
type Minutes = BTreeMap<i64, Digest>;

/// Compares the settled rows of the outbox with the inbox of one consumer.
///
/// # Errors
///
/// One of the databases refuses.
pub async fn audit(
    outbox: &SqlClient,
    (inbox, consumer): (&SqlClient, &InConsumer),
    scope: &Scope,
) -> Result<Findings, InboxError> {
    let pruned = consumer.pruned_before(inbox).await?;
    let since = pruned.map_or(scope.since, |pruned| pruned.max(scope.since));
    let scope = Scope { since, ..scope.clone() };
    let settled = settled_minutes(outbox, &scope).await?;
    let seen = seen_minutes(inbox, consumer, &scope).await?;
    let rows = settled.values().map(|digest| u64::try_from(digest.count).unwrap_or_default()).sum();
    let mut findings = Findings {
        rows,
        inbox: consumer.statuses(inbox, (scope.since, scope.until)).await?,
        since: (since > SystemTime::UNIX_EPOCH).then_some(since),
        ..Findings::default()
    };
    for (minute, digest) in &settled {
        if seen.get(minute) != Some(digest) {
            for table in &scope.tables {
                let of = Minute { table, minute: *minute, scope: &scope };
                of.compare(outbox, (inbox, consumer), &mut findings).await?;
            }
        }
    }
    Ok(findings)
}

/// Rows of the outbox that wait in dispatch state or were given up there, by status: they are in no
/// inbox, and not missing.
///
/// # Errors
///
/// The database refuses.
pub async fn held_back(
    outbox: &SqlClient,
    slot: &str,
) -> Result<BTreeMap<String, i64>, InboxError> {
    let sql = "SELECT status, count(*) FROM public.app_outbox_dispatch
                WHERE slot = $1 AND status <> 'published' GROUP BY status";
    let rows = outbox.query(sql, &[&slot]).await.map_err(failed("count dispatch state"))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn settled_minutes(outbox: &SqlClient, scope: &Scope) -> Result<Minutes, InboxError> {
    let mut minutes = Minutes::new();
    for table in &scope.tables {
        let AuditedTable { id, occurred_at, .. } = &quoted(table);
        let sql = format!(
            "SELECT floor(extract(epoch FROM o.{occurred_at}) / 60)::int8, count(*),
                    bit_xor(hashtextextended(o.{id}::text, 0))
               FROM {} GROUP BY 1",
            settled_rows(table)
        );
        let SettledParameters { since, until, slot, types } = scope.parameters();
        let rows = outbox.query(&sql, &[since, until, slot, types]).await;
        for row in &rows.map_err(failed("read the outbox"))? {
            let (minute, digest) = digest_of(row);
            let known = minutes.entry(minute).or_default();
            known.count += digest.count;
            known.hash ^= digest.hash;
        }
    }
    Ok(minutes)
}

/// Parameters: since, until, slot, aggregate types. The comparison of transactions is that of `prune`.
fn settled_rows(table: &AuditedTable) -> String {
    let AuditedTable { table, id, occurred_at, aggregate_type } = &quoted(table);
    let kind = match aggregate_type.as_str() {
        "" => "NULL::text".to_owned(),
        column => format!("o.{column}::text"),
    };
    format!(
        "{table} AS o
          WHERE o.{occurred_at} >= $1 AND o.{occurred_at} < $2
            AND age(o.xmin) > (SELECT age(r.settled_xid::xid) FROM public.app_outbox_relay AS r
                                WHERE r.slot = $3)
            AND (cardinality($4::text[]) = 0 OR {kind} = ANY ($4))
            AND NOT EXISTS (SELECT FROM public.app_outbox_dispatch AS d
                             WHERE d.slot = $3 AND d.event_id = o.{id}::text AND d.status <> 'published')"
    )
}

async fn seen_minutes(
    inbox: &SqlClient,
    consumer: &InConsumer,
    scope: &Scope,
) -> Result<Minutes, InboxError> {
    let sql = "SELECT floor(extract(epoch FROM i.occurred_at) / 60)::int8, count(*),
                      bit_xor(hashtextextended(i.event_id, 0))
                 FROM public.app_inbox AS i
                WHERE i.consumer = $1 AND i.generation = $2 AND i.occurred_at >= $3 AND i.occurred_at < $4
                GROUP BY 1";
    let (name, generation) = consumer.place();
    let rows = inbox.query(sql, &[&name, &generation, &scope.since, &scope.until]).await;
    Ok(rows.map_err(failed("read the inbox"))?.iter().map(digest_of).collect())
}

fn digest_of(row: &Row) -> (i64, Digest) {
    (row.get(0), Digest { count: row.get(1), hash: row.get(2) })
}

/// The settled rows of one minute in one table.
struct Minute<'a> {
    table: &'a AuditedTable,
    minute: i64,
    scope: &'a Scope,
}

impl Minute<'_> {
    /// Looks for each of its ids in the inbox.
    async fn compare(
        &self,
        outbox: &SqlClient,
        (inbox, consumer): (&SqlClient, &InConsumer),
        findings: &mut Findings,
    ) -> Result<(), InboxError> {
        let AuditedTable { id, occurred_at, .. } = &quoted(self.table);
        let sql = format!(
            "SELECT o.{id}::text, o.{occurred_at} FROM {}
                AND floor(extract(epoch FROM o.{occurred_at}) / 60)::int8 = $5
                AND o.{id}::text COLLATE \"C\" > $6
              ORDER BY o.{id}::text COLLATE \"C\" LIMIT {PAGE}",
            settled_rows(self.table)
        );
        let SettledParameters { since, until, slot, types } = self.scope.parameters();
        let mut last = String::new();
        loop {
            let parameters: [Parameter<'_>; 6] = [since, until, slot, types, &self.minute, &last];
            let page = outbox.query(&sql, &parameters).await.map_err(failed("read the outbox"))?;
            let ids: Vec<String> = page.iter().map(|row| row.get(0)).collect();
            let held = consumer.held(inbox, &ids).await?;
            for row in page.iter().filter(|row| !held.contains(row.get::<_, &str>(0))) {
                findings.miss(row.get(0), row.get(1));
            }
            match ids.last() {
                Some(highest) if ids.len() == PAGE => last.clone_from(highest),
                Some(_) | None => return Ok(()),
            }
        }
    }
}

type Parameter<'a> = &'a (dyn tokio_postgres::types::ToSql + Sync);

struct SettledParameters<'a> {
    since: Parameter<'a>,
    until: Parameter<'a>,
    slot: Parameter<'a>,
    types: Parameter<'a>,
}

impl Scope {
    fn parameters(&self) -> SettledParameters<'_> {
        SettledParameters {
            since: &self.since,
            until: &self.until,
            slot: &self.slot,
            types: &self.aggregate_types,
        }
    }
}

fn quoted(table: &AuditedTable) -> AuditedTable {
    let quote = |name: &str| match name {
        "" => String::new(),
        name => quote_identifier(name),
    };
    AuditedTable {
        table: table.table.clone(),
        id: quote(&table.id),
        occurred_at: quote(&table.occurred_at),
        aggregate_type: quote(&table.aggregate_type),
    }
}

/// An event's row in the outbox, without its payload; null when there is none.
///
/// # Errors
///
/// The database refuses.
pub async fn trace_outbox(
    outbox: &SqlClient,
    (slot, table): (&str, &QualifiedName),
    (id, event_id): (&str, &str),
) -> Result<Value, InboxError> {
    let id = quote_identifier(id);
    let sql = format!(
        "SELECT (to_jsonb(o) - ARRAY['payload', 'headers'] || jsonb_build_object(
                  'settled', age(o.xmin) > (SELECT age(r.settled_xid::xid)
                                              FROM public.app_outbox_relay AS r WHERE r.slot = $2)))::text
           FROM {table} AS o WHERE o.{id}::text = $1"
    );
    one(outbox, &sql, &[&event_id, &slot], "read the outbox").await
}

/// An event's row in dispatch state, without its message; null when there is none.
///
/// # Errors
///
/// The database refuses.
pub async fn trace_dispatch(
    outbox: &SqlClient,
    slot: &str,
    event_id: &str,
) -> Result<Value, InboxError> {
    let sql = "SELECT (to_jsonb(d) - 'message')::text FROM public.app_outbox_dispatch AS d
                WHERE d.slot = $1 AND d.event_id = $2";
    one(outbox, sql, &[&slot, &event_id], "read dispatch state").await
}

impl InConsumer {
    /// An event's row in the inbox, without its message; null when there is none.
    ///
    /// # Errors
    ///
    /// The database refuses.
    pub async fn trace(&self, client: &SqlClient, event_id: &str) -> Result<Value, InboxError> {
        let sql = "SELECT (to_jsonb(i) - 'message')::text FROM public.app_inbox AS i
                    WHERE i.consumer = $1 AND i.generation = $2 AND i.event_id = $3";
        let (name, generation) = self.place();
        one(client, sql, &[&name, &generation, &event_id], "read the inbox").await
    }

    /// Which of these events the inbox has, in whatever state.
    async fn held(
        &self,
        client: &SqlClient,
        ids: &[String],
    ) -> Result<BTreeSet<String>, InboxError> {
        let sql = "SELECT event_id FROM public.app_inbox
                    WHERE consumer = $1 AND generation = $2 AND event_id = ANY ($3)";
        let (name, generation) = self.place();
        let rows = client.query(sql, &[&name, &generation, &ids]).await;
        Ok(rows.map_err(failed("read the inbox"))?.iter().map(|row| row.get(0)).collect())
    }

    async fn statuses(
        &self,
        client: &SqlClient,
        (since, until): (SystemTime, SystemTime),
    ) -> Result<BTreeMap<String, i64>, InboxError> {
        let sql = "SELECT status, count(*) FROM public.app_inbox
                    WHERE consumer = $1 AND generation = $2 AND occurred_at >= $3 AND occurred_at < $4
                    GROUP BY status";
        let (name, generation) = self.place();
        let rows = client.query(sql, &[&name, &generation, &since, &until]).await;
        let rows = rows.map_err(failed("count the inbox"))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Finished events received before this moment were deleted.
    async fn pruned_before(&self, client: &SqlClient) -> Result<Option<SystemTime>, InboxError> {
        let sql = "SELECT pruned_before FROM public.app_inbox_consumer WHERE consumer = $1";
        let row = client.query_one(sql, &[&self.place().0]).await;
        Ok(row.map_err(failed("read the consumer"))?.get(0))
    }
}

async fn one(
    client: &SqlClient,
    sql: &str,
    parameters: &[Parameter<'_>],
    action: &str,
) -> Result<Value, InboxError> {
    let row = client.query_opt(sql, parameters).await.map_err(failed(action))?;
    Ok(row.map_or(Value::Null, |row| serde_json::from_str(row.get(0)).unwrap_or(json!(null))))
}
