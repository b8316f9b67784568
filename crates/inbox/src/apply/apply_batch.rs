//! The consumer's database: its row, its handler, and one exchange per batch.
//!
//! No function here needs a session. Each exchange is one transaction with unnamed statements, so
//! that it works through a pooler in transaction mode.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use walrelay_errors::Chain;
use walrelay_inbox_core::{Fate, Standing, is_uncounted_failure, uncounted_code_prefixes};
use walrelay_pg_client::{
    ConnectConfig, NO_TRANSACTION_TIMEOUT, Parameter, SCHEMA, SqlClient, SqlText, connect_shared,
    sql,
};

use crate::access::refuse_hidden_writes;
use crate::apply::apply_error::ApplyError;
use crate::apply::apply_options::{Plan, VERSION_GAP};
use crate::apply::handler_kind::Kind;
use crate::columns::{Columns, MESSAGES, borrowed};
use crate::error::InboxError;
use crate::event::Event;
use crate::pending_counts::{COUNTED_MAX, STUCK, STUCK_COUNTED, WAITING, Waiting, stuck};
use crate::unfinished_rebuild::UnfinishedRebuild;

/// The time to wait beyond the server's own time-out. After that the connection is dead, and the
/// commit is unknown.
const ANSWER_GRACE: Duration = Duration::from_secs(15);

/// The time in which a new session must report whether it may write.
const WRITABLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time in which the server must return the consumer's row.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// READ COMMITTED, because a transaction that waited for a lock must see the other's changes (C11).
/// `settings` enables `synchronous_commit`, because only a durable commit may be acknowledged (C2).
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

pub(crate) static APPLY: LazyLock<String> = LazyLock::new(|| {
    // spliced: MESSAGES.
    format!(
        "SELECT array_agg(a.result), array_agg(a.error_code) FROM (SELECT o.result, o.error_code \
         FROM {SCHEMA}.app_inbox_apply($1, $2, $18::text::pg_catalog.regprocedure, {MESSAGES}, \
           on_dead => $19, max_attempts => $20, dedupe => $21, on_gap => $22) AS o ORDER BY o.index) AS a"
    )
});

pub(crate) static REDELIVER: SqlText = SqlText::new(|| sql!("apply_batch.sql", "redeliver"));

/// Ends the transaction. A second transaction then resets the session settings that a handler made.
/// Every batch starts from the same settings, and a pooler passes none to another client. The
/// inbox's functions have restored the settings that the commit rests on.
const COMMIT: &str = "COMMIT AND CHAIN; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; COMMIT";

/// The results that an event can have.
pub(crate) const RESULTS: [&str; 7] =
    ["done", "duplicate", "late", "deferred", "retrying", "dead", "discarded"];

/// The consumer's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The full name, `projects/P/subscriptions/S`.
    pub subscription: String,
    /// The generation. Each generation records separately which events were seen.
    pub generation: i32,
    /// Whether the consumer is paused.
    pub paused: bool,
    /// A rebuild that is not finished.
    pub rebuild: Option<UnfinishedRebuild>,
}

/// The result of a periodic check.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    /// The consumer's row. `None` if there is no row.
    pub(crate) registration: Option<Registration>,
    /// The reason why the row is missing, if row level security hides it.
    pub(crate) hidden: Option<String>,
    /// The report of an event that fails alone, because something that it needs is missing or
    /// locked.
    pub(crate) stuck: Option<String>,
    pub(crate) waiting: Waiting,
}

/// The result of one event (a status of the inbox, `duplicate` or `deferred`) and its error code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) result: &'static str,
    pub(crate) error_code: Option<String>,
    /// The id of a stored event. `None` for an event of a batch, because the caller knows the
    /// batch's events.
    pub(crate) event_id: Option<String>,
    /// The type of a stored event.
    pub(crate) event_type: Option<String>,
}

impl Applied {
    /// Reads the answer of the inbox's functions.
    pub(crate) fn of(result: &str, error_code: Option<String>) -> Self {
        let known = RESULTS.into_iter().find(|known| *known == result);
        Self { result: known.unwrap_or("other"), error_code, event_id: None, event_type: None }
    }

    pub(crate) fn stored(self, event_id: String, event_type: Option<String>) -> Self {
        Self { event_id: Some(event_id), event_type, ..self }
    }

