//! Planted bugs in the publisher of replays to a topic.

use std::pin::Pin;
use std::sync::Arc;

use walrelay_core::{Batch, PublishFailure};
use walrelay_relay::stream::publisher::Publisher;

use super::{BuggyPublisher, PublisherBug};
use crate::bugs::ReplayBug;
use crate::pubsub::PubSub;

/// The publisher of a replay.
#[derive(Clone)]
pub(crate) enum ReplayPublisher {
    Faithful(PubSub),
    Buggy(BuggyPublisher),
}

impl ReplayPublisher {
    pub(crate) fn new(bug: Option<ReplayBug>, pubsub: PubSub) -> Self {
        match bug {
            Some(ReplayBug::RetriesBehindTheNext) => {
                let of_publisher = PublisherBug::RetriesBehindTheNext;
                Self::Buggy(BuggyPublisher { bug: of_publisher, pubsub, postponed: Arc::default() })
            }
            Some(
                ReplayBug::ForgetsItsMark
                | ReplayBug::ForgetsItsPlace
                | ReplayBug::LeavesOut
                | ReplayBug::NotesTooMuch
                | ReplayBug::StreamsTheLiveSlot,
            )
            | None => Self::Faithful(pubsub),
        }
    }
}

type Answer = Result<Vec<String>, PublishFailure>;

impl Publisher for ReplayPublisher {
    fn publish(&self, batch: &Batch) -> impl Future<Output = Answer> + Send + 'static {
        let answer: Pin<Box<dyn Future<Output = Answer> + Send>> = match self {
            Self::Faithful(pubsub) => Box::pin(pubsub.publish(batch)),
            Self::Buggy(publisher) => Box::pin(publisher.publish(batch)),
        };
        answer
    }
}
