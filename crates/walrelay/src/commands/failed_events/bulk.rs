//! Actions on many events: selects them, asks for consent, and shows progress.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::sleep;
use walrelay_pg_client::SqlClient;
use walrelay_relay::shutdown::Shutdown;

use super::changed::ChangedEventsJson;
use super::event::{FailedEvent, PageBegin};
use super::side::{EventChange, FailedEvents, whole_id};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::operator::Terminal;
use crate::config::{ChangeMode, ChangeOptions, Checks, OutputFormat};
use crate::error::Error;
use crate::output::json::json_text;

/// Events in one page. Progress is shown after each.
const BATCH_ROWS: u32 = 500;

/// Longest time that a running batch may still take after a signal.
const BATCH_GRACE: Duration = Duration::from_secs(5);

/// The events to act on.
#[derive(Debug, Clone)]
pub(in crate::commands) struct EventSelection<Q> {
    pub(in crate::commands) events: SelectedEvents<Q>,
    pub(in crate::commands) options: ChangeOptions,
}

#[derive(Debug, Clone)]
pub(in crate::commands) enum SelectedEvents<Q> {
    Ids(Vec<String>),
    Matching(Q),
}

impl<Q> EventSelection<Q> {
    /// Returns the chosen events, by ids or by filters. Without either it refuses, so that nobody
    /// selects all events by mistake.
    pub(in crate::commands) fn new(
        checks: &mut Checks<'_>,
        ids: Vec<String>,
        query: Option<Q>,
        options: ChangeOptions,
    ) -> Option<Self> {
        let events = match (ids.is_empty(), query) {
            (false, None) => SelectedEvents::Ids(ids),
            (true, Some(query)) => SelectedEvents::Matching(query),
            (true, None) | (false, Some(_)) => {
                let allowed = "give event ids, or filters such as --all-dead, --status dead and --key, not both";
                checks.wrong_variable("ID", allowed);
                return None;
            }
        };
        Some(Self { events, options })
    }
}

#[derive(Clone, Copy)]
pub(in crate::commands) enum BulkAction<'a> {
    Retry,
    /// Holds the reason.
    Discard(&'a str),
}

impl BulkAction<'_> {
    const fn word(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard(_) => "discard",
        }
    }

    const fn change(self) -> EventChange {
        match self {
            Self::Retry => EventChange::Retry,
            Self::Discard(_) => EventChange::Discard,
        }
    }

    /// Returns the value of `result` in JSON.
    const fn result(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Discard(_) => "discarded",
        }
    }

    /// Returns the state of the events after the action.
    const fn done(self) -> &'static str {
        match self {
            Self::Retry => "due now",
            Self::Discard(_) => "discarded",
        }
    }

    fn stopped(self, noun: &str, rows: u64, count: u64) -> Error {
        let what = match self {
            Self::Retry => format!("stopped by a signal: made {rows} of {count} {noun}(s) due"),
            Self::Discard(_) => {
                format!("stopped by a signal: discarded {rows} of {count} {noun}(s)")
            }
        };
        Error::stopped(what, "run the same command again for the rest; what was done stays")
    }
}

/// The number of events that an action changed, and the number that it had to skip.
struct BulkResult {
    rows: u64,
    /// Matching events that only an edit can complete.
    left: u64,
}

/// Acts on the chosen events, and reports their number.
///
/// # Errors
///
/// A named event has the wrong status, the user did not agree, or a signal stopped the action.
pub(in crate::commands) async fn act<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    action: BulkAction<'_>,
    chosen: &EventSelection<S::Query>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let asked = match &chosen.events {
        SelectedEvents::Ids(ids) => {
            let named = NamedEvents { ids, options: chosen.options };
            return of_ids(side, client, action, named, shutdown).await;
        }
        SelectedEvents::Matching(query) => query,
    };
    let terminal = Terminal::new(chosen.options, shutdown);
    let format = chosen.options.format;
    let counted = async {
        let query = side.until_now(client, asked).await?;
        let count = side.count(client, &query).await?;
        Ok((query, count))
    };
    let (query, count) = run_until_shutdown(counted, shutdown).await?;
    if count == 0 {
        return match format {
            OutputFormat::Json => json_text(&ChangedEventsJson::new(action.result(), 0)),
            OutputFormat::Text => {
                run_until_shutdown(others(side, client, action, &query), shutdown).await
            }
        };
    }
    // The question and a dry run name the events that the action changes.
    let incomplete = match (action, chosen.options.mode) {
        (BulkAction::Retry, ChangeMode::Ask | ChangeMode::DryRun) => {
            run_until_shutdown(count_incomplete(side, client, &query), shutdown).await?
        }
        (BulkAction::Retry | BulkAction::Discard(_), _) => 0,
    };
    let changed = count.saturating_sub(incomplete);
    let what = format!("{} {changed} {}(s){}", action.word(), S::NOUN, left_text::<S>(incomplete));
    if !terminal.ask(what).await? {
        return Ok(String::new());
    }
    let BulkResult { rows, left } =
        act_page_by_page(side, client, action, MatchingEvents { query: &query, count }, shutdown)
            .await?;
    if format == OutputFormat::Json {
        let need_edit = left;
        return json_text(&ChangedEventsJson {
            need_edit,
            ..ChangedEventsJson::new(action.result(), rows)
        });
    }
    let left = match left {
        0 => String::new(),
        left => format!("{left} {}(s) are left as they are: {}\n", S::NOUN, S::NEED_EDIT),
    };
    Ok(format!("{rows} {}(s) are {}\n{left}", S::NOUN, action.done()))
}

