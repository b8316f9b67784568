//! Delivery: Pull and StreamingPull.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use h2::SendStream;
use h2::server::SendResponse;
use prost::Message;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::calls::admin::{self, ack_deadline, ack_ids};
use crate::calls::responses::encode_received;
use crate::emulator::Emulator;
use crate::store::queue::{Allowance, ConsumerId, Delivery};
use crate::store::subscription::Subscription;
use crate::wire::grpc::{self, Messages};

/// How long a Pull waits for a first message; then it answers with none, as production may.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// How often a quiet stream of protocol version 1 is told that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Most messages of one Pull, as in production.
const PULL_MESSAGES_MAX: usize = 1_000;

/// One Pull call.
pub(crate) async fn pull(emulator: &Emulator, frame: &Bytes) -> Result<BytesMut, Status> {
    let request = admin::decode::<proto::PullRequest>(frame)?;
    let messages = usize::try_from(request.max_messages).unwrap_or(0).min(PULL_MESSAGES_MAX);
    if messages == 0 {
        return Err(Status::invalid_argument("max_messages must be at least 1"));
    }
    // The field is deprecated, and clients still send it.
    #[expect(deprecated, reason = "clients still send it")]
    let wait = if request.return_immediately { Duration::ZERO } else { PULL_WAIT };
    let allowance = Allowance { messages, bytes: usize::MAX };
    let consumer = Consumer::open(emulator, &request.subscription, allowance, None)?;
    let until = Instant::now() + wait;
    loop {
        let changed = consumer.wake.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let (deliveries, expiry) = consumer.take()?;
        if !deliveries.is_empty() || Instant::now() >= until {
            return Ok(encode_received(&deliveries));
        }
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(expiry.map_or(until, |expiry| expiry.min(until))) => {}
        }
    }
}

/// One StreamingPull call, to its end.
pub(crate) async fn streaming_pull(
    emulator: &Emulator,
    mut requests: Messages,
    mut respond: SendResponse<Bytes>,
) {
    let opening = async {
        let frame = requests.only().await?;
        Stream::open(emulator, &admin::decode(&frame)?)
    };
    let opened = tokio::select! {
        biased;
        opened = opening => opened,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    let ended = match opened {
        Ok(stream) => match grpc::begin(&mut respond) {
            Ok(mut replies) => match stream.run(&mut requests, &mut replies).await {
                End::Gone => return,
                End::Status(status) => grpc::end(&mut replies, &status),
            },
            Err(error) => Err(error),
        },
        Err(status) => grpc::reply(&mut respond, Err(status)),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "stream not ended");
    }
}

/// How a stream ends.
enum End {
    /// The client is not there any more.
    Gone,
    Status(Status),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<h2::Error> for End {
    fn from(_: h2::Error) -> Self {
        Self::Gone
    }
}

/// What StreamingPull appends to its responses.
struct Stream {
    consumer: Consumer,
    heartbeat: Option<Duration>,
    /// `subscription_properties`, encoded.
    properties: Vec<u8>,
}

impl Stream {
    fn open(emulator: &Emulator, first: &proto::StreamingPullRequest) -> Result<Self, Status> {
        let bound = |value| match usize::try_from(value) {
            // Zero and less mean no bound.
            Ok(0) | Err(_) => usize::MAX,
            Ok(bound) => bound,
        };
        let allowance = Allowance {
            messages: bound(first.max_outstanding_messages),
            bytes: bound(first.max_outstanding_bytes),
        };
        let seconds = first.stream_ack_deadline_seconds;
        let deadline = match seconds {
            // What the subscription says.
            0 => None,
            10..=600 => Some(Duration::from_secs(u64::from(seconds.unsigned_abs()))),
            _ => {
                return Err(Status::invalid_argument(format!(
                    "stream_ack_deadline_seconds is {seconds}; 10 to 600 are allowed"
                )));
            }
        };
        let consumer = Consumer::open(emulator, &first.subscription, allowance, deadline)?;
        let properties = proto::StreamingPullResponse {
            subscription_properties: Some(proto::streaming_pull_response::SubscriptionProperties {
                message_ordering_enabled: consumer.is_ordered,
                ..Default::default()
            }),
            ..Default::default()
        };
        let stream = Self {
            consumer,
            heartbeat: (first.protocol_version >= 1).then_some(HEARTBEAT),
            properties: properties.encode_to_vec(),
        };
        stream.consumer.apply(first)?;
        Ok(stream)
    }

    async fn run(&self, requests: &mut Messages, replies: &mut SendStream<Bytes>) -> End {
        match self.deliver(requests, replies).await {
            Ok(()) => End::Status(Status::ok("")),
            Err(end) => end,
        }
    }

