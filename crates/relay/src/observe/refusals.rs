//! Log messages about refusals: one when a topic starts to refuse, and one when the refusals end.
//!
//! At the end of an outage failures and successes alternate. They also alternate as long as one key
//! of a topic is failing. For an operator that is one event.

use std::time::{Duration, Instant};

use walrelay_core::{FailureClass, FailureCode, PublishFailure, Topic};

/// The maximum number of topics in memory.
const TOPICS_MAX: usize = 256;

/// Topics that refuse, and the codes that were logged.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<Refusal>);

#[derive(Debug)]
struct Refusal {
    topic: Topic,
    codes: Vec<FailureCode>,
    class: FailureClass,
    began: Instant,
    last: Instant,
    /// When the first message after the last refusal was stored.
    stored_at: Option<Instant>,
}

impl Refusals {
    /// Records a refusal. Returns whether it should be logged, as the first one with this code.
    pub(super) fn refused(
        &mut self,
        topic: &Topic,
        failure: &PublishFailure,
        now: Instant,
    ) -> bool {
        let known = self.0.iter_mut().find(|refusal| refusal.topic == *topic);
        let Some(refusal) = known else {
            let has_room = self.0.len() < TOPICS_MAX;
            if has_room {
                self.0.push(Refusal {
                    topic: Topic::clone(topic),
                    codes: vec![failure.code],
                    class: failure.class,
                    began: now,
                    last: now,
                    stored_at: None,
                });
            }
            return has_room;
        };
        (refusal.last, refusal.stored_at, refusal.class) = (now, None, failure.class);
        let is_news = !refusal.codes.contains(&failure.code);
        if is_news {
            refusal.codes.push(failure.code);
        }
        is_news
    }

    pub(super) fn stored(&mut self, topic: &Topic, now: Instant) {
        if let Some(refusal) = self.0.iter_mut().find(|refusal| refusal.topic == *topic) {
            refusal.stored_at.get_or_insert(now);
        }
    }

    /// Returns the topics whose refusals have ended, and how long nothing was stored.
    pub(super) fn over(&mut self, now: Instant) -> Vec<(Topic, Duration)> {
        let is_over = |refusal: &mut Refusal| {
            let quiet = now.saturating_duration_since(refusal.last);
            refusal.stored_at.is_some() && quiet >= quiet_of(refusal.class)
        };
        let over = self.0.extract_if(.., is_over);
        let end = |refusal: &Refusal| refusal.stored_at.unwrap_or(refusal.last);
        over.map(|it| (Topic::clone(&it.topic), end(&it).duration_since(it.began))).collect()
    }
}

/// Returns the time without refusals after which they have ended. It is longer than the longest
/// back-off, so that a failing key does not end them each time it waits. An operator's fix applies
/// to all keys of a topic at once.
const fn quiet_of(class: FailureClass) -> Duration {
    match class {
        FailureClass::Transient | FailureClass::Row => Duration::from_secs(70),
        FailureClass::Operator => Duration::from_secs(5),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_core::CallCode;

    use super::*;

    fn failure(class: FailureClass, code: CallCode) -> PublishFailure {
        PublishFailure::new(class, code, "made up")
    }

    #[test]
    fn refusals_between_which_something_is_stored_are_one_event() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (topic, other) = (Topic::from("t"), Topic::from("o"));
        let no_answer = failure(FailureClass::Transient, CallCode::DeadlineExceeded);
        let mut refusals = Refusals::default();
        assert!(refusals.refused(&topic, &no_answer, start));
        for second in 0..60 {
            refusals.stored(&topic, after(second));
            assert!(!refusals.refused(&topic, &no_answer, after(second)));
        }
        let unavailable = failure(FailureClass::Transient, CallCode::Unavailable);
        assert!(refusals.refused(&topic, &unavailable, after(60)), "another cause is news");
        assert_eq!(refusals.over(after(600)), [], "nothing was stored since");
        refusals.stored(&topic, after(62));
        refusals.stored(&topic, after(64));
        refusals.stored(&other, after(64));
        assert_eq!(refusals.over(after(129)), []);
        assert_eq!(refusals.over(after(130)), [(Topic::clone(&topic), Duration::from_secs(62))]);
        assert!(refusals.refused(&topic, &no_answer, after(131)), "another event");
    }

    #[test]
    fn what_an_operator_has_mended_is_told_after_a_few_seconds() {
        let start = Instant::now();
        let topic = Topic::from("t");
        let mut refusals = Refusals::default();
        assert!(refusals.refused(
            &topic,
            &failure(FailureClass::Operator, CallCode::NotFound),
            start
        ));
        let mended = Duration::from_secs(3);
        refusals.stored(&topic, start + mended);
        let over = refusals.over(start + Duration::from_secs(5));
        assert_eq!(over, [(topic, mended)]);
    }

    #[test]
    fn topics_without_end_do_not_fill_the_memory() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        let unavailable = failure(FailureClass::Transient, CallCode::Unavailable);
        let told = (0..2 * TOPICS_MAX)
            .filter(|number| {
                refusals.refused(&Topic::from(format!("t{number}")), &unavailable, start)
            })
            .count();
        assert_eq!((told, refusals.0.len()), (TOPICS_MAX, TOPICS_MAX));
    }
}
