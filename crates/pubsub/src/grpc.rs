//! The Publish call, made directly over HTTP/2.

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use walrelay_core::{CallCode, Message, Topic};

use crate::classify::classify;
use crate::config::PublisherConfig;
use crate::credentials::{
    MakeCredentials, Renewal, RequestHeaders, TokenNumber, application_default, searched,
};
use crate::dialer::Dialer;
use crate::error::PubsubError;
use crate::pool::{Lease, Pool};
use crate::wire;
use walrelay_core::PublishFailure;

const METHOD_PATH: &str = "/google.pubsub.v1.Publisher/Publish";
const ROUTING: HeaderName = HeaderName::from_static("x-goog-request-params");
const QUOTA_PROJECT: HeaderName = HeaderName::from_static("x-goog-user-project");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The maximum number of sends of one request, if the service does not process it. A service that
/// shuts down closes its connections one by one. After that many sends, the caller's back-off works
/// better.
const SENDS_MAX: usize = 4;

/// The time in which the first access token must arrive.
const FIRST_TOKEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two requests for the first access token.
const FIRST_TOKEN_PAUSE: Duration = Duration::from_millis(500);

/// Publishes batches. Clones are cheap and share connections and credentials.
#[derive(Clone)]
pub struct GrpcPublisher {
    client: Arc<Client>,
}

struct Client {
    pool: Pool,
    headers: RequestHeaders,
    routes: Routes,
    uri: Uri,
    request_timeout: Duration,
}

impl GrpcPublisher {
    /// Creates a publisher with the application default credentials, or none for an emulator.
    ///
    /// Nothing is sent yet: the first requests open the connections. Call it inside a Tokio
    /// runtime, which the credentials use to renew their tokens.
    ///
    /// # Errors
    ///
    /// A setting is out of range, or no credentials were found.
    pub fn connect(config: &PublisherConfig) -> Result<Self, PubsubError> {
        let credentials: Option<MakeCredentials> = match config.endpoint.is_emulator() {
            true => None,
            false => Some(Box::new(application_default)),
        };
        Self::assemble(config, Dialer::new(config)?, credentials)
    }

    pub(crate) fn assemble(
        config: &PublisherConfig,
        dialer: Dialer,
        credentials: Option<MakeCredentials>,
    ) -> Result<Self, PubsubError> {
        config.check()?;
        let endpoint = &config.endpoint;
        let uri = Uri::builder()
            .scheme(endpoint.scheme())
            .authority(endpoint.authority())
            .path_and_query(METHOD_PATH)
            .build()
            .map_err(|_| PubsubError::Endpoint {
                text: endpoint.to_string(),
                problem: "cannot stand in a request",
            })?;
        let client = Client {
            pool: Pool::new(dialer, config.connections_max),
            headers: RequestHeaders::new(credentials, fixed_headers(config)?)?,
            routes: Routes::default(),
            uri,
            request_timeout: config.request_timeout,
        };
        Ok(Self { client: Arc::new(client) })
    }

    /// Requests an access token, so that missing credentials are reported before any row is read.
    /// The metadata server of a new machine may not answer yet, so a failure that may pass is
    /// retried.
    ///
    /// # Errors
    ///
    /// No token arrived within half a minute, or the credentials are refused. An emulator needs none.
    pub async fn authenticate(&self) -> Result<(), PubsubError> {
        let until = Instant::now() + FIRST_TOKEN_TIMEOUT;
        let mut is_first = true;
        loop {
            let Err(failure) = self.client.headers.get().await else { return Ok(()) };
            let may_pass = failure.code == CallCode::Unavailable.into();
            if !may_pass || Instant::now() >= until {
                let text = format!("{}; {}", failure.message, searched());
                return Err(PubsubError::Credentials(text.into()));
            }
            if std::mem::take(&mut is_first) {
                let seconds = FIRST_TOKEN_TIMEOUT.as_secs();
                tracing::warn!(searched = %searched(), "no access token yet; trying for {seconds} s");
            }
            sleep(FIRST_TOKEN_PAUSE).await;
        }
    }

