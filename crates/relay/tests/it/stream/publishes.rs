//! Tests of Publish calls in flight: their number, their session, and the effect of replies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_core::{
    Batch, CallCode, ConcurrencyLimits, ConcurrencyWindow, FailureClass, PublishFailure,
};
use walrelay_relay::stream::publish_calls::{CallReply, PublishCalls};
use walrelay_relay::stream::publisher::Publisher;

use super::fake_store::batches;

const MOMENT: Duration = Duration::from_millis(1);

/// Replies after the scripted delays, in order.
#[derive(Clone)]
struct Script(Arc<Mutex<VecDeque<Scripted>>>);

type Scripted = (u64, Option<PublishFailure>);

impl Publisher for Script {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let (millis, failure) = self.0.lock().unwrap().pop_front().unwrap();
        let ids = batch.messages().map(|message| message.event_id().to_owned()).collect();
        async move {
            sleep(Duration::from_millis(millis)).await;
            failure.map_or(Ok(ids), Err)
        }
    }
}

fn publishes(max: usize, answers: impl IntoIterator<Item = Scripted>) -> PublishCalls<Script> {
    let script = Script(Arc::new(Mutex::new(answers.into_iter().collect())));
    PublishCalls::new(script, ConcurrencyWindow::new(ConcurrencyLimits { min: 1, max }))
}

fn refusal() -> PublishFailure {
    PublishFailure::new(FailureClass::Transient, CallCode::Unknown, "")
}

async fn ours(publishes: &mut PublishCalls<Script>) -> Batch {
    match publishes.next().await {
        CallReply::Ours((batch, _)) => batch,
        CallReply::Before(_) => panic!("nobody was before"),
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_out_until_they_are_answered_and_no_more_than_the_window() {
    let mut publishes = publishes(2, [(5, None), (3, None)]);
    assert!(publishes.is_empty() && publishes.has_room());
    for (batch, has_room) in batches(&["a", "b"]).into_iter().zip([true, false]) {
        publishes.start(batch);
        assert_eq!((publishes.is_empty(), publishes.has_room()), (false, has_room));
    }
    assert_eq!(publishes.len(), 2);
    assert!(publishes.next_ready().is_none(), "nothing is answered yet");
    assert_eq!(ours(&mut publishes).await.ordering_key(), "b");
    assert_eq!(publishes.len(), 1);
    sleep(MOMENT * 5).await;
    let (batch, answer) = publishes.next_ready().unwrap();
    assert_eq!((batch.ordering_key(), answer), ("a", Ok(vec!["0".to_owned()])));
    assert!(publishes.is_empty());
    assert!(timeout(MOMENT, publishes.next()).await.is_err(), "nothing is out");
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_out_while_a_session_before_has_calls_without_an_answer() {
    let mut first = publishes(2, [(2, None), (4, None)]);
    batches(&["a", "b"]).into_iter().for_each(|batch| first.start(batch));
    let mut second = publishes(2, [(60, None)]);
    second.wait_for(first.into_unanswered());
    assert_eq!((second.waits_for(), second.has_room(), second.is_empty()), (2, false, true));
    assert!(matches!(second.next().await, CallReply::Before(_)));
    assert_eq!((second.waits_for(), second.has_room()), (1, false));

    // This session also ends before all calls have a reply.
    let mut third = publishes(2, []);
    batches(&["c"]).into_iter().for_each(|batch| second.start(batch));
    third.wait_for(second.into_unanswered());
    assert_eq!(third.waits_for(), 2, "those of both");
    for _ in 0..2 {
        assert!(matches!(third.next().await, CallReply::Before(_)));
    }
    assert!(third.has_room());
}

#[tokio::test(start_paused = true)]
async fn the_window_learns_from_answers() {
    let congested = PublishFailure { congestion: true, ..refusal() };
    for (failure, room) in [(None, 5), (Some(refusal()), 4), (Some(congested), 3)] {
        let answers = (0..9).map(|_| (10, failure.clone()));
        let mut publishes = publishes(100, answers);
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        for (batch, has_room) in batches(&keys).into_iter().zip([true; 4]) {
            assert_eq!(publishes.has_room(), has_room, "it starts with four");
            publishes.start(batch);
        }
        assert!(!publishes.has_room());
        drop(ours(&mut publishes).await);
        // Counts the calls in flight and the calls that may still start.
        let mut others = batches(&keys).into_iter();
        while publishes.has_room() {
            publishes.start(others.next().unwrap());
        }
        assert_eq!(publishes.len(), room, "{failure:?}");
    }
}
