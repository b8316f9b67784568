//! Where the transactions of a consumer are told of, for whoever makes spans of them.

use std::fmt;
use std::sync::Arc;

use crate::database::Applied;
use crate::event::Event;
use crate::unapplied::Unapplied;

/// Is told of each transaction that applies a batch as it was delivered. What is tried again from the
/// inbox, and looks that find nothing to do, are not among them.
pub trait Tracer: fmt::Debug + Send + Sync {
    /// One begins; what is returned is called when it has ended. `None` when nobody wants to know. It
    /// is called where events flow, and must not block.
    fn begin(&self, subscription: &str, events: &[Arc<Event>]) -> Option<TraceEnd>;
}

/// To be called once a transaction has ended, with what went wrong.
pub type TraceEnd = Box<dyn FnOnce(Option<BatchFailure>) + Send>;

/// Why a batch, or a part of it, has not taken effect: without anything that an event or a handler says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFailure {
    /// The SQLSTATE, or one word where the server has given none.
    pub code: String,
    /// A sentence.
    pub text: String,
}

impl BatchFailure {
    /// What a tracer is told of a transaction.
    pub(crate) fn of(ended: &Result<Vec<Applied>, Unapplied>) -> Option<Self> {
        match ended {
            Ok(applied) => Self::of_events(applied),
            Err(error) => Some(Self::of_batch(error)),
        }
    }

    /// It committed, and what the handler failed on is stored.
    fn of_events(applied: &[Applied]) -> Option<Self> {
        let mut codes = applied.iter().filter_map(Applied::failed_with);
        let code = codes.next()?.to_owned();
        let text = format!("{} of {} events failed", 1 + codes.count(), applied.len());
        Some(Self { code, text })
    }

    /// Nothing of it is known to be committed.
    fn of_batch(error: &Unapplied) -> Self {
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
    use crate::handler::HandlerError;

    #[test]
    fn a_batch_that_took_effect_has_not_failed() {
        let applied = ["done", "late", "duplicate", "deferred"].map(|it| Applied::of(it, None));
        assert_eq!(BatchFailure::of(&Ok(applied.into())), None);
        // It failed once, was edited, and is done.
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
        let failure = BatchFailure::of(&Err(Unapplied::Handler(said, Failure::Operator))).unwrap();
        assert_eq!((&*failure.code, &*failure.text), ("operator", "not committed: operator"));
        let silent = BatchFailure::of(&Err(Unapplied::Silent)).unwrap();
        assert_eq!(silent.code, "outage");
    }
}
