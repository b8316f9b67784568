//! The messages of a subscription, read for an audit and nacked.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use walrelay_pubsub::{ReceivedMessage, StreamingPull, Subscriber, is_announced_end};

use walrelay_inbox::Event;
use walrelay_inbox::InboxError;

/// After so long without a new message from before the start, every message has been read.
const QUIET: Duration = Duration::from_secs(5);
/// The time that the service has to end the stream after us.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
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
        let stream = subscriber.pull(StreamingPullRequest {
            subscription: subscription.to_owned(),
            stream_ack_deadline_seconds: LEASE_SECONDS,
            ..StreamingPullRequest::default()
        });
        let StreamingPull { requests, mut responses } = stream;
        let mut requests = Some(requests);
        let mut leased = Vec::new();
        let began = SystemTime::now() + CLOCK_LEAD_MAX;
        let refused = |status| {
            let (subscription, source) = (subscription.to_owned(), Box::new(status));
            InboxError::Pull { subscription, source }
        };
        let mut ends_at = Instant::now() + QUIET;
        loop {
            let Ok(heard) = timeout_at(ends_at, responses.next()).await else {
                // A silent service may have lost the stream. A live one answers the end of our half
                // with the end of its own.
                let lost = Status::deadline_exceeded("no answer on the stream");
                requests.take().ok_or(lost).map_err(refused)?;
                ends_at = Instant::now() + ANSWER_WITHIN;
                continue;
            };
            let closed = || Err(Status::unavailable("the service has closed the stream"));
            let response = match heard.unwrap_or_else(closed) {
                Ok(response) => response,
                // The end that we asked for.
                Err(status) if requests.is_none() && is_announced_end(&status) => break,
                Err(status) => return Err(refused(status)),
            };
            let mut is_news = false;
            for received in response.messages().flatten() {
                is_news |= read.add(&received, began);
                leased.push(received.ack_id);
            }
            if is_news && requests.is_some() {
                ends_at = Instant::now() + QUIET;
            }
        }
        // On an open stream, Pub/Sub would redeliver nacked messages at once.
        drop(responses);
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
