//! The Subscriber service: a streaming pull, and looking subscriptions up and creating them.
//!
//! Over a channel of `tonic`, not the connections of [`GrpcPublisher`](crate::GrpcPublisher): a
//! consumer has one long call, where a publisher has a thousand short ones.

use std::fmt;
use std::time::{Duration, SystemTime};

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _, once, unfold};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use http::header::{HeaderMap, HeaderValue};
use proto::subscriber_client::SubscriberClient;
use proto::{
    AcknowledgeRequest, GetSubscriptionRequest, SeekRequest, StreamingPullRequest,
    StreamingPullResponse, Subscription,
};
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint as Transport};
use tonic::{Code, Request, Status};

use crate::config::Endpoint;
use crate::credentials::{RequestHeaders, application_default};
use crate::error::PubsubError;
use crate::grpc::routing_by;

/// How long a short call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that is dead without a word is found within half a minute.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that wait to be written. Acknowledgements are gathered before they get here.
const REQUESTS_MAX: usize = 16;
/// The service delivers at most 20 MB at a time.
const RESPONSE_BYTES_MAX: usize = 32 << 20;
/// Receive windows: a backlog is not to wait for a round trip a message.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// A client of the Subscriber service. Clones share connection and credentials.
#[derive(Clone)]
pub struct Subscriber {
    client: SubscriberClient<Channel>,
    headers: std::sync::Arc<RequestHeaders>,
    endpoint: Endpoint,
}

/// An open streaming pull; the call ends when both halves are dropped.
pub struct StreamingPull {
    /// Acknowledgements and leases, in the order in which they leave.
    pub requests: mpsc::Sender<StreamingPullRequest>,
    /// What is delivered. Ends with an error, or when the service closes the stream.
    pub responses: BoxStream<'static, Result<StreamingPullResponse, Status>>,
}

impl Subscriber {
    /// With the application default credentials, or none for an emulator. Connects when first used.
    ///
    /// # Errors
    ///
    /// No credentials were found, or TLS cannot be set up.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, PubsubError> {
        let unusable = |error: tonic::transport::Error| PubsubError::AdminClient(Box::new(error));
        let mut transport = Transport::from_shared(endpoint.to_string())
            .map_err(unusable)?
            .user_agent(concat!("walrelay/", env!("CARGO_PKG_VERSION")))
            .map_err(unusable)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .tcp_nodelay(true);
        let mut credentials = None;
        if !endpoint.is_emulator() {
            let tls = ClientTlsConfig::new().with_webpki_roots();
            transport = transport.tls_config(tls).map_err(unusable)?;
            credentials = Some(application_default()?);
        }
        let client = SubscriberClient::new(transport.connect_lazy())
            .max_decoding_message_size(RESPONSE_BYTES_MAX);
        let headers = RequestHeaders::new(credentials, HeaderMap::new()).into();
        Ok(Self { client, headers, endpoint: endpoint.clone() })
    }

    /// Begins a streaming pull with this first request. The service may answer only once it has
    /// something to deliver, so that an error is the first response.
    #[must_use]
    pub fn pull(&self, first: StreamingPullRequest) -> StreamingPull {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let subscription = first.subscription.clone();
        let outgoing = once(async { first }).chain(unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|request| (request, receiver))
        }));
        let this = self.clone();
        let responses = once(async move {
            let request = this.request(&subscription, outgoing).await?;
            let mut client = this.client.clone();
            client.streaming_pull(request).await.map(tonic::Response::into_inner)
        })
        .try_flatten()
        .boxed();
        StreamingPull { requests, responses }
    }

    /// Acknowledges without a stream.
    ///
    /// # Errors
    ///
    /// The service does not answer, or refuses.
    pub async fn acknowledge(
        &self,
        subscription: &str,
        ack_ids: Vec<String>,
    ) -> Result<(), Status> {
        let message = AcknowledgeRequest { subscription: subscription.to_owned(), ack_ids };
        let request = self.short(subscription, message).await?;
        self.client.clone().acknowledge(request).await.map(drop)
    }

    /// What a subscription (`projects/P/subscriptions/S`) is set up as; `None` when it does not exist.
    ///
    /// # Errors
    ///
    /// The service does not answer, or does not let us look.
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

    /// Creates a subscription; returns false when one of that name exists, which stays as it is.
    ///
    /// # Errors
    ///
    /// The service does not answer, or refuses.
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

    /// Seeks a subscription to a time: what was published since counts as not acknowledged.
    ///
    /// # Errors
    ///
    /// The service does not answer, or refuses.
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

    /// A request with credentials and the header by which Google routes it.
    async fn request<T>(&self, subscription: &str, message: T) -> Result<Request<T>, Status> {
        let headers = self.headers.get().await;
        let mut headers =
            headers.map_err(|failure| Status::unauthenticated(failure.message.to_string()))?;
        let routing: HeaderValue = routing_by("subscription", subscription);
        headers.insert("x-goog-request-params", routing);
        let mut request = Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        Ok(request)
    }
}

fn refused(action: &'static str, subscription: &str, status: Status) -> PubsubError {
    PubsubError::Subscription {
        action,
        subscription: subscription.to_owned(),
        code: crate::classify::classify(status.code(), "").code,
        source: Box::new(status),
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
