//! The messages of a subscription, read for an audit and nacked.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use walrelay_pubsub::{ReceivedMessage, Subscriber};

use crate::error::InboxError;
use crate::event::Event;

/// After so long without a new message from before the start, every message has been read.
const QUIET: Duration = Duration::from_secs(5);
/// The maximum lead of the service's clock over ours. Messages published before the start then
/// still count as such.
const CLOCK_LEAD_MAX: Duration = Duration::from_secs(5);
/// The longest lease that Pub/Sub offers. No message should be redelivered before the nack.
const LEASE_SECONDS: i32 = 600;
/// The ids in one request. A request may have 512 KiB, and an id has about 200 bytes.
const IDS_MAX: usize = 1_000;

/// The events of a subscription, by their ids.
///
/// The set keeps only 128 bits of hash per id. A collision among a million events is less likely
/// than a disk error.
#[derive(Debug)]
pub struct Messages {
    ids: HashSet<[u64; 2]>,
    hashers: [RandomState; 2],
}

impl Messages {
    /// Reads all messages that the subscription holds now, then nacks them. No message is
    /// acknowledged. Messages published meanwhile are ignored, because the read would not end under
    /// a steady load.
    ///
    /// # Errors
    ///
    /// Fails if the subscription does not exist or cannot be pulled.
    pub async fn read(subscriber: &Subscriber, subscription: &str) -> Result<Self, InboxError> {
        if subscriber.subscription(subscription).await?.is_none() {
            let subscription = subscription.to_owned();
            return Err(InboxError::SubscriptionMissing { subscription });
        }
        let mut read =
            Self { ids: HashSet::new(), hashers: [RandomState::new(), RandomState::new()] };
        let mut stream = subscriber.pull(StreamingPullRequest {
            subscription: subscription.to_owned(),
            stream_ack_deadline_seconds: LEASE_SECONDS,
            ..StreamingPullRequest::default()
        });
        let mut leased = Vec::new();
        let began = SystemTime::now() + CLOCK_LEAD_MAX;
        let mut news_at = Instant::now();
        while let Ok(heard) = timeout_at(news_at + QUIET, stream.responses.next()).await {
            let closed = || Err(Status::unavailable("the service has closed the stream"));
            let response = heard.unwrap_or_else(closed).map_err(|status| InboxError::Pull {
                subscription: subscription.to_owned(),
                source: Box::new(status),
            })?;
            let mut is_news = false;
            for received in response.messages {
                is_news |= read.add(&received, began);
                leased.push(received.ack_id);
            }
            if is_news {
                news_at = Instant::now();
            }
        }
        // On an open stream, Pub/Sub would redeliver nacked messages at once.
        drop(stream);
        for ids in leased.chunks(IDS_MAX) {
            if let Err(status) = subscriber.hand_back(subscription, ids.to_vec()).await {
                tracing::warn!(%status, "not everything could be handed back: it is redelivered within 10 minutes");
                break;
            }
        }
        Ok(read)
    }

    /// Adds a message. Returns whether the event is new, and was published before `before`.
    fn add(&mut self, received: &ReceivedMessage, before: SystemTime) -> bool {
        let Ok(event) = received.message().map(Event::of_message) else { return false };
        self.ids.insert(self.hash(&event.event_id))
            && event.publish_time.is_none_or(|at| at < before)
    }

    /// Returns the number of events.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn has(&self, event_id: &str) -> bool {
        self.ids.contains(&self.hash(event_id))
    }

    fn hash(&self, event_id: &str) -> [u64; 2] {
        [self.hashers[0].hash_one(event_id), self.hashers[1].hash_one(event_id)]
    }
}
