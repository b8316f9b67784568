//! Handlers in Rust, which run inside the consumer's transaction.

use std::collections::BTreeSet;
use std::error::Error;
use std::iter;
use std::ops::Range;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use walrelay_inbox_core::{Failure, PATIENCE, is_of_surroundings, is_uncounted_failure};
use walrelay_pg_client::sql;

use crate::apply::sql_failure::failure_of;
use crate::apply::undelivered::Undelivered;
use crate::event::Event;

/// A server caches 64 subtransactions per transaction. Beyond that, every snapshot of every session
/// has to read the others from disk.
const SAVEPOINTS_MAX: usize = 60;

/// Applies events. The handler's writes through the transaction commit together with the record
/// that the events were seen. The events are acknowledged only after that commit. Actions outside
/// the transaction may happen again.
///
/// Behind a pooler in transaction mode, use `query_typed` and `batch_execute`, because named
/// prepared statements belong to a session.
pub trait Handler: Send + Sync {
    /// Applies all events of one batch, which are ordered within each key, or returns an error and
    /// applies none. After an error the batch is retried in halves, until the failing event is
    /// alone.
    fn handle(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The reason why events were not applied.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// A retry may succeed. The event is retried later, and later events of its key queue behind
    /// it.
    #[error("{0}")]
    Retry(#[source] BoxError),
    /// No retry can succeed.
    #[error("{0}")]
    Dead(#[source] BoxError),
}

impl From<tokio_postgres::Error> for HandlerError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Retry(Box::new(error))
    }
}

impl HandlerError {
    /// Creates an error that a retry may fix.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(error.into())
    }

    /// Creates an error that no retry can fix.
    pub fn dead(error: impl Into<BoxError>) -> Self {
        Self::Dead(error.into())
    }

    /// Returns the failure if the error is about the whole batch. An outage or a deadlock is no
    /// event's fault.
    fn of_batch(&self) -> Option<Failure> {
        let error = self.sql()?;
        if error.as_db_error().is_none() {
            return error.is_closed().then_some(Failure::Outage);
        }
        let code = error.code().map_or("", SqlState::code);
        let failure = failure_of(error);
        // As in the functions of the database, an error of any other class is the event's fault.
        (is_uncounted_failure(code) || code == "57014").then_some(failure)
    }

    /// Returns whether other events may pass in spite of this error.
    fn is_of_surroundings(&self) -> bool {
        let answer = self.sql().and_then(tokio_postgres::Error::as_db_error);
        answer.is_some_and(|answer| is_of_surroundings(answer.code().code()))
    }

    pub(crate) fn sql(&self) -> Option<&tokio_postgres::Error> {
        self.cause()
    }

    fn cause<E: Error + 'static>(&self) -> Option<&E> {
        let (Self::Retry(error) | Self::Dead(error)) = self;
        let first: &(dyn Error + 'static) = error.as_ref();
        iter::successors(Some(first), |cause| (*cause).source())
            .find_map(|cause| cause.downcast_ref())
    }

    pub(crate) fn code(&self) -> String {
        if let Some(code) = self.sql().and_then(|error| error.code()) {
            return code.code().to_owned();
        }
        let delivery = self.cause().map(Undelivered::uncounted_code);
        delivery
            .unwrap_or(match self {
                Self::Retry(_) => "HANDLER",
                Self::Dead(_) => "HANDLER_DEAD",
            })
            .to_owned()
    }
}

/// The future of a batch's verdicts.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<Found, RunError>> + Send + 'a>>;

/// A handler of any type, for dynamic dispatch.
pub(crate) trait AnyHandler: Send + Sync {
    /// Returns the handler's name for logs.
    fn name(&self) -> String;

    /// Runs the handler over a batch, and finds the events that it fails on. `settings` are those of
    /// the transaction.
    fn run<'a>(
        &'a self,
        limit: Duration,
        settings: &'a str,
        transaction: &'a mut Transaction<'_>,
        events: &'a [Event],
    ) -> Running<'a>;
}

/// A handler that writes in the consumer's transaction.
pub(crate) struct InTransaction<H>(pub(crate) H);

impl<H: Handler> AnyHandler for InTransaction<H> {
    fn name(&self) -> String {
        "a handler in Rust".to_owned()
    }

    fn run<'a>(
        &'a self,
        limit: Duration,
        settings: &'a str,
        transaction: &'a mut Transaction<'_>,
        events: &'a [Event],
    ) -> Running<'a> {
        Box::pin(async move {
            // The handler may wait for something outside the database, where no server time-out
            // applies.
            let running = run(&self.0, settings, transaction, events);
            timeout(limit, running).await.unwrap_or(Err(RunError::Overdue))
        })
    }
}

/// The result of an event, as `app_inbox_settle` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Applied,
    Failed {
        code: String,
        text: String,
        is_final: bool,
        /// The time that a receiver asks for before the next attempt.
        retry_after: Option<Duration>,
    },
    /// An earlier event of the key has failed in this batch.
    Held,
    /// An earlier version of the key is missing. Holds the outcome from `app_inbox_gaps`, and the
    /// reason.
    TooSoon {
        name: &'static str,
        text: String,
    },
    /// The transaction has reached its limit of savepoints or of time.
    Deferred,
}