    /// Reads the results of a whole batch from one row, because one row per event costs more. The
    /// arrays are null if the batch has no events.
    pub(crate) fn of_row(row: &Row) -> Vec<Self> {
        let results: Option<Vec<&str>> = row.get(0);
        let codes: Option<Vec<Option<String>>> = row.get(1);
        let both = results.unwrap_or_default().into_iter().zip(codes.unwrap_or_default());
        let applied: Vec<Self> = both.map(|(result, code)| Self::of(result, code)).collect();
        match row.try_get::<_, Option<Vec<String>>>(2) {
            Ok(Some(ids)) => {
                let types: Option<Vec<Option<String>>> = row.get(3);
                let stored = applied.into_iter().zip(ids).zip(types.unwrap_or_default());
                stored.map(|((it, id), event_type)| it.stored(id, event_type)).collect()
            }
            Ok(None) | Err(_) => applied,
        }
    }

    /// Returns the error code of an event that was not applied.
    pub(crate) fn failed_with(&self) -> Option<&str> {
        let has_failed = matches!(self.result, "retrying" | "dead");
        self.error_code.as_deref().filter(|_| has_failed)
    }

    /// Returns a description of the error for logs.
    pub(crate) fn complaint(&self) -> &'static str {
        match self.error_code.as_deref() {
            Some(VERSION_GAP) => "a version of its key is missing before an event",
            Some(ID_COLLISION) => "a different event has the id of an event",
            Some(code) if is_uncounted_failure(code) => {
                "an event is stored without an attempt: its key waits until the cause is fixed"
            }
            Some(_) | None => "the handler failed on an event",
        }
    }

    /// Returns whether the event was unseen and is recorded, so that the handler has to run.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.result, "done" | "late")
    }

    /// Returns whether a redelivery has changed any row. An event that failed again counts, because
    /// it now has a later due time. Each redelivery takes a limited number of rows. With one
    /// redelivery per second, hundreds of failing keys would delay the others by minutes.
    pub(crate) fn any_row_changed(found: &[Self]) -> bool {
        found.iter().any(|it| it.fate() != Fate::Deferred)
    }

    pub(crate) fn fate(&self) -> Fate {
        match self.result {
            "deferred" => Fate::Deferred,
            _ if self.is_new() => Fate::Applied,
            _ => Fate::Recorded,
        }
    }
}

/// The error code of an event whose id belongs to a different event.
const ID_COLLISION: &str = "ID_COLLISION";

/// Returns the settings of a transaction that applies events. A handler may wait for something
/// outside the database, so the idle time-out exceeds our own. Where the operating system allows
/// it, the server checks that the client is connected. Otherwise an abandoned transaction would
/// continue and keep its keys locked.
pub(crate) fn settings(plan: &Plan) -> String {
    let most = plan.handler_timeout.as_millis();
    let (lock, idle) = (plan.lock_timeout.as_millis().max(1), most + 30_000);
    // spliced: the time-outs, because a batch of statements takes no parameters.
    format!(
        "SELECT {NO_TRANSACTION_TIMEOUT}, \
                pg_catalog.set_config('statement_timeout', '{most}', true), \
                pg_catalog.set_config('lock_timeout', '{lock}', true), \
                pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle}', true), \
                CASE WHEN pg_catalog.version() LIKE '%linux%' \
                  THEN pg_catalog.set_config('client_connection_check_interval', '1000', true) END, \
                CASE pg_catalog.current_setting('synchronous_commit') \
                  WHEN 'off' THEN pg_catalog.set_config('synchronous_commit', 'local', true) END"
    )
}

pub(crate) fn exchange_timeout(plan: &Plan) -> Duration {
    plan.handler_timeout + ANSWER_GRACE
}

/// A connection that is opened on first use, and again after it broke.
#[derive(Debug)]
pub(crate) struct Connection {
    config: Arc<ConnectConfig>,
    client: Option<SqlClient>,
}

impl Connection {
    pub(crate) const fn new(config: Arc<ConnectConfig>) -> Self {
        Self { config, client: None }
    }

    pub(crate) async fn close(self) {
        if let Some(client) = self.client {
            client.close().await;
        }
    }

