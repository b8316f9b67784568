//! The consumer's database: its row, its handler, and one exchange for one batch.
//!
//! Nothing here needs a session: each exchange is a transaction of its own with unnamed statements, so
//! that all of it works through a pooler in transaction mode.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{PgLsn, ToSql, Type};
use tokio_postgres::{Error as SqlError, Row};
use walrelay_inbox_core::{Failure, Fate};
use walrelay_postgres::{ConnectConfig, PgError, SqlClient, connect_sql};

use crate::event::Event;
use crate::settings::{Dedupe, OnDead};

/// How long a batch may take in the server. A handler that takes longer is tried with fewer events.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Beyond the server's own time-out: it is gone, and nobody knows whether it committed.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(75);

/// READ COMMITTED, because whoever has waited for a lock must see what the other has done (C11). Only
/// a commit that is on disk may be acknowledged (C2).
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
     SELECT pg_catalog.set_config('statement_timeout', '60s', true), \
            pg_catalog.set_config('lock_timeout', '5s', true), \
            pg_catalog.set_config('idle_in_transaction_session_timeout', '30s', true), \
            CASE pg_catalog.current_setting('synchronous_commit') \
              WHEN 'off' THEN pg_catalog.set_config('synchronous_commit', 'local', true) END";

/// Columns travel as arrays of built-in types, which need no look-up of the composite type's number.
const APPLY: &str = "SELECT a.result, a.error_code \
     FROM public.app_inbox_apply($1, $2, $3::text::pg_catalog.regprocedure, ARRAY( \
       SELECT ROW(m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.ordering_key, \
                  m.version, m.schema_version, m.occurred_at, m.commit_lsn, m.tx_index, \
                  m.system_identifier, m.message_id, m.publish_time, m.attributes, m.data \
              )::public.app_inbox_message \
         FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[], \
                $9::int8[], $10::int4[], $11::timestamptz[], $12::pg_lsn[], $13::int4[], \
                $14::text[], $15::text[], $16::timestamptz[], $17::text[], $18::bytea[]) \
           AS m(event_id, event_type, aggregate_type, aggregate_id, ordering_key, \
                version, schema_version, occurred_at, commit_lsn, tx_index, \
                system_identifier, message_id, publish_time, attributes, data)), \
       on_dead => $19, max_attempts => $20, dedupe => $21) AS a ORDER BY a.index";

const REDELIVER: &str = "SELECT r.result, r.error_code FROM public.app_inbox_redeliver( \
       $1, $2, $3::text::pg_catalog.regprocedure, on_dead => $4, max_attempts => $5, batch => $6) AS r";

/// What every batch of this consumer is applied with.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) consumer: String,
    pub(crate) generation: i32,
    /// As `regprocedure` reads it.
    pub(crate) handler: String,
    pub(crate) on_dead: OnDead,
    pub(crate) max_attempts: i32,
    pub(crate) dedupe: Dedupe,
    pub(crate) batch: i32,
}

/// The consumer's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// `projects/P/subscriptions/S`.
    pub subscription: String,
    /// Events are seen or unseen within one.
    pub generation: i32,
    /// Nothing is applied.
    pub paused: bool,
}

/// What became of one event: a status of the inbox, `duplicate` or `deferred`; and why it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) result: String,
    pub(crate) error_code: Option<String>,
}

impl Applied {
    fn of_row(row: &Row) -> Self {
        Self { result: row.get(0), error_code: row.get(1) }
    }

    pub(crate) fn fate(&self) -> Fate {
        if self.result == "deferred" { Fate::Deferred } else { Fate::Finished }
    }
}

/// Why an exchange did not commit, as far as anybody knows.
#[derive(Debug)]
pub(crate) enum Unapplied {
    /// No connection.
    Connect(PgError),
    /// The server's answer, or a connection that broke.
    Sql(SqlError),
    /// No answer at all.
    Silent,
    /// Fewer answers than events: not our functions.
    Garbled,
}

impl Unapplied {
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Connect(error) => match error.server() {
                Some(answer) => Failure::of_sqlstate(Some(&answer.code)),
                None => Failure::Outage,
            },
            Self::Sql(error) => Failure::of_sqlstate(error.code().map(SqlState::code)),
            Self::Silent => Failure::Outage,
            Self::Garbled => Failure::Operator,
        }
    }
}

