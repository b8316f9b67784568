//! The hook through which a program creates spans of a consumer's transactions.

use std::fmt;
use std::sync::Arc;

use crate::apply::apply_batch::Applied;
use crate::apply::apply_error::ApplyError;
use crate::event::Event;

/// Receives each transaction that applies a batch of deliveries. Retries from the inbox, and checks
/// that find no due row, are not reported.
pub trait Tracer: fmt::Debug + Send + Sync {
    /// Notes the start of a transaction. The returned function is called at its end. `None` means
    /// that the tracer skips this transaction. The loop calls this function, so it must not block.
    fn begin(&self, subscription: &str, events: &[Arc<Event>]) -> Option<TraceEnd>;
}

/// The function to call at the end of a transaction, with its failure if any.
pub type TraceEnd = Box<dyn FnOnce(Option<BatchFailure>) + Send>;

/// The reason why a batch, or a part of it, was not applied. Contains no text of an event or a
/// handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFailure {
    /// The SQLSTATE, or one word if the server gave none.
    pub code: String,
    /// The reason as a sentence.
    pub text: String,
}

impl BatchFailure {
    /// Returns the failure that a tracer receives for a transaction.
    pub(crate) fn of(ended: &Result<Vec<Applied>, ApplyError>) -> Option<Self> {
        match ended {
            Ok(applied) => Self::of_events(applied),
            Err(error) => Some(Self::of_batch(error)),
        }
    }

    /// Returns the failure of a batch that committed and stored failed events.
    fn of_events(applied: &[Applied]) -> Option<Self> {
        let mut codes = applied.iter().filter_map(Applied::failed_with);
        let code = codes.next()?.to_owned();
        let text = format!("{} of {} events failed", 1 + codes.count(), applied.len());
        Some(Self { code, text })
    }

    /// Returns the failure of a batch that is not known to be committed.
    fn of_batch(error: &ApplyError) -> Self {
        let reason = error.failure().name();
        match error.sqlstate() {
            Some(code) => Self {
                code: code.to_owned(),
                text: format!("not committed: {reason} (SQLSTATE {code})"),
            },
            None => Self { code: reason.to_owned(), text: format!("not committed: {reason}") },
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_inbox_core::Failure;

    use super::*;
    use crate::apply::handler::HandlerError;

    #[test]
    fn a_batch_that_took_effect_has_not_failed() {
        let applied = ["done", "late", "duplicate", "deferred"].map(|it| Applied::of(it, None));
        assert_eq!(BatchFailure::of(&Ok(applied.into())), None);
        // The event failed once, was edited, and is done.
        let done = Applied::of("done", Some("22000".to_owned()));
        assert_eq!(BatchFailure::of(&Ok(vec![done])), None);
    }

    #[test]
    fn events_that_the_handler_failed_on_are_counted_with_the_first_ones_code() {
        let code = |code: &str| Some(code.to_owned());
        let applied = vec![
            Applied::of("done", None),
            Applied::of("retrying", code("22000")),
            Applied::of("dead", code("23505")),
            Applied::of("retrying", None),
        ];
        let failure = BatchFailure::of(&Ok(applied)).unwrap();
        assert_eq!((&*failure.code, &*failure.text), ("22000", "2 of 4 events failed"));
    }

    #[test]
    fn what_a_handler_says_stays_here() {
        let said = HandlerError::retry("card 4111 of A-17 was refused");
        let failure = BatchFailure::of(&Err(ApplyError::Handler(said, Failure::Operator))).unwrap();
        assert_eq!((&*failure.code, &*failure.text), ("operator", "not committed: operator"));
        let silent = BatchFailure::of(&Err(ApplyError::Silent)).unwrap();
        assert_eq!(silent.code, "outage");
    }
}
