//! A Pub/Sub with a failing key, a poison row, refusals and lost replies.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_core::{Batch, CallCode, FailureClass, PublishFailure};
use walrelay_relay::stream::publisher::Publisher;

use super::world::{InboxDatabase, Topic};
use crate::pubsub::number_of;
use crate::world::locked;

/// The service, as one process publishes to it.
#[derive(Clone)]
pub(super) struct TopicOf {
    pub(super) world: Arc<InboxDatabase>,
    /// The commit position of the stream's rows.
    pub(super) commit_lsn: u64,
}

impl Publisher for TopicOf {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let of_stream = self.commit_lsn;
        let messages: Vec<(u32, Option<u32>, String)> = batch
            .messages()
            .map(|message| {
                let position = message.position();
                let is_of_stream = position.commit_lsn.as_u64() == of_stream;
                let index = is_of_stream.then_some(position.tx_index);
                (number_of(message.event_id()), index, message.ordering_key().to_owned())
            })
            .collect();
        let world = Arc::clone(&self.world);
        async move {
            let (before, after, is_refused, is_lost) = {
                let mut seed = locked(&world.seed);
                let latency = Duration::from_millis(120);
                let times =
                    (seed.time(Duration::ZERO, latency), seed.time(Duration::ZERO, latency));
                (times.0, times.1, seed.chance(30), seed.chance(20))
            };
            sleep(before).await;
            world.steps.pass().await;
            let refused = |class, code: CallCode| Err(PublishFailure::new(class, code, "made up"));
            let Topic { failing_key, failing_until, poison } = &world.topic;
            let is_failing_topic =
                messages.iter().any(|(.., key)| Some(key) == failing_key.as_ref());
            if is_failing_topic && Instant::now() < *failing_until {
                return refused(FailureClass::Operator, CallCode::PermissionDenied);
            }
            let has_poison = messages.iter().any(|(number, ..)| poison.contains(number));
            if let ([(alone, ..)], true) = (&messages[..], has_poison) {
                world.judge.refused_alone(*alone);
            }
            if has_poison {
                return refused(FailureClass::Row, CallCode::InvalidArgument);
            }
            if is_refused {
                return refused(FailureClass::Transient, CallCode::Unavailable);
            }
            world.report_recorded();
            messages.iter().for_each(|(number, index, _)| world.judge.stored(*number, *index));
            world.steps.pass().await;
            sleep(after).await;
            if is_lost {
                return refused(FailureClass::Transient, CallCode::DeadlineExceeded);
            }
            messages.iter().for_each(|(number, ..)| world.judge.settled(*number));
            Ok(messages.iter().map(|(number, ..)| format!("m{number}")).collect())
        }
    }
}