impl std::fmt::Display for Unapplied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{}", chain(error)),
            Self::Sql(error) => match error.as_db_error() {
                // Not the detail, which may quote data.
                Some(answer) => {
                    write!(f, "{} (SQLSTATE {})", answer.message(), answer.code().code())?;
                    answer.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
                }
                None => write!(f, "{}", chain(error)),
            },
            Self::Silent => {
                write!(f, "the database did not answer within {} s", EXCHANGE_TIMEOUT.as_secs())
            }
            Self::Garbled => f.write_str("app_inbox_apply is not the one of this version"),
        }
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// A connection that is opened when it is needed, and again after it broke.
#[derive(Debug)]
pub(crate) struct Connection {
    config: Arc<ConnectConfig>,
    client: Option<SqlClient>,
}

impl Connection {
    pub(crate) const fn new(config: Arc<ConnectConfig>) -> Self {
        Self { config, client: None }
    }

    /// Says goodbye.
    pub(crate) async fn close(self) {
        if let Some(client) = self.client {
            client.close().await;
        }
    }

    /// Applies a batch and commits. A fate for each event, only if the commit is known (C2).
    pub(crate) async fn apply(
        &mut self,
        plan: &Plan,
        events: &[Arc<Event>],
    ) -> Result<Vec<Applied>, Unapplied> {
        let columns = Columns::of(events);
        let parameters = columns.parameters(plan);
        let applied = self.transact(APPLY, &borrowed(&parameters)).await?;
        if applied.len() == events.len() { Ok(applied) } else { Err(Unapplied::Garbled) }
    }

    /// Tries again what has failed and is due.
    pub(crate) async fn redeliver(&mut self, plan: &Plan) -> Result<Vec<Applied>, Unapplied> {
        let on_dead = plan.on_dead.name();
        let parameters: [Parameter<'_>; 6] = [
            (&plan.consumer, Type::TEXT),
            (&plan.generation, Type::INT4),
            (&plan.handler, Type::TEXT),
            (&on_dead, Type::TEXT),
            (&plan.max_attempts, Type::INT4),
            (&plan.batch, Type::INT4),
        ];
        self.transact(REDELIVER, &parameters).await
    }

