//! Handlers that deliver each event to a receiver outside the database.
//!
//! The events of a key are delivered in their order, and several keys at once. The keys stay locked
//! meanwhile, so no delivery begins once [`PATIENCE`] is over. A later batch delivers the rest.
//!
//! The receiver is away if it was not reached, or if three different events have failed in a row.
//! Then no event is at fault: a batch in which none was delivered is not stored, and waits.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::{Instant, timeout};
use tokio_postgres::Transaction;
use walrelay_inbox_core::{Failure, PATIENCE};

use crate::apply::handler::{AnyHandler, Found, HandlerError, RunError, Running, Verdict};
use crate::apply::undelivered::{Fault, RETRY_AFTER_MAX, Undelivered};
use crate::event::Event;

/// The deliveries of a transaction at once. More keys wait for their turn.
const AT_ONCE: usize = 8;
/// Different events that fail in a row before the receiver counts as away. Fewer may be at fault
/// themselves.
const FAILING_MAX: usize = 3;
/// The pause of all deliveries to a receiver that is away and asks for no other time. Thousands of stored
/// events are due meanwhile.
const AWAY_PAUSE: Duration = Duration::from_secs(2);

/// Delivers events to a receiver outside the database, each on its own. Its name, as it is printed,
/// appears in logs.
///
/// The record that an event was delivered commits after the delivery. If that commit is lost, the
/// event is delivered again, so the receiver has to recognise the event's id.
pub trait Deliver: fmt::Display + Send + Sync {
    /// Delivers one event. Earlier events of its key were delivered before.
    fn deliver(&self, event: &Event) -> impl Future<Output = Result<(), Undelivered>> + Send;
}

/// A receiver with its recent failures.
pub(crate) struct Delivery<D> {
    receiver: D,
    recent: Mutex<Recent>,
}

/// The failures since the last event that the receiver judged.
#[derive(Debug, Default)]
struct Recent {
    /// The ids of failed events, at most `FAILING_MAX`.
    failing: Vec<String>,
    /// No delivery begins before this time, because a receiver that is away asked for it.
    not_before: Option<Instant>,
}

/// The end of the deliveries of one key: verdicts by index, and an error that may concern every
/// event.
type LaneEnd = (Vec<(usize, Verdict)>, Option<Undelivered>);

impl<D: Deliver> Delivery<D> {
    pub(crate) fn to(receiver: D) -> Self {
        Self { receiver, recent: Mutex::default() }
    }

    async fn deliver_all(&self, limit: Duration, events: &[Event]) -> Result<Found, RunError> {
        // A batch of duplicates needs no receiver.
        if !events.is_empty() {
            self.refuse_pause()?;
        }
        let until = Instant::now() + PATIENCE;
        let stopped = AtomicBool::new(false);
        let mut verdicts = vec![Verdict::Deferred; events.len()];
        let mut lacking = None;
        let lanes = lanes(events).into_iter();
        let deliveries = lanes.map(|lane| async {
            // A key whose turn comes too late waits for the next batch.
            let is_late = stopped.load(Ordering::Relaxed) || Instant::now() >= until;
            match is_late {
                true => LaneEnd::default(),
                false => self.deliver_lane(lane, events, (limit, until, &stopped)).await,
            }
        });
        let mut deliveries = stream::iter(deliveries).buffer_unordered(AT_ONCE);
        while let Some((found, error)) = deliveries.next().await {
            found.into_iter().for_each(|(index, verdict)| verdicts[index] = verdict);
            lacking = lacking.or(error);
        }
        let lacking = lacking.and_then(|error| {
            let failure = error.failure()?;
            Some((HandlerError::retry(error), failure))
        });
        Ok(Found { verdicts, lacking })
    }