    /// Publishes `messages`, which belong to `topic` and share one ordering key. Returns one
    /// message id for each message, in their order.
    ///
    /// The request is encoded before this returns, so the future borrows nothing. Dropping the
    /// future cancels the call, but the service may have stored the batch anyway.
    pub fn publish<'a, M>(
        &self,
        topic: &Topic,
        messages: M,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static + use<M>
    where
        M: ExactSizeIterator<Item = &'a Message> + Clone,
    {
        let count = messages.len();
        let body = wire::request(topic, messages);
        let routing = self.client.routes.of(topic);
        let client = Arc::clone(&self.client);
        async move {
            let answer = timeout(client.request_timeout, client.call(&routing, &body)).await;
            let frame = answer.unwrap_or_else(|_| Err(client.too_late()))?;
            read_ids(&frame, count)
        }
    }
}

impl Client {
    async fn call(&self, routing: &HeaderValue, body: &Bytes) -> Result<Bytes, PublishFailure> {
        let mut sends = 0;
        loop {
            sends += 1;
            let (mut headers, token) = self.headers.get().await?;
            headers.insert(ROUTING, routing.clone());
            let lease = self
                .pool
                .lease()
                .await
                .map_err(|failure| classify(Code::Unavailable, failure.to_string()))?;
            match self.exchange(&lease, headers, body.clone()).await {
                Ok(frame) => return Ok(frame),
                Err(Failed::Finally(failure)) => return Err(failure),
                Err(Failed::Unauthenticated(failure)) if sends == SENDS_MAX => return Err(failure),
                // Only the token was refused, so the request may succeed with another token.
                Err(Failed::Unauthenticated(failure)) => self.renew_token(token, failure)?,
                Err(Failed::NotProcessed(error)) if sends == SENDS_MAX => {
                    return Err(transport(&error));
                }
                Err(Failed::NotProcessed(_)) => lease.connection().retire(),
            }
        }
    }

    /// Returns `Ok` if the request may be sent again with another token.
    fn renew_token(
        &self,
        refused: TokenNumber,
        failure: PublishFailure,
    ) -> Result<(), PublishFailure> {
        match self.headers.renew(Some(refused)) {
            Renewal::Renewed => Ok(()),
            Renewal::TooSoon => Err(failure),
        }
    }

    /// Sends one request on one connection and reads its answer.
    ///
    /// The request is assembled only when it is sent. Otherwise it would take most of a call's
    /// memory while the call waits for a connection.
    async fn exchange(
        &self,
        lease: &Lease,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Bytes, Failed> {
        // Any error before the request is handed over means that it was not sent.
        let mut sender = lease.connection().sender().ready().await.map_err(Failed::NotProcessed)?;
        let (response, mut stream) =
            sender.send_request(self.request(headers), false).map_err(Failed::NotProcessed)?;
        stream.send_data(body, true)?;
        let response = response.await?;
        lease.connection().answered();
        answer(response).await
    }

    fn request(&self, headers: HeaderMap) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        request
    }

    fn too_late(&self) -> PublishFailure {
        let waited = self.request_timeout.as_millis();
        classify(Code::DeadlineExceeded, format!("no answer within {waited} ms"))
    }
}

fn fixed_headers(config: &PublisherConfig) -> Result<HeaderMap, PubsubError> {
    let mut headers = HeaderMap::new();
    // Reserves the entry, so that a copy of the map does not grow when each request sets its own
    // value.
    headers.insert(ROUTING, HeaderValue::from_static(""));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let agent = concat!("walrelay/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    // The value may have at most 8 digits. `check` keeps the timeout at or below 10 minutes.
    let deadline = format!("{}m", config.request_timeout.as_millis());
    if let Ok(value) = HeaderValue::from_str(&deadline) {
        headers.insert(GRPC_TIMEOUT, value);
    }
    if let Some(project) = &config.quota_project {
        let value = HeaderValue::from_str(project).map_err(|_| PubsubError::Setting {
            name: "quota_project",
            problem: "is not a project id",
        })?;
        headers.insert(QUOTA_PROJECT, value);
    }
    Ok(headers)
}

/// The routing headers of the topics, each built once.
#[derive(Default)]
struct Routes(Mutex<HashMap<Topic, HeaderValue>>);

impl Routes {
    /// The number of cached headers. A template over a column of many values produces unlimited
    /// topics.
    const KEPT: usize = 4_096;

    fn of(&self, topic: &Topic) -> HeaderValue {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = routes.get(topic) {
            return route.clone();
        }
        if routes.len() >= Self::KEPT {
            routes.clear();
        }
        let route = routing_by("topic", topic);
        routes.insert(Topic::clone(topic), route.clone());
        route
    }
}

/// Google's routing header: `kind=name`, percent-encoded.
pub(crate) fn routing_by(kind: &str, name: &str) -> HeaderValue {
    let mut text = String::with_capacity(kind.len() + name.len() + 9);
    text.push_str(kind);
    text.push('=');
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else if write!(text, "%{byte:02X}").is_err() {
            unreachable!("writing to a String cannot fail");
        }
    }
    HeaderValue::from_str(&text).expect("percent-encoded text is ASCII")
}

