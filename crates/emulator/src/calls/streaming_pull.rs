//! StreamingPull: messages in one direction, acknowledgements and deadlines in the other.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use h2::SendStream;
use h2::server::SendResponse;
use prost::Message;
use proto::streaming_pull_response::AcknowledgeConfirmation;
use proto::{StreamingPullRequest, StreamingPullResponse};
use tokio::time::Instant;
use tonic::Status;

use crate::calls::acknowledge::{Answer, ack_deadline, change};
use crate::calls::consumer::{Consumer, ConsumerRequest, Outgoing};
use crate::calls::responses::encode_received;
use crate::emulator::Emulator;
use crate::faults::fault::Call;
use crate::store::confirmation::Confirmation;
use crate::store::consuming::{Change, Taken};
use crate::store::queue::{Allowance, Delivery};
use crate::wire::grpc::{self, Messages};

/// The interval of heartbeats on a quiet stream of protocol version 1.
const HEARTBEAT: Duration = Duration::from_secs(30);

pub(crate) async fn streaming_pull(
    emulator: &Emulator,
    mut requests: Messages,
    mut respond: SendResponse<Bytes>,
) {
    let opening = async {
        let first = grpc::decode(&requests.only().await?)?;
        open(emulator, &first).await.map(|consumer| (consumer, first))
    };
    let opened = tokio::select! {
        biased;
        opened = opening => opened,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    let ended = match opened {
        Ok((consumer, first)) => match grpc::begin(&mut respond) {
            Ok(mut replies) => {
                let end =
                    Stream::new(&consumer, &first, &mut replies).run(&mut requests, first).await;
                match end {
                    End::Gone => return,
                    End::Status(status) => grpc::end(&mut replies, &status),
                }
            }
            Err(error) => Err(error),
        },
        Err(status) => grpc::reply(&mut respond, Err(status)),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "stream not ended");
    }
}

async fn open(emulator: &Emulator, first: &StreamingPullRequest) -> Result<Consumer, Status> {
    let bound = |value| match usize::try_from(value) {
        // Zero and negative values mean no limit.
        Ok(0) | Err(_) => usize::MAX,
        Ok(bound) => bound,
    };
    let allowance = Allowance {
        messages: bound(first.max_outstanding_messages),
        bytes: bound(first.max_outstanding_bytes),
    };
    let wanted = ConsumerRequest {
        call: Call::StreamingPull,
        subscription: &first.subscription,
        client_id: &first.client_id,
        allowance,
        deadline: stream_deadline(first)?,
    };
    Consumer::open(emulator, wanted).await
}

/// Returns the deadline that a request sets for its stream. `None` keeps the current deadline.
fn stream_deadline(request: &StreamingPullRequest) -> Result<Option<Duration>, Status> {
    let seconds = request.stream_ack_deadline_seconds;
    match seconds {
        0 => Ok(None),
        10..=600 => Ok(Some(Duration::from_secs(u64::from(seconds.unsigned_abs())))),
        _ => Err(Status::invalid_argument(format!(
            "stream_ack_deadline_seconds is {seconds}; 10 to 600 are allowed"
        ))),
    }
}

enum End {
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

type Waiting<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

struct Stream<'a> {
    consumer: &'a Consumer,
    replies: &'a mut SendStream<Bytes>,
    /// The encoded `subscription_properties`, which every response contains.
    properties: Vec<u8>,
    heartbeat: Option<Duration>,
    quiet_since: Instant,
    /// Messages that a fault delays. No other messages are taken meanwhile, because they would
    /// overtake these.
    sending: Option<Waiting<'a, Outgoing>>,
    /// A request that a fault delays. No other request is read meanwhile, because it would overtake
    /// this one.
    applying: Option<Waiting<'a, StreamingPullResponse>>,
}