    /// Delivers the events of one key, up to the first one that fails.
    async fn deliver_lane(
        &self,
        lane: Vec<usize>,
        events: &[Event],
        (limit, until, stopped): (Duration, Instant, &AtomicBool),
    ) -> LaneEnd {
        let mut found = Vec::new();
        let mut lane = lane.into_iter();
        for index in lane.by_ref() {
            if Instant::now() >= until && !found.is_empty() {
                break;
            }
            let event = &events[index];
            let ended = timeout(limit, self.receiver.deliver(event)).await;
            let ended = ended.unwrap_or_else(|_| Err(silent(&self.receiver, limit)));
            let Err(error) = ended else {
                self.recent().clear();
                found.push((index, Verdict::Applied));
                continue;
            };
            let error = self.judge(event, error);
            found.push((index, verdict(&error)));
            found.extend(lane.map(|behind| (behind, Verdict::Held)));
            if error.failure() == Some(Failure::Outage) {
                stopped.store(true, Ordering::Relaxed);
            }
            return (found, error.failure().is_some().then_some(error));
        }
        (found, None)
    }

    /// Decides whether the receiver is away, so that no event is at fault.
    fn judge(&self, event: &Event, error: Undelivered) -> Undelivered {
        let mut recent = self.recent();
        match error.fault {
            // The receiver has read the event, so it works.
            Fault::Event => recent.clear(),
            Fault::Attempt | Fault::Capacity | Fault::Unreachable => recent.note(&event.event_id),
            Fault::Operator => {}
        }
        let is_away = match error.fault {
            Fault::Unreachable => true,
            Fault::Attempt | Fault::Capacity => recent.failing.len() >= FAILING_MAX,
            Fault::Event | Fault::Operator => false,
        };
        if !is_away {
            return error;
        }
        let wait = error.retry_after.unwrap_or(AWAY_PAUSE).min(RETRY_AFTER_MAX);
        recent.not_before = recent.not_before.max(Some(Instant::now() + wait));
        Undelivered { fault: Fault::Unreachable, ..error }
    }

    fn refuse_pause(&self) -> Result<(), RunError> {
        let left =
            self.recent().not_before.and_then(|at| at.checked_duration_since(Instant::now()));
        let Some(left) = left.filter(|left| !left.is_zero()) else { return Ok(()) };
        let text =
            format!("{} is away; the next try is in {} s", self.receiver, left.as_secs() + 1);
        let error = Undelivered { text, ..silent(&self.receiver, Duration::ZERO) };
        Err(RunError::Handler(HandlerError::retry(error), Failure::Outage))
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    fn note(&mut self, event_id: &str) {
        if self.failing.len() < FAILING_MAX && !self.failing.iter().any(|known| known == event_id) {
            self.failing.push(event_id.to_owned());
        }
    }

    fn clear(&mut self) {
        self.failing.clear();
        self.not_before = None;
    }
}

impl<D: Deliver> AnyHandler for Delivery<D> {
    fn name(&self) -> String {
        self.receiver.to_string()
    }

    fn run<'a>(
        &'a self,
        limit: Duration,
        _: &'a str,
        _: &'a mut Transaction<'_>,
        events: &'a [Event],
    ) -> Running<'a> {
        Box::pin(self.deliver_all(limit, events))
    }
}

/// Returns the verdict on an event that was not delivered.
fn verdict(error: &Undelivered) -> Verdict {
    let code = match error.fault {
        Fault::Event | Fault::Attempt => error.code.clone(),
        Fault::Capacity | Fault::Unreachable | Fault::Operator => error.uncounted_code().to_owned(),
    };
    let text = match &error.detail {
        Some(detail) => format!("{}: {detail}", error.text),
        None => error.text.clone(),
    };
    let is_final = error.fault == Fault::Event;
    let retry_after = error.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX));
    Verdict::Failed { code, text, is_final, retry_after: retry_after.filter(|_| !is_final) }
}

fn silent(receiver: &impl fmt::Display, limit: Duration) -> Undelivered {
    Undelivered {
        fault: Fault::Attempt,
        code: "TIMEOUT".to_owned(),
        text: format!("{receiver}: no answer within {} ms", limit.as_millis()),
        detail: None,
        retry_after: None,
    }
}

