//! Many rows at once: which they are, how many, a question, and how far it has come.

use std::io::{self, IsTerminal as _, Write as _};

use walrelay_postgres::{
    DispatchPlace, DispatchQuery, DispatchRow, DispatchState, DispatchStatus, DispatchStore,
    RetrySelection, SqlClient, StoreError,
};

use super::super::consent;
use crate::config::{Chosen, Consent};
use crate::error::Error;

/// Rows acted on between two looks at how far it has come.
const BATCH_ROWS: u32 = 500;

/// What is done to rows.
pub(super) enum Verb<'a> {
    Retry,
    /// For this reason.
    Discard(&'a str),
}

impl Verb<'_> {
    const fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Retry => ("retry", "due now"),
            Self::Discard(_) => ("discard", "discarded"),
        }
    }
}

/// Why some are not retried with the others, and what helps.
const LACK_HEADERS: &str = "they were recorded without their headers, which could not be read; `walrelay dispatch list --error \
     BAD_HEADERS` has them, and `walrelay dispatch edit ID --attributes-file FILE` gives one the headers of a file";

/// On how many rows was acted.
struct Acted {
    rows: u64,
    /// Rows that match and can only be edited.
    left: u64,
}

/// Acts on what was chosen, and says on how many rows it did.
///
/// # Errors
///
/// The server refuses, a named row is not in a fitting state, or nobody agreed.
pub(super) async fn act(
    store: &DispatchStore,
    client: &mut SqlClient,
    (verb, chosen): (Verb<'_>, &Chosen),
) -> Result<String, Error> {
    let (_, done) = verb.words();
    match (chosen, &verb) {
        (Chosen::Ids(ids), Verb::Retry) => {
            let count = store.retry(client, &RetrySelection::Events(ids.clone())).await?;
            Ok(format!("{count} row(s) are {done}\n"))
        }
        (Chosen::Ids(ids), Verb::Discard(reason)) => {
            for id in ids {
                store.discard(client, id, reason).await?;
            }
            match ids.as_slice() {
                [id] => Ok(format!("{id} is discarded\n")),
                all => Ok(format!("{} row(s) are discarded\n", all.len())),
            }
        }
        (Chosen::Matching { query, consent }, _) => {
            // Rows are parked all the while: what is asked about, and then done, is what there is now.
            let until = Some(store.moment(client).await?);
            let query = &DispatchQuery { until, ..query.clone() };
            let count = store.count(client, query).await?;
            if count == 0 {
                return Ok(format!("no row matches\n{}", others(store, client, query).await?));
            }
            agreed(&verb, count, *consent)?;
            let Acted { rows, left } = through_all(store, client, (&verb, query, count)).await?;
            let left = match left {
                0 => String::new(),
                left => format!("{left} row(s) are left as they are: {LACK_HEADERS}\n"),
            };
            Ok(format!("{rows} row(s) are {done}\n{left}"))
        }
    }
}

/// Rows that would match with another status: only dead ones are meant where none is given.
async fn others(
    store: &DispatchStore,
    client: &SqlClient,
    query: &DispatchQuery,
) -> Result<String, StoreError> {
    if query.state != DispatchState::Only(DispatchStatus::Dead) {
        return Ok(String::new());
    }
    let state = DispatchState::Only(DispatchStatus::Retrying);
    Ok(match store.count(client, &DispatchQuery { state, ..query.clone() }).await? {
        0 => String::new(),
        others => {
            format!("{others} row(s) that are tried again by themselves would: --status retrying\n")
        }
    })
}

/// Asks whoever sits there. A program that retries has said enough; one that gives rows up has to say so.
fn agreed(verb: &Verb<'_>, count: u64, consent: Consent) -> Result<(), Error> {
    let (verb_word, _) = verb.words();
    consent::agreed(&format!("{verb_word} {count} row(s)?"), consent, || match verb {
        Verb::Retry => Ok(()),
        Verb::Discard(_) => Err(Error::Unfit {
            what: format!("{count} row(s) match, and nobody can be asked whether to give them up"),
            hint: "look at them with `walrelay dispatch list`, then add --yes",
        }),
    })
}

/// Page by page in position order: what is acted on need not fit into one transaction or into memory.
async fn through_all(
    store: &DispatchStore,
    client: &mut SqlClient,
    (verb, query, count): (&Verb<'_>, &DispatchQuery, u64),
) -> Result<Acted, Error> {
    let mut left = 0;
    let mut progress = Progress::new(verb.words().0, count);
    let mut behind = None;
    loop {
        let page = store.page(client, query, behind.as_ref(), BATCH_ROWS).await?;
        let Some(last) = page.last() else { break };
        behind = Some(DispatchPlace::from(last));
        let acted = match verb {
            Verb::Retry => {
                let (without, whole): (Vec<_>, Vec<_>) =
                    page.into_iter().partition(DispatchRow::lacks_headers);
                left += without.len() as u64;
                retry(store, client, ids(whole)).await?
            }
            Verb::Discard(reason) => store.discard_all(client, &ids(page), reason).await?,
        };
        progress.went_on(acted);
    }
    Ok(Acted { rows: progress.done(), left })
}

fn ids(rows: Vec<DispatchRow>) -> Vec<String> {
    rows.into_iter().map(|row| row.event_id).collect()
}

/// All of them in one transaction; each alone when one was finished meanwhile, which is no failure here.
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
    )
}

/// One line that counts on, for whoever looks at a terminal.
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

    fn went_on(&mut self, acted: u64) {
        self.acted += acted;
        if self.is_seen {
            // Nobody is left to tell when standard error is gone.
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
