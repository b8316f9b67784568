//! Actions on many rows: selects them, asks for consent, and shows progress.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;
use walrelay_outbox_store::{
    DispatchQuery, DispatchRow, DispatchStatus, DispatchStore, PageStart, RetrySelection,
    StateFilter, StoreError,
};

use tokio::time::sleep;
use walrelay_pg_client::SqlClient;
use walrelay_relay::shutdown::Shutdown;

use super::super::shared::cancellable::run_until_shutdown;
use super::super::shared::consent;
use crate::config::{Consent, RowSelection};
use crate::error::Error;

/// Rows in one transaction. Progress is shown after each.
const BATCH_ROWS: u32 = 500;

/// Longest time that a running batch may still take after a signal.
const BATCH_GRACE: Duration = Duration::from_secs(5);

/// The action on the rows.
pub(super) enum BulkAction<'a> {
    Retry,
    /// Holds the reason.
    Discard(&'a str),
}

impl BulkAction<'_> {
    const fn word(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard(_) => "discard",
        }
    }

    /// Returns the state of the rows after the action.
    const fn done(&self) -> &'static str {
        match self {
            Self::Retry => "due now",
            Self::Discard(_) => "discarded",
        }
    }

    fn stopped(&self, rows: u64, count: u64) -> Error {
        let what = match self {
            Self::Retry => format!("stopped by a signal: made {rows} of {count} row(s) due"),
            Self::Discard(_) => format!("stopped by a signal: discarded {rows} of {count} row(s)"),
        };
        Error::Stopped {
            what,
            hint: "run the same command again for the rest; what was done stays",
        }
    }
}

/// Why some rows are not retried with the others, and the commands that fix them.
const NEED_EDIT: &str = "they were recorded without headers that could not be read, or without a value that is too large; `walrelay \
     dispatch list` with `--error BAD_HEADERS` or `--error TOO_LARGE` has them, and `walrelay dispatch edit ID` with \
     `--attributes-file FILE` or `--payload-file FILE` completes one";

/// The number of rows that an action changed, and the number that it had to skip.
struct BulkResult {
    rows: u64,
    /// Matching rows that only an edit can complete.
    left: u64,
}