impl<'a> Stream<'a> {
    fn new(
        consumer: &'a Consumer,
        first: &StreamingPullRequest,
        replies: &'a mut SendStream<Bytes>,
    ) -> Self {
        let properties = StreamingPullResponse {
            subscription_properties: Some(consumer.properties),
            ..Default::default()
        };
        Self {
            consumer,
            replies,
            properties: properties.encode_to_vec(),
            heartbeat: (first.protocol_version >= 1).then_some(HEARTBEAT),
            quiet_since: Instant::now(),
            sending: None,
            applying: None,
        }
    }

    async fn run(mut self, requests: &mut Messages, first: StreamingPullRequest) -> End {
        match self.deliver(requests, first).await {
            Ok(()) => End::Status(Status::ok("")),
            Err(end) => end,
        }
    }

    /// Delivers until the client closes its half.
    async fn deliver(
        &mut self,
        requests: &mut Messages,
        first: StreamingPullRequest,
    ) -> Result<(), End> {
        self.apply(first).await?;
        loop {
            // Acknowledgements that have arrived are read first. Otherwise a long backlog would be
            // sent without reading any of them, and its leases would expire.
            while self.applying.is_none()
                && let Some(request) = requests.next().now_or_never()
            {
                match request? {
                    Some(frame) => self.request(grpc::decode(&frame)?).await?,
                    None => return Ok(()),
                }
            }
            let changed = self.consumer.wake.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let taken = if self.sending.is_none() { Some(self.consumer.take()?) } else { None };
            let due = taken.as_ref().and_then(|taken| taken.next_deadline);
            if let Some(taken) = taken.filter(Taken::is_something) {
                self.send_now(taken).await?;
                continue;
            }
            let heartbeat = self.heartbeat.map(|every| self.quiet_since + every);
            tokio::select! {
                request = requests.next(), if self.applying.is_none() => match request? {
                    Some(frame) => self.request(grpc::decode(&frame)?).await?,
                    None => return Ok(()),
                },
                applied = waiting(&mut self.applying) => {
                    self.applying = None;
                    self.confirm(applied?).await?;
                }
                outgoing = waiting(&mut self.sending) => {
                    self.sending = None;
                    self.send(outgoing?).await?;
                }
                () = changed, if self.sending.is_none() => {}
                () = until(due.into_iter().chain(heartbeat).min()) => {}
                _ = poll_fn(|cx| self.replies.poll_reset(cx)) => return Err(End::Gone),
            }
            if heartbeat.is_some_and(|at| at <= Instant::now()) {
                self.respond(&StreamingPullResponse::default()).await?;
            }
        }
    }

    /// Sends the messages, or stores them if a fault delays them.
    async fn send_now(&mut self, taken: Taken) -> Result<(), End> {
        let mut sending: Waiting<'a, _> = Box::pin(self.consumer.send_as_planned(taken));
        match sending.as_mut().now_or_never() {
            Some(outgoing) => self.send(outgoing?).await,
            None => {
                self.sending = Some(sending);
                Ok(())
            }
        }
    }

    async fn send(&mut self, outgoing: Outgoing) -> Result<(), End> {
        match outgoing {
            Outgoing::Messages(deliveries) => self.messages(&deliveries).await,
            Outgoing::MessagesAndEnd(deliveries, end) => {
                self.messages(&deliveries).await?;
                Err(End::Status(end))
            }
            Outgoing::Nothing => Ok(()),
        }
    }

