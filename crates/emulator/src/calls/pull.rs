//! Pull: one response with the available messages.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tokio::time::Instant;
use tonic::Status;

use crate::calls::consumer::{Consumer, ConsumerRequest, Outgoing};
use crate::calls::responses::encode_received;
use crate::emulator::Emulator;
use crate::faults::fault::Call;
use crate::store::queue::Allowance;
use crate::wire::grpc;

/// The time that a Pull waits for a first message. After that the response is empty, as production
/// allows.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// The maximum number of messages in one Pull, as in production.
const PULL_MESSAGES_MAX: usize = 1_000;

pub(crate) async fn pull(emulator: &Emulator, frame: &Bytes) -> Result<BytesMut, Status> {
    let request = grpc::decode::<proto::PullRequest>(frame)?;
    let messages = usize::try_from(request.max_messages).unwrap_or(0).min(PULL_MESSAGES_MAX);
    if messages == 0 {
        return Err(Status::invalid_argument("max_messages must be at least 1"));
    }
    #[expect(deprecated, reason = "clients still send it")]
    let wait = if request.return_immediately { Duration::ZERO } else { PULL_WAIT };
    let wanted = ConsumerRequest {
        call: Call::Pull,
        subscription: &request.subscription,
        client_id: "",
        allowance: Allowance { messages, bytes: usize::MAX },
        deadline: None,
    };
    let consumer = Consumer::open(emulator, wanted).await?;
    let until = Instant::now() + wait;
    loop {
        let changed = consumer.wake.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let taken = consumer.take()?;
        if taken.is_something() || Instant::now() >= until {
            return match consumer.send_as_planned(taken).await? {
                Outgoing::Messages(deliveries) => Ok(encode_received(&deliveries)),
                // A unary reply is either messages or an error.
                Outgoing::MessagesAndEnd(_, end) => Err(end),
                Outgoing::Nothing => std::future::pending().await,
            };
        }
        let due = taken.next_deadline.map_or(until, |deadline| deadline.min(until));
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(due) => {}
        }
    }
}
