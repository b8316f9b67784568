//! A client of the Subscriber service: streaming pull, acknowledgement, and administration of
//! subscriptions.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _, once, unfold};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use http::uri::PathAndQuery;
use prost::Message as _;
use proto::subscriber_client::SubscriberClient;
use proto::{
    AcknowledgeRequest, DeleteSubscriptionRequest, GetSubscriptionRequest,
    ModifyAckDeadlineRequest, SeekRequest, StreamingPullRequest, Subscription,
};
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::channel::AuthorisedChannel;
use crate::classify::call_code;
use crate::config::Endpoint;
use crate::error::{Answer, PubsubError};
use crate::pull_response::Delivered;

/// The time limit of a short call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The capacity of the request queue. Acknowledgements are batched before they enter it.
const REQUESTS_MAX: usize = 16;
/// The largest response, in bytes. The service delivers at most 20 MB at a time.
const RESPONSE_BYTES_MAX: usize = 32 << 20;
/// The name of the call. The call uses our own types, because the generated ones copy every part of
/// every message.
const STREAMING_PULL: &str = "/google.pubsub.v1.Subscriber/StreamingPull";

/// The name that Pub/Sub gives the topic of a subscription whose topic was deleted.
pub const DELETED_TOPIC: &str = "_deleted-topic_";

/// A client of the Subscriber service. Clones share connection and credentials.
#[derive(Clone)]
pub struct Subscriber {
    client: SubscriberClient<Channel>,
    authorised: AuthorisedChannel,
    endpoint: Endpoint,
}

/// An open streaming pull. The call ends when both fields are dropped.
pub struct StreamingPull {
    /// Acknowledgements and deadline changes, sent in this order.
    pub requests: mpsc::Sender<StreamingPullRequest>,
    /// The delivered messages. Ends with an error, or when the service closes the stream.
    pub responses: BoxStream<'static, Result<Delivered, Status>>,
}

