//! The Publish calls in flight.
//!
//! Owns each batch while its call runs, so that no batch is ever in two places.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use walrelay_core::{Batch, CallCode, ConcurrencyWindow, FailureClass, PublishFailure, RateLimit};

use crate::stream::publisher::Publisher;

/// A batch and Pub/Sub's reply: the message ids, or the failure.
pub type Answer = (Batch, Result<Vec<String>, PublishFailure>);

/// A call, and the batch that it sends.
struct Call {
    /// `None` after the reply.
    batch: Option<Batch>,
    answer: Pin<Box<dyn Future<Output = Result<Vec<String>, PublishFailure>> + Send>>,
}

impl Future for Call {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = ready!(self.answer.as_mut().poll(cx));
        match self.batch.take() {
            Some(batch) => Poll::Ready((batch, answer)),
            None => panic!("I3: a call was answered twice"),
        }
    }
}

/// Calls of earlier sessions that have no reply yet.
#[derive(Default)]
pub struct UnansweredCalls(FuturesUnordered<Call>);

/// A reply, and the session whose batch it belongs to.
#[derive(Debug)]
pub enum CallReply {
    /// A reply to a batch of this session.
    Ours(Answer),
    /// A reply to a batch of an earlier session. The slot has sent its rows again.
    Before(Answer),
}

/// The set of Publish calls in flight, bounded by an adaptive window.
///
/// No call starts while an earlier session has calls without a reply (I3).
pub struct PublishCalls<P> {
    publisher: P,
    before: UnansweredCalls,
    calls: FuturesUnordered<Call>,
    window: ConcurrencyWindow,
    rate: Option<RateLimit>,
}

impl<P: Publisher> PublishCalls<P> {
    pub fn new(publisher: P, window: ConcurrencyWindow) -> Self {
        Self {
            publisher,
            before: UnansweredCalls::default(),
            calls: FuturesUnordered::new(),
            window,
            rate: None,
        }
    }

    /// Limits the rows per second.
    #[must_use]
    pub fn limited(self, rate: Option<RateLimit>) -> Self {
        Self { rate, ..self }
    }

    /// Starts no call before these calls of an earlier session have a reply.
    pub fn wait_for(&mut self, before: UnansweredCalls) {
        self.before = before;
    }

    /// Returns the number of calls of earlier sessions without a reply.
    pub fn waits_for(&self) -> usize {
        self.before.0.len()
    }

    /// Ends the session. Returns all calls without a reply, for the next session to wait for.
    pub fn into_unanswered(self) -> UnansweredCalls {
        let UnansweredCalls(mut calls) = self.before;
        calls.extend(self.calls);
        UnansweredCalls(calls)
    }

    /// Returns whether another call may start.
    pub fn has_room(&self) -> bool {
        self.waits_for() == 0 && self.calls.len() < self.window.size() && self.opens_at().is_none()
    }

    /// Returns the time before which the rate limit allows no call. Reads no clock without a limit.
    pub fn opens_at(&self) -> Option<std::time::Instant> {
        let rate = self.rate.as_ref()?;
        rate.closed_until(tokio::time::Instant::now().into_std())
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn outstanding(&self) -> impl Iterator<Item = &Batch> {
        self.calls.iter().filter_map(|call| call.batch.as_ref())
    }

    pub fn start(&mut self, batch: Batch) {
        if let Some(rate) = &mut self.rate {
            rate.sent(batch.messages().len(), batch.sent_at());
        }
        let answer = Box::pin(self.publisher.publish(&batch));
        self.calls.push(Call { batch: Some(batch), answer });
    }

    /// Drops the calls whose batches match. Pub/Sub may still store them, as after any timeout.
    pub fn give_up(&mut self, matches: impl Fn(&Batch) -> bool) -> Vec<Batch> {
        let is_late = |call: &Call| call.batch.as_ref().is_some_and(&matches);
        if !self.calls.iter().any(is_late) {
            return Vec::new();
        }
        let (late, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.calls).into_iter().partition(is_late);
        self.calls.extend(kept);
        late.into_iter().filter_map(|call| call.batch).collect()
    }

    /// Returns the next reply. Pends for ever while no call is in flight.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no reply: calls live in `self`.
    pub async fn next(&mut self) -> CallReply {
        if let Some(answer) = self.before.0.next().await {
            return CallReply::Before(answer);
        }
        let out = self.calls.len();
        match self.calls.next().await {
            Some(answer) => CallReply::Ours(self.observed(answer, out)),
            None => std::future::pending().await,
        }
    }

    /// Returns a reply to a batch of this session, if one has already arrived.
    pub fn next_ready(&mut self) -> Option<Answer> {
        let out = self.calls.len();
        let answer = self.calls.next().now_or_never().flatten()?;
        Some(self.observed(answer, out))
    }

    fn observed(&mut self, answer: Answer, out: usize) -> Answer {
        let now = tokio::time::Instant::now().into_std();
        match &answer.1 {
            Ok(_) => {
                let round_trip = now.saturating_duration_since(answer.0.sent_at());
                self.window.stored(round_trip, out, now);
            }
            Err(failure) if failure.congestion => self.window.congested(now),
            Err(_) => {}
        }
        answer
    }
}

impl std::fmt::Debug for UnansweredCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Unanswered").field(&self.0.len()).finish()
    }
}

impl<P> std::fmt::Debug for PublishCalls<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publishes").field("out", &self.calls.len()).finish_non_exhaustive()
    }
}

/// Returns the failure of a call that is cancelled to release WAL. It equals the failure of a call
/// that exceeded `--publish-timeout`.
pub fn cancelled_for_wal() -> PublishFailure {
    let why = "no answer, and the retained WAL nears the WAL budget";
    PublishFailure::new(FailureClass::Transient, CallCode::DeadlineExceeded, why)
}
