//! What a subscription holds, read for an audit and handed back.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use walrelay_pubsub::Subscriber;

use crate::error::InboxError;
use crate::event::Event;

/// Nothing new has come for so long: everything has.
const QUIET: Duration = Duration::from_secs(5);
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
    /// Reads everything that the subscription holds, and hands it back: nothing is acknowledged.
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
        let mut news_at = Instant::now();
        while let Ok(heard) = timeout_at(news_at + QUIET, stream.responses.next()).await {
            let closed = || Err(Status::unavailable("the service has closed the stream"));
            let response = heard.unwrap_or_else(closed).map_err(|status| InboxError::Pull {
                subscription: subscription.to_owned(),
                source: Box::new(status),
            })?;
            let before = read.count();
            for received in response.messages {
                let event = received.message().map(Event::of_message);
                read.ids.extend(event.map(|event| read.hash(&event.event_id)));
                leased.push(received.ack_id);
            }
            if read.count() > before {
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