/// Returns an addition to a question about the events that need an edit.
fn left_text<S: FailedEvents>(left: u64) -> String {
    match left {
        0 => String::new(),
        left => format!(", and leave {left} {}(s) that need an edit first", S::NOUN),
    }
}

/// Counts the events that a retry leaves as they are. It reads the same pages as the retry.
async fn count_incomplete<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    query: &S::Query,
) -> Result<u64, Error> {
    let (mut count, mut behind) = (0, None);
    loop {
        let page = side.page(client, query, behind.as_ref(), BATCH_ROWS).await?;
        let Some(last) = page.last() else { return Ok(count) };
        behind = Some(last.begin());
        count += page.iter().filter(|event| event.needs_edit).count() as u64;
    }
}

struct NamedEvents<'a> {
    ids: &'a [String],
    options: ChangeOptions,
}

async fn whole_ids<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    given: &[String],
) -> Result<Vec<String>, Error> {
    let mut ids = Vec::new();
    for id in given {
        ids.push(whole_id(side, client, id).await?);
    }
    Ok(ids)
}

/// Acts on named events. To name an event to retry is consent: nothing is lost. A discard asks.
/// If one of the events does not exist or is finished, none is changed.
async fn of_ids<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    action: BulkAction<'_>,
    NamedEvents { ids, options }: NamedEvents<'_>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let mut ids = run_until_shutdown(whole_ids(side, client, ids), shutdown).await?;
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    let ids = &ids[..];
    run_until_shutdown(refuse_named(side, client, action, ids), shutdown).await?;
    let which = match ids {
        [id] => id.clone(),
        all => format!("{} {}(s)", all.len(), S::NOUN),
    };
    let mode = match (action, options.mode) {
        (BulkAction::Retry, ChangeMode::Ask) => ChangeMode::Agreed,
        (BulkAction::Retry | BulkAction::Discard(_), mode) => mode,
    };
    let terminal = Terminal::new(ChangeOptions { mode, ..options }, shutdown);
    if !terminal.ask(format!("{} {which}", action.word())).await? {
        return Ok(String::new());
    }
    let changed = async {
        match action {
            BulkAction::Retry => side.retry(client, ids).await,
            BulkAction::Discard(reason) => discard_each(side, client, ids, reason).await,
        }
    };
    let count = run_until_shutdown(changed, shutdown).await?;
    if options.format == OutputFormat::Json {
        return json_text(&ChangedEventsJson::new(action.result(), count));
    }
    Ok(match (action, ids) {
        (BulkAction::Discard(_), [id]) => format!("{id} is discarded\n"),
        (BulkAction::Retry | BulkAction::Discard(_), _) => {
            format!("{count} {}(s) are {}\n", S::NOUN, action.done())
        }
    })
}

/// Refuses the action if one of the events does not exist, or does not allow it.
async fn refuse_named<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    action: BulkAction<'_>,
    ids: &[String],
) -> Result<(), Error> {
    for id in ids {
        let found = side.show(client, id).await?;
        if let Some(refusal) = S::refusal(&found.event, action.change()) {
            return Err(refusal);
        }
    }
    Ok(())
}