    /// Applies a batch and commits. Returns a result for each event only if the commit is known
    /// (C2).
    pub(crate) async fn apply(
        &mut self,
        plan: &Plan,
        events: &[Arc<Event>],
        standing: Standing,
    ) -> Result<Vec<Applied>, ApplyError> {
        // The last attempt waits for locks as long as usual, because another batch may have held
        // the lock before.
        let doubtful = (standing == Standing::Doubtful).then(|| plan.doubtful());
        let trial = doubtful.as_ref().unwrap_or(plan);
        let ended = match &plan.effect.0 {
            Kind::Function(name) => self.apply_by(name, trial, events).await,
            Kind::Handler(handler) => self.apply_with(&**handler, trial, events).await,
        };
        let is_its_own = |cause: &ApplyError| {
            cause.is_timeout() || (standing == Standing::ToBeStored && cause.may_be_its_own())
        };
        let mut applied = match (ended, events) {
            (Err(cause), [event]) if is_its_own(&cause) => self.refuse(plan, event, &cause).await,
            (Err(cause), _) if cause.is_of_the_session() => {
                Err(self.check_new_session(cause).await)
            }
            (ended, _) => ended,
        }?;
        if applied.len() != events.len() {
            return Err(ApplyError::Garbled);
        }
        // No other event is dead without an attempt.
        for it in applied.iter_mut().filter(|it| it.result == "dead") {
            it.error_code.get_or_insert_with(|| ID_COLLISION.to_owned());
        }
        Ok(applied)
    }

    /// Checks a new session. If the new session may write, the database is reachable, and a handler
    /// caused the error in the old session.
    async fn check_new_session(&mut self, cause: ApplyError) -> ApplyError {
        let Ok(client) = self.client().await else { return cause };
        let sql = "SELECT pg_catalog.current_setting('transaction_read_only')";
        match timeout(WRITABLE_TIMEOUT, client.query_typed_one(sql, &[])).await {
            Ok(Ok(row)) if row.get::<_, &str>(0) == "off" => ApplyError::Severed(Box::new(cause)),
            Ok(Ok(_) | Err(_)) | Err(_) => cause,
        }
    }

    async fn apply_by(
        &mut self,
        function: &str,
        plan: &Plan,
        events: &[Arc<Event>],
    ) -> Result<Vec<Applied>, ApplyError> {
        let columns = Columns::of(events);
        let mut parameters = columns.parameters(plan);
        parameters.push((Box::new(function), Type::TEXT));
        parameters.push((Box::new(plan.on_dead.name()), Type::TEXT));
        parameters.push((Box::new(plan.max_attempts), Type::INT4));
        parameters.push((Box::new(plan.dedupe.name()), Type::TEXT));
        parameters.push((Box::new(plan.on_gap.name()), Type::TEXT));
        self.transact(plan, &APPLY, &borrowed(&parameters)).await
    }

    /// Retries failed events that are due, at most `limit`.
    pub(crate) async fn redeliver(
        &mut self,
        plan: &Plan,
        limit: i32,
    ) -> Result<Vec<Applied>, ApplyError> {
        let ended = match &plan.effect.0 {
            Kind::Function(name) => self.redeliver_by(name, plan, limit).await,
            Kind::Handler(handler) => self.redeliver_with(&**handler, plan, limit).await,
        };
        match ended {
            // An event that fails the whole batch, or waits for a lock, must not block the events
            // behind it.
            Err(cause) if limit == 1 && cause.may_be_its_own() => {
                self.refuse_due(plan, &cause).await
            }
            ended => ended,
        }
    }

    async fn redeliver_by(
        &mut self,
        function: &str,
        plan: &Plan,
        limit: i32,
    ) -> Result<Vec<Applied>, ApplyError> {
        let (on_dead, on_gap) = (plan.on_dead.name(), plan.on_gap.name());
        let parameters: [Parameter<'_>; 7] = [
            (&plan.consumer, Type::TEXT),
            (&plan.generation, Type::INT4),
            (&function, Type::TEXT),
            (&on_dead, Type::TEXT),
            (&plan.max_attempts, Type::INT4),
            (&limit, Type::INT4),
            (&on_gap, Type::TEXT),
        ];
        self.transact(plan, &REDELIVER, &parameters).await
    }

