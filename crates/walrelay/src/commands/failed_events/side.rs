//! The operations that `dispatch` and `inbox` implement for the front end.

use walrelay_pg_client::SqlClient;

use super::event::{EventDetail, FailedEvent, PageBegin};
use super::page::EventGroup;
use crate::error::Error;
use crate::output::text::visible;

/// One side: the rows of dispatch state, or the events of a consumer's inbox.
pub(in crate::commands) trait FailedEvents: Sync {
    type Query: Clone + Sync;

    const COMMAND: &'static str;
    /// The noun of counts, as in `3 row(s)`.
    const NOUN: &'static str;
    const GROUP: EventGroup;
    /// Why some events are not retried with the others, and the commands that fix them.
    const NEED_EDIT: &'static str;

    /// Returns a page of events in position order.
    fn page(
        &self,
        client: &SqlClient,
        query: &Self::Query,
        behind: Option<&PageBegin>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<FailedEvent>, Error>>;

    fn count(
        &self,
        client: &SqlClient,
        query: &Self::Query,
    ) -> impl Future<Output = Result<u64, Error>>;

    /// Limits the query to events recorded before now. New events are recorded all the time, and an
    /// action must cover exactly those that the user agreed to.
    fn until_now(
        &self,
        client: &SqlClient,
        query: &Self::Query,
    ) -> impl Future<Output = Result<Self::Query, Error>>;

    /// Returns the query for retrying events in place of dead ones, if only dead ones match.
    fn retrying_instead(&self, query: &Self::Query) -> Option<Self::Query>;

    /// Returns the text for an empty page.
    fn none(&self, query: &Self::Query) -> &'static str;

    /// Returns lines about events that the query of `list` leaves out.
    fn not_listed(
        &self,
        client: &SqlClient,
        query: &Self::Query,
    ) -> impl Future<Output = Result<String, Error>>;

    /// Returns the first ids of events that begin like this, six at most.
    fn ids_like(
        &self,
        client: &SqlClient,
        start: &str,
    ) -> impl Future<Output = Result<Vec<String>, Error>>;

    fn show(
        &self,
        client: &SqlClient,
        id: &str,
    ) -> impl Future<Output = Result<EventDetail, Error>>;

    /// Makes events due.
    fn retry(
        &self,
        client: &mut SqlClient,
        ids: &[String],
    ) -> impl Future<Output = Result<u64, Error>>;

    fn discard_one(
        &self,
        client: &mut SqlClient,
        id: &str,
        reason: &str,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Discards the events that are not finished yet.
    fn discard(
        &self,
        client: &mut SqlClient,
        ids: &[String],
        reason: &str,
    ) -> impl Future<Output = Result<u64, Error>>;

    /// Returns the error with which a change of this event ends, or `None` if the change is allowed.
    fn refusal(event: &FailedEvent, change: EventChange) -> Option<Error>;

    /// Returns whether an event is left as it is because it was finished meanwhile.
    fn is_finished(error: &Error) -> bool;
}

/// Returns the id of the event that a person means, who may give its first characters alone.
pub(in crate::commands) async fn whole_id<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    given: &str,
) -> Result<String, Error> {
    match given.len() < PREFIX_MIN {
        true => Ok(given.to_owned()),
        false => meant(given, side.ids_like(client, given).await?),
    }
}

/// Fewer first characters would name an event by chance.
pub(in crate::commands) const PREFIX_MIN: usize = 6;

/// Returns the only id among those that begin as given, or the given one, which may be unknown.
pub(in crate::commands) fn meant(given: &str, mut found: Vec<String>) -> Result<String, Error> {
    match (found.iter().any(|id| id == given), found.len()) {
        (true, _) | (false, 0) => Ok(given.to_owned()),
        (false, 1) => Ok(found.remove(0)),
        (false, _) => {
            let found: Vec<_> = found.iter().map(|id| visible(id)).collect();
            let what = format!(
                "several events have an id that begins with {given:?}: {}",
                found.join(", ")
            );
            Err(Error::unfit(what, "give more of the id"))
        }
    }
}

/// A change of an event that the command line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum EventChange {
    Retry,
    Discard,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_characters_of_an_id_name_it_if_no_other_begins_so() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(meant("6f1c9a", ids(&["6f1c9a9e"])).unwrap(), "6f1c9a9e");
        assert_eq!(meant("6f1c9a", ids(&["6f1c9a", "6f1c9a9e"])).unwrap(), "6f1c9a");
        assert_eq!(meant("6f1c9a", ids(&[])).unwrap(), "6f1c9a");
        let refused = meant("6f1c9a", ids(&["6f1c9a1", "6f1c9a2"])).unwrap_err().report();
        assert!(refused.contains("6f1c9a1, 6f1c9a2"), "{refused}");
    }
}
