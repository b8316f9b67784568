//! The effect as Rust, inside our transaction.

use std::collections::BTreeSet;
use std::error::Error;
use std::iter;
use std::ops::Range;
use std::pin::Pin;
use std::time::Instant;

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use walrelay_inbox_core::{Failure, PATIENCE, is_no_attempt, is_of_surroundings};

use crate::event::Event;
use crate::fault::failure_of;

/// A server keeps 64 savepoints of a transaction at hand; beyond, every snapshot of every session has to
/// look them up on disk.
const SAVEPOINTS_MAX: usize = 60;

/// Applies events. What it writes through the transaction commits together with the record that the events
/// were seen, and only then they are acknowledged; what it does elsewhere may happen again.
///
/// Behind a pooler in transaction mode use `query_typed` and `batch_execute`: named prepared statements
/// belong to a session.
pub trait Handler: Send + Sync {
    /// Applies the events of one batch, ordered within each key: all of them, or none by returning an
    /// error. After an error the batch is tried in halves, until the event at fault is alone.
    fn handle(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why events were not applied.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// It may work another time: the event is tried again later, those of its key behind it.
    #[error("{0}")]
    Retry(#[source] BoxError),
    /// It will never work.
    #[error("{0}")]
    Dead(#[source] BoxError),
}

impl From<tokio_postgres::Error> for HandlerError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Retry(Box::new(error))
    }
}

impl HandlerError {
    /// It may work another time.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(error.into())
    }

    /// It will never work.
    pub fn dead(error: impl Into<BoxError>) -> Self {
        Self::Dead(error.into())
    }

    /// What it says about the whole batch, if anything: an outage or a deadlock is no event's fault.
    fn of_batch(&self) -> Option<Failure> {
        let error = self.sql()?;
        if error.as_db_error().is_none() {
            return error.is_closed().then_some(Failure::Outage);
        }
        let code = error.code().map_or("", SqlState::code);
        let failure = failure_of(error);
        // As the functions in the database have it: what these classes do not name is the event's.
        (is_no_attempt(code) || code == "57014").then_some(failure)
    }

    /// Whether other events may pass all the same.
    fn is_of_surroundings(&self) -> bool {
        let answer = self.sql().and_then(tokio_postgres::Error::as_db_error);
        answer.is_some_and(|answer| is_of_surroundings(answer.code().code()))
    }

    pub(crate) fn sql(&self) -> Option<&tokio_postgres::Error> {
        let (Self::Retry(error) | Self::Dead(error)) = self;
        let first: &(dyn Error + 'static) = error.as_ref();
        iter::successors(Some(first), |cause| (*cause).source())
            .find_map(|cause| cause.downcast_ref())
    }

    fn code(&self) -> String {
        match (self, self.sql().and_then(|error| error.code())) {
            (_, Some(code)) => code.code().to_owned(),
            (Self::Retry(_), None) => "HANDLER".to_owned(),
            (Self::Dead(_), None) => "HANDLER_DEAD".to_owned(),
        }
    }
}

/// A handler of any type.
pub(crate) trait AnyHandler: Send + Sync {
    fn handle<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        events: &'a [Event],
    ) -> Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;
}

impl<H: Handler> AnyHandler for H {
    fn handle<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        events: &'a [Event],
    ) -> Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>> {
        Box::pin(Handler::handle(self, transaction, events))
    }
}

/// What became of an event, as `app_inbox_settle` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Applied,
    Failed {
        code: String,
        text: String,
        is_final: bool,
    },
    /// An earlier event of its key has failed in this batch.
    Held,
    /// A version of its key is missing before it: why, and what `app_inbox_gaps` makes of it.
    TooSoon {
        name: &'static str,
        text: String,
    },
    /// This transaction has had its share of savepoints, or of time.
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

/// Why a batch has no verdicts.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The transaction is of no use any more.
    Sql(tokio_postgres::Error),
    /// The handler's error is about the whole batch.
    Handler(HandlerError, Failure),
    /// The handler has not ended in time.
    Overdue,
}

impl From<tokio_postgres::Error> for Stopped {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// What running a handler has found.
#[derive(Debug)]
pub(crate) struct Found {
    /// One for each event.
    pub(crate) verdicts: Vec<Verdict>,
    /// The first error for an event's surroundings.
    lacking: Option<(HandlerError, Failure)>,
}

impl Found {
    /// Where no event passes, nothing tells that what one lacks is its trouble alone.
    pub(crate) fn unless_all_fail(self) -> Result<Vec<Verdict>, Stopped> {
        match self.lacking {
            Some((error, failure)) if !self.verdicts.contains(&Verdict::Applied) => {
                Err(Stopped::Handler(error, failure))
            }
            Some(_) | None => Ok(self.verdicts),
        }
    }
}

/// Runs the handler over a batch and finds the events that it fails on; see `app_inbox_run`, which does the
/// same for handlers in SQL.
///
/// `settings` are those of the transaction, as [`settings`](crate::database::settings) has them.
pub(crate) async fn run(
    (handler, settings): (&dyn AnyHandler, &str),
    transaction: &mut Transaction<'_>,
    events: &[Event],
) -> Result<Found, Stopped> {
    // What would fail at COMMIT fails here, where it is still known whose fault it is. Then what the handler has set
    // for its session is taken back: it is not for what is written down about its events, nor for the next batch.
    let closing = format!("SET CONSTRAINTS ALL IMMEDIATE; RESET ROLE; RESET ALL; {settings}");
    let mut verdicts = vec![Verdict::Deferred; events.len()];
    let mut lacking = None;
    let mut held_keys: BTreeSet<&str> = BTreeSet::new();
    // What is still to run; the last is the next.
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
        // And so is everything after it.
        let is_enough_known = failures > 1 || failures == 1 && savepoints > 0;
        let is_impatient = is_enough_known && began.elapsed() > PATIENCE;
        if chosen.is_empty() || savepoints >= SAVEPOINTS_MAX || is_impatient {
            continue;
        }
        let batch: Vec<Event> = chosen.iter().map(|index| events[*index].clone()).collect();
        let tried = Instant::now();
        let Err(error) = attempt(handler, transaction, (&batch, &closing)).await? else {
            savepoints += 1;
            chosen.into_iter().for_each(|index| verdicts[index] = Verdict::Applied);
            continue;
        };
        let failure = error.of_batch();
        if let Some(failure) = failure.filter(|_| !error.is_of_surroundings()) {
            return Err(Stopped::Handler(error, failure));
        }
        if let [index] = chosen[..] {
            let key = events[index].ordering_key.as_str();
            if !key.is_empty() {
                held_keys.insert(key);
            }
            let is_final = matches!(error, HandlerError::Dead(_));
            let (code, text) = (error.code(), error.to_string());
            verdicts[index] = Verdict::Failed { code, text, is_final };
            failures += 1;
            lacking = lacking.or(failure.map(|failure| (error, failure)));
            continue;
        }
        // In halves, what fails slowly would do so many times.
        one_by_one |= tried.elapsed() > PATIENCE / 10;
        // Halves, the earlier one first.
        let middle = chosen[chosen.len() / 2];
        ranges.push(middle..range.end);
        ranges.push(range.start..middle);
    }
    Ok(Found { verdicts, lacking })
}

/// One savepoint: everything of it, or nothing.
async fn attempt(
    handler: &dyn AnyHandler,
    transaction: &mut Transaction<'_>,
    (events, closing): (&[Event], &str),
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