    async fn messages(&mut self, deliveries: &[Delivery]) -> Result<(), End> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let mut encoded = encode_received(deliveries);
        encoded.extend_from_slice(&self.properties);
        self.write(grpc::frame(encoded)).await
    }

    /// Sends a response without messages, with the properties that every response contains.
    async fn respond(&mut self, response: &StreamingPullResponse) -> Result<(), End> {
        let mut encoded = grpc::encode(response);
        encoded.extend_from_slice(&self.properties);
        self.write(grpc::frame(encoded)).await
    }

    /// Writes as the client's flow-control window allows. A client that does not read therefore
    /// holds only its leased messages.
    async fn write(&mut self, mut frame: Bytes) -> Result<(), End> {
        self.quiet_since = Instant::now();
        while frame.has_remaining() {
            self.replies.reserve_capacity(frame.len());
            let capacity = poll_fn(|cx| self.replies.poll_capacity(cx)).await;
            let capacity = capacity.ok_or(End::Gone)??;
            let now = frame.split_to(capacity.min(frame.len()));
            self.replies.send_data(now, false)?;
        }
        Ok(())
    }

    /// Handles a request after the first one. An empty request is a ping, which is answered at
    /// once: current clients reopen a stream that leaves a ping unanswered.
    async fn request(&mut self, request: StreamingPullRequest) -> Result<(), End> {
        match request == StreamingPullRequest::default() {
            true => self.respond(&StreamingPullResponse::default()).await,
            false => self.apply(request).await,
        }
    }

    /// Makes the changes of a request, or stores the request if a fault delays it.
    async fn apply(&mut self, request: StreamingPullRequest) -> Result<(), End> {
        if request.modify_deadline_ack_ids.len() != request.modify_deadline_seconds.len() {
            return Err(End::Status(Status::invalid_argument(
                "modify_deadline_ack_ids and modify_deadline_seconds differ in length",
            )));
        }
        if let Some(deadline) = stream_deadline(&request)? {
            self.consumer.set_deadline(deadline);
        }
        if request.ack_ids.is_empty() && request.modify_deadline_ack_ids.is_empty() {
            return Ok(());
        }
        let mut applying: Waiting<'a, _> = Box::pin(apply(self.consumer, request));
        match applying.as_mut().now_or_never() {
            Some(confirmed) => self.confirm(confirmed?).await,
            None => {
                self.applying = Some(applying);
                Ok(())
            }
        }
    }

    /// Sends the confirmations, which exist only with exactly-once delivery.
    async fn confirm(&mut self, response: StreamingPullResponse) -> Result<(), End> {
        match response == StreamingPullResponse::default() {
            true => Ok(()),
            false => self.respond(&response).await,
        }
    }
}

/// Makes the changes of one request. Returns the confirmations.
async fn apply(
    consumer: &Consumer,
    request: StreamingPullRequest,
) -> Result<StreamingPullResponse, Status> {
    let (emulator, subscription) = (consumer.emulator(), consumer.subscription());
    let mut response = StreamingPullResponse::default();
    if !request.ack_ids.is_empty() {
        let answer = change(emulator, subscription, &request.ack_ids, Change::Acknowledge).await?;
        if let Answer::Done(Some(confirmation)) = answer {
            response.acknowledge_confirmation = Some(acknowledge_confirmation(confirmation));
        }
    }
    let (mut ids, mut seconds) =
        (&request.modify_deadline_ack_ids[..], &request.modify_deadline_seconds[..]);
    while let Some(first) = seconds.first() {
        // Adjacent ids with the same deadline are one change.
        let count = seconds.iter().take_while(|its| *its == first).count();
        let wanted = Change::Deadline(ack_deadline(*first)?);
        let answer = change(emulator, subscription, &ids[..count], wanted).await?;
        if let Answer::Done(Some(confirmation)) = answer {
            let all = response.modify_ack_deadline_confirmation.get_or_insert_default();
            all.ack_ids.extend(confirmation.confirmed);
            all.invalid_ack_ids.extend(confirmation.invalid);
            // The response has no list for unordered ids, because deadlines may be moved in any
            // order.
            all.temporary_failed_ack_ids.extend(confirmation.unordered);
            all.temporary_failed_ack_ids.extend(confirmation.temporary);
        }
        (ids, seconds) = (&ids[count..], &seconds[count..]);
    }
    Ok(response)
}

fn acknowledge_confirmation(confirmation: Confirmation) -> AcknowledgeConfirmation {
    AcknowledgeConfirmation {
        ack_ids: confirmation.confirmed,
        invalid_ack_ids: confirmation.invalid,
        unordered_ack_ids: confirmation.unordered,
        temporary_failed_ack_ids: confirmation.temporary,
    }
}

/// Waits until a delayed operation is released. Waits for ever if there is none.
async fn waiting<T>(kept: &mut Option<Waiting<'_, T>>) -> Result<T, Status> {
    match kept {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