impl Subscriber {
    /// Creates a client with the application default credentials, or none for an emulator. Connects
    /// on first use.
    ///
    /// # Errors
    ///
    /// No credentials were found, or TLS cannot be set up.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, PubsubError> {
        let authorised = AuthorisedChannel::open(endpoint)?;
        let client = SubscriberClient::new(authorised.channel())
            .max_decoding_message_size(RESPONSE_BYTES_MAX);
        Ok(Self { client, authorised, endpoint: endpoint.clone() })
    }

    /// Begins a streaming pull with this first request. The service may answer only once it has a
    /// message to deliver, so an error arrives as the first response.
    #[must_use]
    pub fn pull(&self, first: StreamingPullRequest) -> StreamingPull {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let subscription = first.subscription.clone();
        let outgoing = once(async { first }).chain(unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|request| (request, receiver))
        }));
        let this = self.clone();
        let authorised = self.authorised.clone();
        let responses = once(async move {
            let request = this.request(&subscription, outgoing).await?;
            let mut calls =
                Grpc::new(this.authorised.channel()).max_decoding_message_size(RESPONSE_BYTES_MAX);
            let is_gone = |error| Status::unavailable(format!("no connection: {error}"));
            calls.ready().await.map_err(is_gone)?;
            let path = PathAndQuery::from_static(STREAMING_PULL);
            calls.streaming(request, path, PullCodec).await.map(tonic::Response::into_inner)
        })
        .try_flatten()
        .inspect_err(move |status| authorised.failed(status))
        .boxed();
        StreamingPull { requests, responses }
    }

    /// Returns a client with a connection of its own and the same credentials, for a service that no
    /// longer answers on the old connection.
    #[must_use]
    pub fn reconnected(&self) -> Self {
        let (authorised, endpoint) = (self.authorised.reconnected(), self.endpoint.clone());
        let client = SubscriberClient::new(authorised.channel())
            .max_decoding_message_size(RESPONSE_BYTES_MAX);
        Self { client, authorised, endpoint }
    }

    /// Acknowledges messages without a stream.
    pub async fn acknowledge(
        &self,
        subscription: &str,
        ack_ids: Vec<String>,
    ) -> Result<(), Status> {
        let message = AcknowledgeRequest { subscription: subscription.to_owned(), ack_ids };
        let request = self.short(subscription, message).await?;
        self.client.clone().acknowledge(request).await.map(drop)
    }

    /// Makes messages available for redelivery at once, without a stream.
    pub async fn hand_back(&self, subscription: &str, ack_ids: Vec<String>) -> Result<(), Status> {
        let message = ModifyAckDeadlineRequest {
            subscription: subscription.to_owned(),
            ack_ids,
            ack_deadline_seconds: 0,
        };
        let request = self.short(subscription, message).await?;
        self.client.clone().modify_ack_deadline(request).await.map(drop)
    }

    /// The settings of a subscription (`projects/P/subscriptions/S`), or `None` if it does not
    /// exist.
    pub async fn subscription(&self, name: &str) -> Result<Option<Subscription>, PubsubError> {
        const ACTION: &str = "look up";
        let message = GetSubscriptionRequest { subscription: name.to_owned() };
        let request = self.short(name, message).await;
        let answer = match request {
            Ok(request) => self.client.clone().get_subscription(request).await,
            Err(status) => Err(status),
        };
        match answer {
            Ok(found) => Ok(Some(found.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(ACTION, name, status)),
        }
    }

    /// Creates a subscription. Returns false if one with that name exists. The existing one stays
    /// unchanged.
    pub async fn create_subscription(&self, wanted: Subscription) -> Result<bool, PubsubError> {
        const ACTION: &str = "create";
        let name = wanted.name.clone();
        let answer = match self.short(&name, wanted).await {
            Ok(request) => self.client.clone().create_subscription(request).await,
            Err(status) => Err(status),
        };
        match answer {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::AlreadyExists => Ok(false),
            Err(status) => Err(refused(ACTION, &name, status)),
        }
    }

    /// Deletes a subscription and its messages. A missing subscription counts as deleted.
    pub async fn delete_subscription(&self, name: &str) -> Result<(), PubsubError> {
        let message = DeleteSubscriptionRequest { subscription: name.to_owned() };
        let answer = match self.short(name, message).await {
            Ok(request) => self.client.clone().delete_subscription(request).await,
            Err(status) => Err(status),
        };
        match answer {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(refused("delete", name, status)),
        }
    }

    /// Seeks a subscription to a time. All messages published since count as not acknowledged.
    pub async fn seek(&self, name: &str, time: SystemTime) -> Result<(), PubsubError> {
        let target = proto::seek_request::Target::Time(time.into());
        let message = SeekRequest { subscription: name.to_owned(), target: Some(target) };
        let answer = match self.short(name, message).await {
            Ok(request) => self.client.clone().seek(request).await,
            Err(status) => Err(status),
        };
        answer.map(drop).map_err(|status| refused("seek", name, status))
    }

    async fn short<T>(&self, subscription: &str, message: T) -> Result<Request<T>, Status> {
        let mut request = self.request(subscription, message).await?;
        request.set_timeout(CALL_TIMEOUT);
        Ok(request)
    }

    async fn request<T>(&self, subscription: &str, message: T) -> Result<Request<T>, Status> {
        self.authorised.request("subscription", subscription, message).await
    }
}

/// Whether the service announced the end of a stream with this status, so that everything it had sent
/// before has arrived. After any other end, messages may be lost in transit.
#[must_use]
pub fn is_announced_end(status: &Status) -> bool {
    // A broken connection and an unreadable response are the source of their status. The status of an
    // answer without one is made up by `tonic`.
    let message = status.message();
    let is_made_up = message.starts_with("protocol error: missing grpc-status")
        || message.starts_with("grpc-status header missing");
    status.source().is_none() && !is_made_up && status.code() != Code::OutOfRange
}

/// The messages of the call. A response that is malformed is the source of its error.
struct PullCodec;

impl Codec for PullCodec {
    type Encode = StreamingPullRequest;
    type Decode = Delivered;
    type Encoder = ProstEncoder<StreamingPullRequest>;
    type Decoder = PullDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<StreamingPullRequest, Delivered>::default().encoder()
    }

    fn decoder(&mut self) -> PullDecoder {
        PullDecoder
    }
}

struct PullDecoder;

impl Decoder for PullDecoder {
    type Item = Delivered;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Delivered>, Status> {
        Delivered::decode(buffer).map(Some).map_err(|error| {
            let mut status = Status::internal("a response that cannot be read");
            status.set_source(Arc::new(error));
            status
        })
    }
}

fn refused(action: &'static str, subscription: &str, status: Status) -> PubsubError {
    PubsubError::Subscription {
        action,
        subscription: subscription.to_owned(),
        code: call_code(status.code()),
        source: Box::new(Answer::of(&status)),
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl fmt::Debug for StreamingPull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamingPull").finish_non_exhaustive()
    }
}