    /// Runs a transaction in one round trip. All statements are sent before the first answer.
    async fn transact(
        &mut self,
        plan: &Plan,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Applied>, ApplyError> {
        let begin = format!("{BEGIN}; {}", settings(plan));
        let client = self.client().await?;
        let exchange = async {
            tokio::join!(
                client.batch_execute(&begin),
                client.query_typed(sql, parameters),
                client.batch_execute(COMMIT),
            )
        };
        let Ok((begun, rows, committed)) = timeout(exchange_timeout(plan), exchange).await else {
            self.client = None;
            return Err(ApplyError::Silent);
        };
        // After a failed statement, COMMIT rolls back and returns no error. The statement's own
        // error therefore comes first.
        let is_torn = committed.is_err();
        let outcome = match (begun, rows, committed) {
            (Ok(()), Ok(applied), Ok(())) => Ok(applied),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Err(ApplyError::Sql(error)),
        };
        // After a failed COMMIT, the second transaction may be open.
        if client.is_closed() || is_torn {
            self.client = None;
        }
        if outcome.as_ref().is_err_and(ApplyError::is_read_only) {
            self.leave().await;
        }
        outcome.map(|applied| applied.iter().flat_map(Applied::of_row).collect())
    }

    /// Reads the consumer's row, and counts pending and dead rows.
    pub(crate) async fn look(&mut self, plan: &Plan) -> Result<Found, ApplyError> {
        let registration = self.registration(&plan.consumer).await?;
        let hidden = match registration {
            Some(_) => None,
            None => self.refuse_hidden().await.err().map(|error| Chain(&error).to_string()),
        };
        let client = self.client().await?;
        let no_attempt: Vec<&str> = uncounted_code_prefixes().collect();
        let consumer: Parameter<'_> = (&plan.consumer, Type::TEXT);
        let generation: Parameter<'_> = (&plan.generation, Type::INT4);
        let of_stuck = [
            consumer.clone(),
            generation.clone(),
            (&no_attempt, Type::TEXT_ARRAY),
            (&STUCK_COUNTED, Type::INT8),
        ];
        let of_waiting = [consumer, generation, (&COUNTED_MAX, Type::INT8)];
        let all = async {
            tokio::join!(
                client.query_typed(&STUCK, &of_stuck),
                client.query_typed(&WAITING, &of_waiting),
            )
        };
        let answer = timeout(LOOK_TIMEOUT, all).await;
        if client.is_closed() || answer.is_err() {
            self.client = None;
        }
        let (rows, waiting) = answer.map_err(|_| ApplyError::Silent)?;
        let (rows, waiting) = (rows.map_err(ApplyError::Sql)?, waiting.map_err(ApplyError::Sql)?);
        let stuck = rows.first().map(|row| stuck(&plan.consumer, row));
        let waiting = waiting.first().map(Waiting::of_row).unwrap_or_default();
        Ok(Found { registration, hidden, stuck, waiting })
    }

    /// Refuses an inbox whose rows row level security hides, if the database answers.
    pub(crate) async fn refuse_hidden(&mut self) -> Result<(), InboxError> {
        let Ok(client) = self.client().await else { return Ok(()) };
        timeout(LOOK_TIMEOUT, refuse_hidden_writes(client)).await.unwrap_or(Ok(()))
    }

    /// Reads the consumer's row. `None` if there is no row.
    pub(crate) async fn registration(
        &mut self,
        consumer: &str,
    ) -> Result<Option<Registration>, ApplyError> {
        let client = self.client().await?;
        let sql = sql!("apply_batch.sql", "registration");
        let parameters: [Parameter<'_>; 1] = [(&consumer, Type::TEXT)];
        let answer = timeout(LOOK_TIMEOUT, client.query_typed(sql, &parameters)).await;
        if client.is_closed() || answer.is_err() {
            self.client = None;
        }
        let rows = answer.map_err(|_| ApplyError::Silent)?.map_err(ApplyError::Sql)?;
        Ok(rows.first().map(|row| Registration {
            subscription: row.get(0),
            generation: row.get(1),
            paused: row.get(2),
            rebuild: UnfinishedRebuild::of_row(row, 3),
        }))
    }

    /// Drops the connection like [`forget`](Self::forget), and closes it properly.
    pub(crate) async fn leave(&mut self) {
        if let Some(client) = self.client.take() {
            client.close().await;
        }
    }

    /// Drops the connection. The next caller gets a new one.
    pub(crate) fn forget(&mut self) {
        self.client = None;
    }

    pub(crate) async fn client(&mut self) -> Result<&mut SqlClient, ApplyError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => connect_shared(&self.config).await.map_err(ApplyError::Connect)?,
        };
        Ok(self.client.insert(client))
    }
}

/// Finds the handler. Returns its name in a form that `regprocedure` reads with every search path.
pub(crate) async fn resolve_handler(
    client: &SqlClient,
    name: &str,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let sql = sql!("apply_batch.sql", "resolve_handler");
    let parameters: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
    let rows = client.query_typed(sql, &parameters).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(results: &[&str]) -> bool {
        let found: Vec<Applied> = results.iter().map(|it| Applied::of(it, None)).collect();
        Applied::any_row_changed(&found)
    }

    #[test]
    fn keys_whose_events_fail_again_do_not_make_the_others_wait() {
        for moved in ["done", "late", "retrying", "dead"] {
            assert!(found(&[moved]), "{moved}");
            assert!(found(&["deferred", moved]), "{moved}");
        }
    }

    #[test]
    fn a_look_that_changes_nothing_is_not_repeated_at_once() {
        assert!(!found(&[]));
        assert!(!found(&["deferred", "deferred"]));
    }
}