/// Discards the events one by one. If one fails, logs how many are discarded.
async fn discard_each<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    ids: &[String],
    reason: &str,
) -> Result<u64, Error> {
    for (discarded, id) in ids.iter().enumerate() {
        let done = side.discard_one(client, id, reason).await;
        if done.is_err() && discarded > 0 {
            tracing::warn!(
                discarded,
                of = ids.len(),
                "some events are discarded, and the rest are not"
            );
        }
        done?;
    }
    Ok(ids.len() as u64)
}

/// Reports that no event matches, and how many retrying ones match: without `--status` only dead
/// ones are selected.
async fn others<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    action: BulkAction<'_>,
    query: &S::Query,
) -> Result<String, Error> {
    let noun = S::NOUN;
    let Some(retrying) = side.retrying_instead(query) else {
        return Ok(format!("no {noun} matches\n"));
    };
    let count = side.count(client, &retrying).await?;
    let instead = match action {
        BulkAction::Retry => "--status retrying in place of --all-dead or --status dead",
        BulkAction::Discard(_) => "--status retrying",
    };
    Ok(match count {
        0 => format!("no dead {noun} matches\n"),
        others => format!(
            "no dead {noun} matches; {others} {noun}(s) that are retrying do: {instead} takes them\n"
        ),
    })
}

struct MatchingEvents<'a, Q> {
    query: &'a Q,
    /// How many there were when the operator was asked.
    count: u64,
}

/// Acts page by page in position order, so that neither one transaction nor memory has to hold all
/// events. A signal stops the loop between two pages.
async fn act_page_by_page<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    action: BulkAction<'_>,
    MatchingEvents { query, count }: MatchingEvents<'_, S::Query>,
    shutdown: &Shutdown,
) -> Result<BulkResult, Error> {
    let mut left = 0;
    let mut progress = Progress::new(action.word(), S::NOUN, count);
    let mut behind = None;
    loop {
        let batch = batch(side, client, action, query, behind.as_ref());
        let Some(batch) = run_unless_shutting_down(batch, shutdown).await else {
            return Err(action.stopped(S::NOUN, progress.done(), count));
        };
        let Some(batch) = batch? else { break };
        behind = Some(batch.last);
        left += batch.acted.left;
        progress.add_done(batch.acted.rows);
    }
    Ok(BulkResult { rows: progress.done(), left })
}

/// The result of one page.
struct Batch {
    acted: BulkResult,
    last: PageBegin,
}

async fn batch<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    action: BulkAction<'_>,
    query: &S::Query,
    behind: Option<&PageBegin>,
) -> Result<Option<Batch>, Error> {
    let page = side.page(client, query, behind, BATCH_ROWS).await?;
    let Some(last) = page.last().map(FailedEvent::begin) else { return Ok(None) };
    let ids = |rows: Vec<FailedEvent>| rows.into_iter().map(|row| row.event_id).collect::<Vec<_>>();
    let acted = match action {
        BulkAction::Retry => {
            let (without, whole): (Vec<_>, Vec<_>) =
                page.into_iter().partition(|row| row.needs_edit);
            let left = without.len() as u64;
            BulkResult { rows: retry(side, client, &ids(whole)).await?, left }
        }
        BulkAction::Discard(reason) => {
            BulkResult { rows: side.discard(client, &ids(page), reason).await?, left: 0 }
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

/// Retries all events in one call. If one of them was finished meanwhile, retries each event alone
/// and skips the finished ones.
async fn retry<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    ids: &[String],
) -> Result<u64, Error> {
    match side.retry(client, ids).await {
        Err(error) if S::is_finished(&error) => {}
        done => return done,
    }
    let mut acted = 0;
    for id in ids {
        match side.retry(client, std::slice::from_ref(id)).await {
            Err(error) if S::is_finished(&error) => {}
            done => acted += done?,
        }
    }
    Ok(acted)
}

/// A progress line on standard error, shown only on a terminal.
struct Progress {
    verb: &'static str,
    noun: &'static str,
    total: u64,
    acted: u64,
    is_seen: bool,
}

impl Progress {
    fn new(verb: &'static str, noun: &'static str, total: u64) -> Self {
        Self { verb, noun, total, acted: 0, is_seen: io::stderr().is_terminal() }
    }

    fn add_done(&mut self, acted: u64) {
        self.acted += acted;
        if self.is_seen {
            // An error is ignored, because standard error may be closed.
            let Self { verb, noun, total, acted: done, .. } = self;
            drop(write!(io::stderr(), "\r{verb}: {done} of {total} {noun}(s)"));
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
        let told = BulkAction::Discard("x").stopped("row", 5_000, 20_000);
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