/// Acts on the chosen rows, and reports their number.
///
/// # Errors
///
/// The server refuses, a named row has the wrong status, the user did not agree, or a signal
/// stopped the action.
pub(super) async fn act(
    store: &DispatchStore,
    client: &mut SqlClient,
    (verb, chosen): (BulkAction<'_>, &RowSelection),
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let (query, consent) = match chosen {
        RowSelection::Ids(ids) => {
            return run_until_shutdown(of_ids(store, client, (&verb, ids)), shutdown).await;
        }
        RowSelection::Matching { query, consent } => (query, *consent),
    };
    let (query, count) = &run_until_shutdown(counted(store, client, query), shutdown).await?;
    if *count == 0 {
        let others = others(store, client, (&verb, query));
        return run_until_shutdown(others, shutdown).await;
    }
    agreed(&verb, (*count, consent), shutdown).await?;
    let asked = (&verb, query, *count);
    let BulkResult { rows, left } = act_page_by_page(store, client, asked, shutdown).await?;
    let left = match left {
        0 => String::new(),
        left => format!("{left} row(s) are left as they are: {NEED_EDIT}\n"),
    };
    Ok(format!("{rows} row(s) are {}\n{left}", verb.done()))
}

async fn of_ids(
    store: &DispatchStore,
    client: &mut SqlClient,
    (verb, ids): (&BulkAction<'_>, &[String]),
) -> Result<String, Error> {
    match verb {
        BulkAction::Retry => {
            let count = store.retry(client, &RetrySelection::Events(ids.to_vec())).await?;
            Ok(format!("{count} row(s) are {}\n", verb.done()))
        }
        BulkAction::Discard(reason) => {
            for id in ids {
                store.discard(client, id, reason).await?;
            }
            match ids {
                [id] => Ok(format!("{id} is discarded\n")),
                all => Ok(format!("{} row(s) are discarded\n", all.len())),
            }
        }
    }
}

/// Counts the matching rows, and limits the query to rows parked before now. New rows are parked
/// all the time, and the action must cover exactly the rows that the user agreed to.
async fn counted(
    store: &DispatchStore,
    client: &SqlClient,
    query: &DispatchQuery,
) -> Result<(DispatchQuery, u64), Error> {
    let until = Some(store.moment(client).await?);
    let query = DispatchQuery { until, ..query.clone() };
    let count = store.count(client, &query).await?;
    Ok((query, count))
}

/// Reports that no row matches, and how many retrying rows match: without `--status` only dead rows
/// are selected.
async fn others(
    store: &DispatchStore,
    client: &SqlClient,
    (verb, query): (&BulkAction<'_>, &DispatchQuery),
) -> Result<String, Error> {
    if query.state != StateFilter::Only(DispatchStatus::Dead) {
        return Ok("no row matches\n".to_owned());
    }
    let state = StateFilter::Only(DispatchStatus::Retrying);
    let count = store.count(client, &DispatchQuery { state, ..query.clone() }).await?;
    let instead = match verb {
        BulkAction::Retry => "--status retrying in place of --all-dead or --status dead",
        BulkAction::Discard(_) => "--status retrying",
    };
    Ok(match count {
        0 => "no dead row matches\n".to_owned(),
        others => format!(
            "no dead row matches; {others} row(s) that are retrying do: {instead} takes them\n"
        ),
    })
}

/// Asks the user at the terminal. Without a terminal a retry goes ahead, but a discard needs
/// `--yes`.
async fn agreed(
    verb: &BulkAction<'_>,
    (count, consent): (u64, Consent),
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let question = format!("{} {count} row(s)?", verb.word());
    let alone = || match verb {
        BulkAction::Retry => Ok(()),
        BulkAction::Discard(_) => Err(Error::Unfit {
            what: format!("{count} row(s) match, and nobody can be asked whether to give them up"),
            hint: "look at them with `walrelay dispatch list`, then add --yes",
        }),
    };
    consent::agreed((&question, consent), alone, shutdown).await
}

/// Acts on the rows page by page in position order, so that neither one transaction nor memory has
/// to hold all of them. A signal stops the loop between two pages.
async fn act_page_by_page(
    store: &DispatchStore,
    client: &mut SqlClient,
    (verb, query, count): (&BulkAction<'_>, &DispatchQuery, u64),
    shutdown: &Shutdown,
) -> Result<BulkResult, Error> {
    let mut left = 0;
    let mut progress = Progress::new(verb.word(), count);
    let mut behind = None;
    loop {
        let batch = batch(store, client, (verb, query, behind.as_ref()));
        let Some(batch) = run_unless_shutting_down(batch, shutdown).await else {
            return Err(verb.stopped(progress.done(), count));
        };
        let Some(batch) = batch? else { break };
        behind = Some(batch.last);
        left += batch.acted.left;
        progress.add_done(batch.acted.rows);
    }
    Ok(BulkResult { rows: progress.done(), left })
}

/// The result of one transaction.
struct Batch {
    acted: BulkResult,
    last: PageStart,
}

async fn batch(
    store: &DispatchStore,
    client: &mut SqlClient,
    (verb, query, behind): (&BulkAction<'_>, &DispatchQuery, Option<&PageStart>),
) -> Result<Option<Batch>, Error> {
    let page = store.page(client, query, behind, BATCH_ROWS).await?;
    let Some(last) = page.last().map(PageStart::from) else { return Ok(None) };
    let acted = match verb {
        BulkAction::Retry => {
            let (without, whole): (Vec<_>, Vec<_>) =
                page.into_iter().partition(DispatchRow::needs_edit);
            let left = without.len() as u64;
            BulkResult { rows: retry(store, client, ids(whole)).await?, left }
        }
        BulkAction::Discard(reason) => {
            BulkResult { rows: store.discard_all(client, &ids(page), reason).await?, left: 0 }
        }
    };
    Ok(Some(Batch { acted, last }))
}

/// Runs `work` unless a signal came before. Work in progress may finish, so that its rows are
/// counted.
async fn run_unless_shutting_down<T>(
    work: impl Future<Output = T>,
    shutdown: &Shutdown,
) -> Option<T> {
    if shutdown.is_requested() {
        return None;
    }
    let end = async {
        shutdown.requested().await;
        sleep(BATCH_GRACE).await;
    };
    tokio::select! {
        done = work => Some(done),
        () = end => None,
    }
}

fn ids(rows: Vec<DispatchRow>) -> Vec<String> {
    rows.into_iter().map(|row| row.event_id).collect()
}

/// Retries all rows in one transaction. If one of them was finished meanwhile, retries each row
/// alone and skips the finished ones.
async fn retry(
    store: &DispatchStore,
    client: &mut SqlClient,
    ids: Vec<String>,
) -> Result<u64, StoreError> {
    match store.retry(client, &RetrySelection::Events(ids.clone())).await {
        Err(error) if is_finished(&error) => {}
        done => return done,
    }
    let mut acted = 0;
    for id in ids {
        match store.retry(client, &RetrySelection::Events(vec![id])).await {
            Err(error) if is_finished(&error) => {}
            done => acted += done?,
        }
    }
    Ok(acted)
}

fn is_finished(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::AlreadyFinished { .. }
            | StoreError::UnknownEvent { .. }
            | StoreError::WithoutHeaders { .. }
            | StoreError::WithoutValue { .. }
    )
}

/// A progress line on standard error, shown only on a terminal.
struct Progress {
    verb: &'static str,
    total: u64,
    acted: u64,
    is_seen: bool,
}

impl Progress {
    fn new(verb: &'static str, total: u64) -> Self {
        Self { verb, total, acted: 0, is_seen: io::stderr().is_terminal() }
    }

    fn add_done(&mut self, acted: u64) {
        self.acted += acted;
        if self.is_seen {
            // An error is ignored, because standard error may be closed.
            drop(write!(io::stderr(), "\r{}: {} of {} row(s)", self.verb, self.acted, self.total));
        }
    }

    fn done(self) -> u64 {
        if self.is_seen {
            drop(writeln!(io::stderr()));
        }
        self.acted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_signal_has_stopped_says_how_far_it_came_and_nothing_of_the_slot() {
        let told = BulkAction::Discard("x").stopped(5_000, 20_000);
        assert_eq!(told.exit(), Error::Interrupted.exit());
        let text = told.report();
        assert!(text.contains("discarded 5000 of 20000 row(s)"), "{text}");
        assert!(text.contains("run the same command again") && !text.contains("slot"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_under_way_is_finished_and_none_is_begun_after_a_signal() {
        let shutdown = Shutdown::new();
        let batch = async {
            shutdown.request();
            sleep(BATCH_GRACE / 2).await;
            7
        };
        assert_eq!(run_unless_shutting_down(batch, &shutdown).await, Some(7));
        assert_eq!(run_unless_shutting_down(async { 8 }, &shutdown).await, None);
        let waiting = Shutdown::new();
        let stuck = async {
            waiting.request();
            std::future::pending::<()>().await;
        };
        assert_eq!(
            run_unless_shutting_down(stuck, &waiting).await,
            None,
            "a lock holds nothing up for ever"
        );
    }
}
