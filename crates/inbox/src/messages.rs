//! What a subscription holds, read for an audit and handed back.

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

/// Nothing of what is looked for has come for so long: everything has.
const QUIET: Duration = Duration::from_secs(5);
/// How far the service's clock may be behind ours, so that what was published before we began does not look
/// younger than that.
const CLOCKS_APART: Duration = Duration::from_secs(5);
/// The longest lease there is: what is read is not to come again before it is handed back.
const LEASE_SECONDS: i32 = 600;
/// Ids in one request, which may have 512 KiB; an id has about 200 bytes.
const IDS_MAX: usize = 1_000;

/// The events of a subscription, by their ids.
///
/// Of each id only 128 bits of hash are kept: that two of a million events share them is less likely than
/// that the disk forgets one.
#[derive(Debug)]
pub struct Messages {
    ids: HashSet<[u64; 2]>,
    hashers: [RandomState; 2],
}

impl Messages {
    /// Reads everything that the subscription holds by now, and hands it back: nothing is acknowledged. What is
    /// published meanwhile is not waited for, or it would not end where events keep coming.
    ///
    /// # Errors
    ///
    /// There is no such subscription, or it cannot be pulled.
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
        let began = SystemTime::now() + CLOCKS_APART;
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
        // On the open stream they would be delivered again at once.
        drop(stream);
        for ids in leased.chunks(IDS_MAX) {
            if let Err(status) = subscriber.hand_back(subscription, ids.to_vec()).await {
                tracing::warn!(%status, "not everything could be handed back: it comes again within 10 minutes");
                break;
            }
        }
        Ok(read)
    }

    /// Adds a message; whether it is news, and was published before this.
    fn add(&mut self, received: &ReceivedMessage, before: SystemTime) -> bool {
        let Ok(event) = received.message().map(Event::of_message) else { return false };
        self.ids.insert(self.hash(&event.event_id))
            && event.publish_time.is_none_or(|at| at < before)
    }

    /// How many events there are.
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
