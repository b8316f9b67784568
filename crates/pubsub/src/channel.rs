//! The gRPC channel for all calls except publishing: a `tonic` channel with our credentials on each
//! call.
//!
//! [`GrpcPublisher`](crate::GrpcPublisher) has connections of its own. It makes thousands of short
//! calls, and this channel carries a few calls or one long one.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint as Transport};
use tonic::{Code, Request, Status};

use walrelay_core::CallCode;

use crate::config::Endpoint;
use crate::credentials::{MakeCredentials, RequestHeaders, application_default};
use crate::error::PubsubError;
use crate::grpc::routing_by;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// With these values, a silently dead connection is detected within half a minute.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Large receive windows, so that a backlog does not wait for a round trip per message.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// A channel and the credentials of its calls. Clones share both.
#[derive(Clone)]
pub(crate) struct AuthorisedChannel {
    transport: Transport,
    channel: Channel,
    headers: Arc<RequestHeaders>,
}

impl AuthorisedChannel {
    /// Opens a channel with the application default credentials, or none for an emulator. Connects
    /// on first use.
    pub(crate) fn open(endpoint: &Endpoint) -> Result<Self, PubsubError> {
        let unusable = |error: tonic::transport::Error| PubsubError::Channel(Box::new(error));
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
        let mut credentials: Option<MakeCredentials> = None;
        if !endpoint.is_emulator() {
            transport = transport.tls_config(endpoint.roots().channel_tls()).map_err(unusable)?;
            credentials = Some(Box::new(application_default));
        }
        let headers = Arc::new(RequestHeaders::new(credentials, HeaderMap::new())?);
        Ok(Self { channel: transport.connect_lazy(), transport, headers })
    }

    /// Returns a channel with a connection of its own and the same credentials.
    pub(crate) fn reconnected(&self) -> Self {
        Self { channel: self.transport.connect_lazy(), ..self.clone() }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Creates a request with credentials and Google's routing header. The header contains the
    /// resource's `name` under the name of its field.
    pub(crate) async fn request<T>(
        &self,
        field: &str,
        name: &str,
        message: T,
    ) -> Result<Request<T>, Status> {
        let headers = self.headers.get().await;
        let (mut headers, _) = headers.map_err(|failure| {
            // A metadata server that does not answer yet is no missing credential.
            let code = match failure.code == CallCode::Unavailable.into() {
                true => Code::Unavailable,
                false => Code::Unauthenticated,
            };
            Status::new(code, failure.message.to_string())
        })?;
        let routing: HeaderValue = routing_by(field, name);
        headers.insert("x-goog-request-params", routing);
        let mut request = Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        Ok(request)
    }

    /// Notes a failed call. If the service refused the token, the next call gets a new one.
    pub(crate) fn failed(&self, status: &Status) {
        if status.code() == Code::Unauthenticated {
            self.headers.renew(None);
        }
    }
}