/// Returns the indexes of each key's events, in order. An event without a key is alone.
fn lanes(events: &[Event]) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        let key = event.ordering_key.as_str();
        match known.get(key).filter(|_| !key.is_empty()) {
            Some(lane) => lanes[*lane].push(index),
            None => {
                known.insert(key, lanes.len());
                lanes.push(vec![index]);
            }
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use walrelay_pubsub::MessageRef;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A receiver that takes some time, and answers by the event's id.
    struct Scripted {
        takes: Duration,
        answer: fn(&str) -> Option<Fault>,
        log: Mutex<Vec<String>>,
        at_once: Mutex<(usize, usize)>,
    }

    impl fmt::Display for Scripted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("POST it")
        }
    }

    impl Deliver for Scripted {
        async fn deliver(&self, event: &Event) -> Result<(), Undelivered> {
            self.log.lock().unwrap().push(event.event_id.clone());
            {
                let mut at_once = self.at_once.lock().unwrap();
                at_once.0 += 1;
                at_once.1 = at_once.1.max(at_once.0);
            }
            tokio::time::sleep(self.takes).await;
            self.at_once.lock().unwrap().0 -= 1;
            let Some(fault) = (self.answer)(&event.event_id) else { return Ok(()) };
            let retry_after = Some(Duration::from_secs(3));
            Err(Undelivered { fault, code: "HTTP_500".into(), retry_after, ..silent(self, LIMIT) })
        }
    }

    fn receiver(takes: Duration, answer: fn(&str) -> Option<Fault>) -> Delivery<Scripted> {
        Delivery::to(Scripted { takes, answer, log: Mutex::default(), at_once: Mutex::default() })
    }

    /// Events named `key-number`.
    fn events(names: &[&str]) -> Vec<Event> {
        let event = |name: &&str| {
            Event::of_message(MessageRef {
                data: b"{}",
                attributes: vec![("event_id", *name)],
                message_id: "m",
                publish_time: None,
                ordering_key: name.split('-').next().unwrap_or_default(),
            })
        };
        names.iter().map(event).collect()
    }

    fn names(found: &Found) -> Vec<&'static str> {
        found.verdicts.iter().map(Verdict::name).collect()
    }

    /// Delivers one event that fails. Returns its code, and the failure of its batch.
    async fn alone(delivery: &Delivery<Scripted>, name: &str) -> (String, Option<Failure>) {
        let found = delivery.deliver_all(LIMIT, &events(&[name])).await.unwrap();
        let [Verdict::Failed { code, .. }] = &found.verdicts[..] else { panic!("{found:?}") };
        (code.clone(), found.lacking.map(|(_, failure)| failure))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_stops_at_its_first_failure_and_others_go_on() {
        let delivery =
            receiver(Duration::from_millis(1), |id| (id == "a-2").then_some(Fault::Attempt));
        let batch = events(&["a-1", "b-1", "a-2", "b-2", "a-3", "-x", "-y"]);
        let found = delivery.deliver_all(LIMIT, &batch).await.unwrap();
        let expected = ["applied", "applied", "failed", "applied", "held", "applied", "applied"];
        assert_eq!(names(&found), expected);
        let Verdict::Failed { code, is_final: false, retry_after, .. } = &found.verdicts[2] else {
            panic!("{found:?}")
        };
        assert_eq!((&**code, *retry_after), ("HTTP_500", Some(Duration::from_secs(3))));
        assert!(found.lacking.is_none());
        assert!(!delivery.receiver.log.lock().unwrap().contains(&"a-3".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_eight_go_at_once_and_none_begins_late() {
        let delivery = receiver(Duration::from_millis(400), |_| None);
        let ids: Vec<String> = (0..100).map(|number| format!("k{number}-1")).collect();
        let batch = events(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        let began = Instant::now();
        let found = delivery.deliver_all(LIMIT, &batch).await.unwrap();
        assert!(began.elapsed() < PATIENCE + Duration::from_millis(400), "{:?}", began.elapsed());
        assert_eq!(delivery.receiver.at_once.lock().unwrap().1, AT_ONCE);
        let applied = names(&found).iter().filter(|name| **name == "applied").count();
        assert_eq!((applied, found.verdicts.len()), (3 * AT_ONCE, 100));
        // One key is cut in the same way.
        let one_key = events(&["k-1", "k-2", "k-3", "k-4", "k-5"]);
        let cut = delivery.deliver_all(LIMIT, &one_key).await.unwrap();
        assert_eq!(names(&cut), ["applied", "applied", "applied", "deferred", "deferred"]);
    }

    #[tokio::test(start_paused = true)]
    async fn three_events_that_fail_in_a_row_mean_that_the_receiver_is_away() {
        let delivery = receiver(Duration::from_millis(1), |id| {
            let is_poison = id.starts_with('p');
            is_poison.then_some(Fault::Attempt)
        });
        let alone = async |name| alone(&delivery, name).await;
        let counted = ("HTTP_500".to_owned(), None);
        for name in ["p-1", "p-1"] {
            assert_eq!(alone(name).await, counted, "{name}");
        }
        delivery.deliver_all(LIMIT, &events(&["q-1"])).await.unwrap();
        for name in ["p-1", "p2-1"] {
            assert_eq!(alone(name).await, counted, "{name}");
        }
        let away = ("DELIVERY_UNAVAILABLE".to_owned(), Some(Failure::Outage));
        assert_eq!(alone("p3-1").await, away);
        let log = || delivery.receiver.log.lock().unwrap().len();
        let before = log();
        let paused = delivery.deliver_all(LIMIT, &events(&["q-1"])).await.unwrap_err();
        assert!(matches!(paused, RunError::Handler(_, Failure::Outage)), "{paused:?}");
        assert_eq!(log(), before, "it asked for three seconds");
        delivery.deliver_all(LIMIT, &[]).await.unwrap();
        tokio::time::advance(Duration::from_secs(4)).await;
        let found = delivery.deliver_all(LIMIT, &events(&["q-1"])).await.unwrap();
        assert_eq!(names(&found), ["applied"]);
        assert_eq!(alone("p3-1").await, counted, "it is back");
    }

    #[tokio::test(start_paused = true)]
    async fn faults_decide_about_attempts() {
        for (fault, code, is_dead, failure) in [
            (Fault::Event, "HTTP_500", true, None),
            (Fault::Attempt, "HTTP_500", false, None),
            (Fault::Capacity, "DELIVERY_UNAVAILABLE", false, None),
            (Fault::Unreachable, "DELIVERY_UNAVAILABLE", false, Some(Failure::Outage)),
            (Fault::Operator, "DELIVERY_REFUSED", false, Some(Failure::Operator)),
        ] {
            let error = Undelivered { fault, code: "HTTP_500".into(), ..silent(&"it", LIMIT) };
            let verdict = verdict(&error);
            assert!(
                matches!(&verdict, Verdict::Failed { code: its, is_final, .. } if its == code && *is_final == is_dead),
                "{verdict:?}"
            );
            assert_eq!(error.failure(), failure);
            let is_uncounted = walrelay_inbox_core::is_uncounted_failure(code);
            assert_eq!(is_uncounted, code != "HTTP_500");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_hangs_is_given_up() {
        let delivery = receiver(Duration::from_hours(1), |_| None);
        let ids = ["a-1", "b-1", "c-1", "d-1", "e-1", "f-1", "g-1", "h-1", "i-1"];
        let began = Instant::now();
        let found = delivery.deliver_all(LIMIT, &events(&ids)).await.unwrap();
        assert_eq!(began.elapsed(), LIMIT, "no second round");
        assert!(matches!(found.lacking, Some((_, Failure::Outage))));
        assert_eq!(names(&found)[8], "deferred");
    }
}