enum Failed {
    /// The service did not process the request, so it may be sent again without risk of a
    /// duplicate.
    NotProcessed(h2::Error),
    /// The service refused the access token.
    Unauthenticated(PublishFailure),
    Finally(PublishFailure),
}

impl Failed {
    fn answered(code: Code, message: impl Into<String>) -> Self {
        let failure = classify(code, message);
        if code == Code::Unauthenticated {
            Self::Unauthenticated(failure)
        } else {
            Self::Finally(failure)
        }
    }
}

impl From<h2::Error> for Failed {
    fn from(error: h2::Error) -> Self {
        let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        // RFC 9113, 6.8: streams above the GOAWAY's last one "were not or will not be processed".
        // `h2` returns this error only for those streams. The others continue.
        let went_away = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
        if error.is_remote() && (refused || went_away) {
            return Self::NotProcessed(error);
        }
        Self::Finally(transport(&error))
    }
}

async fn answer(response: Response<RecvStream>) -> Result<Bytes, Failed> {
    let (head, mut body) = response.into_parts();
    // An error without a body has its status in the headers.
    if let Some(status) = Status::from_header_map(&head.headers) {
        check(&status)?;
    } else if head.status != StatusCode::OK {
        return Err(not_grpc(head.status));
    }
    let frame = read(&mut body).await?;
    match body.trailers().await?.as_ref().and_then(Status::from_header_map) {
        Some(status) => check(&status).map(|()| frame),
        None => Err(Failed::Finally(classify(Code::Unknown, "the answer ended without a status"))),
    }
}

fn check(status: &Status) -> Result<(), Failed> {
    if status.code() == Code::Ok {
        return Ok(());
    }
    Err(Failed::answered(status.code(), status.message()))
}

/// Reads the body, which is one chunk unless the batch was large.
async fn read(body: &mut RecvStream) -> Result<Bytes, Failed> {
    let mut whole = Bytes::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        if whole.len() + chunk.len() > wire::RESPONSE_BYTES_MAX {
            let problem = "the answer is larger than any PublishResponse";
            return Err(Failed::Finally(classify(Code::Internal, problem)));
        }
        whole = if whole.is_empty() { chunk } else { joined(&whole, &chunk) };
    }
    Ok(whole)
}

fn joined(head: &[u8], tail: &[u8]) -> Bytes {
    let mut whole = BytesMut::with_capacity(head.len() + tail.len());
    whole.extend_from_slice(head);
    whole.extend_from_slice(tail);
    whole.freeze()
}

fn read_ids(frame: &[u8], count: usize) -> Result<Vec<String>, PublishFailure> {
    let ids = wire::message_ids(frame)
        .map_err(|problem| classify(Code::Internal, problem.to_string()))?;
    if ids.len() != count {
        let problem = format!("{count} messages were sent and {} ids came back", ids.len());
        return Err(classify(Code::Internal, problem));
    }
    Ok(ids)
}

/// Classifies a lost connection or a reset stream (gRPC over HTTP/2, "Errors").
fn transport(error: &h2::Error) -> PublishFailure {
    // A GOAWAY of any reason concerns only its connection, so another connection may work.
    let code = match error.reason() {
        Some(reason) if error.is_reset() => match reason {
            Reason::REFUSED_STREAM => Code::Unavailable,
            Reason::CANCEL => Code::Cancelled,
            Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
            Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
            _ => Code::Internal,
        },
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(_) | None => Code::Unavailable,
    };
    classify(code, format!("the connection to Pub/Sub failed: {error}"))
}

/// Classifies an answer that is not from a gRPC server (gRPC, "HTTP to gRPC Status Code Mapping").
fn not_grpc(status: StatusCode) -> Failed {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Failed::answered(code, format!("the answer is HTTP status {status}, not gRPC"))
}

impl fmt::Debug for GrpcPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcPublisher").field("uri", &self.client.uri).finish_non_exhaustive()
    }
}