impl Verdict {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Failed { .. } => "failed",
            Self::Held => "held",
            Self::TooSoon { name, .. } => name,
            Self::Deferred => "deferred",
        }
    }
}

/// The reason why a batch has no verdicts.
#[derive(Debug)]
pub(crate) enum RunError {
    /// A statement failed, and the transaction cannot continue.
    Sql(tokio_postgres::Error),
    Handler(HandlerError, Failure),
    Overdue,
}

impl From<tokio_postgres::Error> for RunError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// The result of running a handler.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) verdicts: Vec<Verdict>,
    /// The first error about something that an event needs, for example a missing table.
    pub(crate) lacking: Option<(HandlerError, Failure)>,
}

impl Found {
    /// Returns the verdicts, or the error about something that an event needs if no event passes.
    /// Only an event that passes proves that the other events are at fault.
    pub(crate) fn unless_all_fail(self) -> Result<Vec<Verdict>, RunError> {
        match self.lacking {
            Some((error, failure)) if !self.verdicts.contains(&Verdict::Applied) => {
                Err(RunError::Handler(error, failure))
            }
            Some(_) | None => Ok(self.verdicts),
        }
    }
}

/// Runs the handler over a batch and finds the events that it fails on. `app_inbox_run` does the
/// same for handlers in SQL.
///
/// `settings` sets the transaction's settings again.
async fn run(
    handler: &impl Handler,
    settings: &str,
    transaction: &mut Transaction<'_>,
    events: &[Event],
) -> Result<Found, RunError> {
    // Deferred constraints would fail at COMMIT. Here they fail while the failing event is still
    // known. The settings that the handler changed are then reset, because later statements and
    // batches must not inherit them.
    // Only a higher `synchronous_commit` stays.
    let reset = sql!("handler.sql", "reset_settings");
    let closing = format!("SET CONSTRAINTS ALL IMMEDIATE; {reset}; {settings}");
    let mut verdicts = vec![Verdict::Deferred; events.len()];
    let mut lacking = None;
    let mut held_keys: BTreeSet<&str> = BTreeSet::new();
    // The ranges still to run, with the next one at the end.
    let mut ranges: Vec<Range<usize>> = iter::once(0..events.len()).collect();
    let began = Instant::now();
    let (mut savepoints, mut failures, mut one_by_one) = (0, 0, false);
    while let Some(mut range) = ranges.pop() {
        if one_by_one && range.len() > 1 {
            ranges.push(range.start + 1..range.end);
            range.end = range.start + 1;
        }
        let is_held = |index: &usize| held_keys.contains(events[*index].ordering_key.as_str());
        let (held, chosen): (Vec<usize>, Vec<usize>) = range.clone().partition(is_held);
        held.into_iter().for_each(|index| verdicts[index] = Verdict::Held);
        // The check also skips all later ranges.
        let is_enough_known = failures > 1 || failures == 1 && savepoints > 0;
        let is_impatient = is_enough_known && began.elapsed() > PATIENCE;
        if chosen.is_empty() || savepoints >= SAVEPOINTS_MAX || is_impatient {
            continue;
        }
        let batch: Vec<Event> = chosen.iter().map(|index| events[*index].clone()).collect();
        let tried = Instant::now();
        let Err(error) = attempt(handler, transaction, &batch, &closing).await? else {
            savepoints += 1;
            chosen.into_iter().for_each(|index| verdicts[index] = Verdict::Applied);
            continue;
        };
        let failure = error.of_batch();
        if let Some(failure) = failure.filter(|_| !error.is_of_surroundings()) {
            return Err(RunError::Handler(error, failure));
        }
        if let [index] = chosen[..] {
            let key = events[index].ordering_key.as_str();
            if !key.is_empty() {
                held_keys.insert(key);
            }
            let is_final = matches!(error, HandlerError::Dead(_));
            let (code, text) = (error.code(), error.to_string());
            verdicts[index] = Verdict::Failed { code, text, is_final, retry_after: None };
            failures += 1;
            lacking = lacking.or(failure.map(|failure| (error, failure)));
            continue;
        }
        // Halving would repeat a slow failure many times.
        one_by_one |= tried.elapsed() > PATIENCE / 10;
        // Two halves, the earlier one first.
        let middle = chosen[chosen.len() / 2];
        ranges.push(middle..range.end);
        ranges.push(range.start..middle);
    }
    Ok(Found { verdicts, lacking })
}

/// Runs the handler in one savepoint, which commits or rolls back as a whole.
async fn attempt(
    handler: &impl Handler,
    transaction: &mut Transaction<'_>,
    events: &[Event],
    closing: &str,
) -> Result<Result<(), HandlerError>, tokio_postgres::Error> {
    let savepoint = transaction.savepoint("walrelay").await?;
    let mut done = handler.handle(&savepoint, events).await;
    if done.is_ok() {
        done = savepoint.batch_execute(closing).await.map_err(HandlerError::from);
    }
    match done {
        Ok(()) => savepoint.commit().await.map(Ok),
        Err(error) => savepoint.rollback().await.map(|()| Err(error)),
    }
}
