//! A publisher that limits its rate and counts rows. In a dry run it publishes nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use walrelay_core::{Batch, PublishFailure};
use walrelay_relay::stream::publisher::Publisher;

use super::replay_progress::Tally;
use super::request::Rate;

/// Publishes at a limited rate.
#[derive(Debug, Clone)]
pub struct RateLimited<P> {
    /// `None` in a dry run.
    publisher: Option<P>,
    pace: Option<Arc<Pace>>,
    tally: Tally,
}

/// The time at which the next request may be sent.
#[derive(Debug)]
struct Pace {
    rate: Rate,
    next: Mutex<Instant>,
}

impl Pace {
    /// Returns the time at which `rows` may be sent, and moves the time of the next request.
    fn take(&self, rows: usize, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = (*next).max(now);
        let share = rows as f64 / f64::from(self.rate.per_second().get());
        *next = turn + Duration::from_secs_f64(share);
        turn
    }
}

impl<P> RateLimited<P> {
    /// Limits `publisher` to `rate`. Without a publisher, every row counts as published at once.
    #[must_use]
    pub fn new(publisher: Option<P>, rate: Option<Rate>, tally: Tally) -> Self {
        let pace = rate.map(|rate| Arc::new(Pace { rate, next: Mutex::new(Instant::now()) }));
        Self { publisher, pace, tally }
    }
}

impl<P: Publisher + Sync> Publisher for RateLimited<P> {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let rows = batch.messages().len();
        let turn = self.pace.as_ref().map(|pace| pace.take(rows, Instant::now()));
        let published = self.publisher.as_ref().map(|publisher| publisher.publish(batch));
        let tally = self.tally.clone();
        async move {
            if let Some(turn) = turn {
                sleep_until(turn).await;
            }
            let ids = match published {
                Some(published) => published.await?,
                None => vec![String::new(); rows],
            };
            tally.add_published(rows as u64);
            Ok(ids)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_request_waits_for_the_share_of_those_before_it() {
        let rate = Rate::new(100).expect("a rate");
        let now = Instant::now();
        let pace = Pace { rate, next: Mutex::new(now) };
        let at = |rows| pace.take(rows, now).duration_since(now);
        assert_eq!(at(50), Duration::ZERO);
        assert_eq!(at(100), Duration::from_millis(500));
        assert_eq!(at(1), Duration::from_millis(1500));
        // Unused capacity is not saved.
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.take(1, later), later);
    }
}