    /// One round trip: everything is on its way before the first answer is waited for.
    async fn transact(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Applied>, Unapplied> {
        let client = self.client().await?;
        let exchange = async {
            futures_util::join!(
                client.batch_execute(BEGIN),
                client.query_typed(sql, parameters),
                client.batch_execute("COMMIT"),
            )
        };
        let Ok((begun, rows, committed)) = timeout(EXCHANGE_TIMEOUT, exchange).await else {
            self.client = None;
            return Err(Unapplied::Silent);
        };
        // After a failed statement COMMIT rolls back, and says so without an error: the statement's
        // own error comes first.
        let outcome = match (begun, rows, committed) {
            (Ok(()), Ok(applied), Ok(())) => Ok(applied),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Err(Unapplied::Sql(error)),
        };
        if client.is_closed() {
            self.client = None;
        }
        outcome.map(|applied| applied.iter().map(Applied::of_row).collect())
    }

    /// The consumer's row; `None` when there is none.
    pub(crate) async fn registration(
        &mut self,
        consumer: &str,
    ) -> Result<Option<Registration>, Unapplied> {
        let client = self.client().await?;
        let sql = "SELECT subscription, generation, paused FROM public.app_inbox_consumer WHERE consumer = $1";
        let parameters: [Parameter<'_>; 1] = [(&consumer, Type::TEXT)];
        let answer = timeout(STATEMENT_TIMEOUT, client.query_typed(sql, &parameters)).await;
        if client.is_closed() || answer.is_err() {
            self.client = None;
        }
        let rows = answer.map_err(|_| Unapplied::Silent)?.map_err(Unapplied::Sql)?;
        Ok(rows.first().map(|row| Registration {
            subscription: row.get(0),
            generation: row.get(1),
            paused: row.get(2),
        }))
    }

    async fn client(&mut self) -> Result<&SqlClient, Unapplied> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => connect_sql(&self.config).await.map_err(Unapplied::Connect)?,
        };
        Ok(self.client.insert(client))
    }
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

fn borrowed<'a>(owned: &'a [(Box<dyn ToSql + Sync + Send + 'a>, Type)]) -> Vec<Parameter<'a>> {
    owned.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect()
}

/// The events of a batch, column by column.
struct Columns<'a> {
    events: &'a [Arc<Event>],
    attributes: Vec<String>,
}

impl<'a> Columns<'a> {
    fn of(events: &'a [Arc<Event>]) -> Self {
        let attributes = events.iter().map(|event| event.attributes_json()).collect();
        Self { events, attributes }
    }

    fn column<T: ToSql + Sync + Send + 'a>(
        &self,
        kind: Type,
        value: impl Fn(&'a Event) -> T,
    ) -> (Box<dyn ToSql + Sync + Send + 'a>, Type) {
        let values: Vec<T> = self.events.iter().map(|event| value(event)).collect();
        (Box::new(values), kind)
    }

    fn parameters(&'a self, plan: &'a Plan) -> Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)> {
        let lsn = |event: &'a Event| event.commit_lsn.map(|lsn| PgLsn::from(lsn.as_u64()));
        let time = |time: Option<SystemTime>| time;
        vec![
            (Box::new(&plan.consumer), Type::TEXT),
            (Box::new(plan.generation), Type::INT4),
            (Box::new(&plan.handler), Type::TEXT),
            self.column(Type::TEXT_ARRAY, |event| &event.event_id),
            self.column(Type::TEXT_ARRAY, |event| &event.event_type),
            self.column(Type::TEXT_ARRAY, |event| &event.aggregate_type),
            self.column(Type::TEXT_ARRAY, |event| &event.aggregate_id),
            self.column(Type::TEXT_ARRAY, |event| &event.ordering_key),
            self.column(Type::INT8_ARRAY, |event| event.version),
            self.column(Type::INT4_ARRAY, |event| event.schema_version),
            self.column(Type::TIMESTAMPTZ_ARRAY, |event| time(event.occurred_at)),
            self.column(Type::PG_LSN_ARRAY, lsn),
            self.column(Type::INT4_ARRAY, |event| event.tx_index),
            self.column(Type::TEXT_ARRAY, |event| &event.system_identifier),
            self.column(Type::TEXT_ARRAY, |event| &event.message_id),
            self.column(Type::TIMESTAMPTZ_ARRAY, |event| time(event.publish_time)),
            (Box::new(&self.attributes), Type::TEXT_ARRAY),
            self.column(Type::BYTEA_ARRAY, |event| event.data.as_ref()),
            (Box::new(plan.on_dead.name()), Type::TEXT),
            (Box::new(plan.max_attempts), Type::INT4),
            (Box::new(plan.dedupe.name()), Type::TEXT),
        ]
    }
}

/// Finds the handler and writes it so that `regprocedure` reads it whatever the search path is.
pub(crate) async fn resolve_handler(
    client: &SqlClient,
    name: &str,
) -> Result<Vec<String>, SqlError> {
    let sql = "SELECT pg_catalog.format('%I.%I(%s)', n.nspname, p.proname, \
                 CASE WHEN p.proargtypes[0] = 'public.app_inbox_event'::pg_catalog.regtype \
                      THEN 'public.app_inbox_event' ELSE 'public.app_inbox_event[]' END) \
          FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE p.pronargs = 1 AND p.prokind = 'f' AND p.prorettype = 'void'::pg_catalog.regtype \
           AND NOT p.proretset \
           AND p.proargtypes[0] IN ('public.app_inbox_event'::pg_catalog.regtype, \
                                    'public.app_inbox_event[]'::pg_catalog.regtype) \
           AND CASE WHEN pg_catalog.cardinality(pg_catalog.parse_ident($1)) = 1 \
                    THEN pg_catalog.pg_function_is_visible(p.oid) \
                     AND p.proname = (pg_catalog.parse_ident($1))[1] \
                    ELSE n.nspname = (pg_catalog.parse_ident($1))[1] \
                     AND p.proname = (pg_catalog.parse_ident($1))[2] END \
         ORDER BY 1";
    let parameters: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
    let rows = client.query_typed(sql, &parameters).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