    /// Delivers until the client closes its half.
    async fn deliver(
        &self,
        requests: &mut Messages,
        replies: &mut SendStream<Bytes>,
    ) -> Result<(), End> {
        let mut quiet_since = Instant::now();
        loop {
            // Acknowledgements that are there go first, or a long backlog would be sent with none
            // of them read, and expire while it is.
            while let Some(request) = requests.next().now_or_never() {
                match request? {
                    Some(frame) => self.consumer.apply(&admin::decode(&frame)?)?,
                    None => return Ok(()),
                }
            }
            let changed = self.consumer.wake.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (deliveries, expiry) = self.consumer.take()?;
            if !deliveries.is_empty() {
                let mut encoded = encode_received(&deliveries);
                encoded.extend_from_slice(&self.properties);
                send(replies, grpc::frame(encoded)).await?;
                quiet_since = Instant::now();
                continue;
            }
            let heartbeat = self.heartbeat.map(|every| quiet_since + every);
            let due = expiry.into_iter().chain(heartbeat).min();
            tokio::select! {
                request = requests.next() => match request? {
                    Some(frame) => self.consumer.apply(&admin::decode(&frame)?)?,
                    None => return Ok(()),
                },
                () = changed => {}
                () = until(due) => {}
                _ = poll_fn(|cx| replies.poll_reset(cx)) => return Err(End::Gone),
            }
            if heartbeat.is_some_and(|at| at <= Instant::now()) {
                let beat = grpc::encode(&proto::StreamingPullResponse::default());
                send(replies, grpc::frame(beat)).await?;
                quiet_since = Instant::now();
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Sends as the client's window allows: a client that does not read holds only what is leased to it.
async fn send(replies: &mut SendStream<Bytes>, mut frame: Bytes) -> Result<(), h2::Error> {
    while frame.has_remaining() {
        replies.reserve_capacity(frame.len());
        let capacity = poll_fn(|cx| replies.poll_capacity(cx)).await;
        let capacity = capacity.ok_or(h2::Reason::CANCEL)??;
        let now = frame.split_to(capacity.min(frame.len()));
        replies.send_data(now, false)?;
    }
    Ok(())
}

/// A consumer of a subscription, from opening to dropping.
struct Consumer {
    emulator: Emulator,
    subscription: String,
    id: ConsumerId,
    /// The stream's own deadline, instead of the subscription's.
    deadline: Option<Duration>,
    wake: Arc<Notify>,
    is_ordered: bool,
}

impl Consumer {
    fn open(
        emulator: &Emulator,
        name: &str,
        allowance: Allowance,
        deadline: Option<Duration>,
    ) -> Result<Self, Status> {
        let mut broker = emulator.broker();
        let id = broker.new_consumer();
        let subscription = broker.subscription_mut(name)?;
        subscription.queue.open(id, allowance);
        Ok(Self {
            emulator: emulator.clone(),
            subscription: name.to_owned(),
            id,
            deadline,
            wake: Arc::clone(&subscription.wake),
            is_ordered: subscription.config.enable_message_ordering,
        })
    }

    /// What may be delivered now, and when the next lease ends.
    fn take(&self) -> Result<(Vec<Delivery>, Option<Instant>), Status> {
        let now = Instant::now();
        let mut broker = self.emulator.broker();
        let Subscription { queue, ack_deadline, wake, .. } =
            broker.subscription_mut(&self.subscription)?;
        if queue.expire(now) {
            // What expired may have freed keys and allowances of other streams.
            wake.notify_waiters();
        }
        let deliveries = queue.take(self.id, now + self.deadline.unwrap_or(*ack_deadline));
        Ok((deliveries, queue.next_deadline()))
    }

    /// Acknowledgements and deadlines that came on the stream.
    fn apply(&self, request: &proto::StreamingPullRequest) -> Result<(), Status> {
        let acknowledged = ack_ids(&request.ack_ids)?;
        let modified = ack_ids(&request.modify_deadline_ack_ids)?;
        if modified.len() != request.modify_deadline_seconds.len() {
            return Err(Status::invalid_argument(
                "modify_deadline_ack_ids and modify_deadline_seconds differ in length",
            ));
        }
        if acknowledged.is_empty() && modified.is_empty() {
            return Ok(());
        }
        let mut broker = self.emulator.broker();
        let subscription = broker.subscription_mut(&self.subscription)?;
        subscription.acknowledge(&acknowledged);
        for (id, seconds) in modified.into_iter().zip(&request.modify_deadline_seconds) {
            subscription.modify(&[id], ack_deadline(*seconds)?);
        }
        Ok(())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let mut broker = self.emulator.broker();
        if let Ok(subscription) = broker.subscription_mut(&self.subscription) {
            subscription.queue.close(self.id);
        }
    }
}
