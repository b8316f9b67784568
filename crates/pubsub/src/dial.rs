//! Opening one HTTP/2 connection: name, TCP, TLS, preface.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::config::{Endpoint, PublisherConfig};
use crate::error::PubsubError;

/// Receive window of a stream: more than the largest response that is read.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Receive window of a connection: responses are small and read at once, so this never stalls.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Most bytes of headers or trailers; error details of Google take a few KB.
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;
/// Google's limit of streams on a connection, assumed until the server says another.
const STREAMS_ASSUMED: usize = 100;

/// Opens connections to one endpoint.
pub(crate) struct Dialer {
    endpoint: Endpoint,
    tls: Option<TlsConnector>,
    timeout: Duration,
}

/// A connection that could not be opened; cheap to clone, for everybody who waited for it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot connect to {endpoint}: {problem}")]
pub(crate) struct ConnectFailure {
    endpoint: Arc<str>,
    problem: Arc<str>,
}

/// A byte stream, plain or encrypted.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// The half that drives a connection.
pub(crate) type Driver = Connection<Box<dyn Wire>, Bytes>;

impl Dialer {
    pub(crate) fn new(config: &PublisherConfig) -> Result<Self, PubsubError> {
        let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        Self::with_roots(config, roots)
    }

    fn with_roots(config: &PublisherConfig, roots: RootCertStore) -> Result<Self, PubsubError> {
        let tls = if config.endpoint.is_emulator() { None } else { Some(connector(roots)?) };
        Ok(Self { endpoint: config.endpoint.clone(), tls, timeout: config.connect_timeout })
    }

    pub(crate) async fn open(&self) -> Result<(SendRequest<Bytes>, Driver), ConnectFailure> {
        let deadline = Instant::now() + self.timeout;
        let opened = timeout_at(deadline, self.handshake(deadline)).await;
        opened
            .unwrap_or_else(|_| Err(format!("no answer within {} ms", self.timeout.as_millis())))
            .map_err(|problem| ConnectFailure {
                endpoint: self.endpoint.to_string().into(),
                problem: problem.into(),
            })
    }

    async fn handshake(
        &self,
        deadline: Instant,
    ) -> Result<(SendRequest<Bytes>, Driver), String> {
        let tcp = self.tcp(deadline).await?;
        let wire: Box<dyn Wire> = match &self.tls {
            None => Box::new(tcp),
            Some(connector) => {
                let name = ServerName::try_from(self.endpoint.host().to_owned())
                    .map_err(|error| format!("the host is no TLS name: {error}"))?;
                let stream = connector
                    .connect(name, tcp)
                    .await
                    .map_err(|error| format!("TLS handshake failed: {error}"))?;
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err("the server does not offer HTTP/2 over TLS".to_owned());
                }
                Box::new(stream)
            }
        };
        Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .initial_max_send_streams(STREAMS_ASSUMED)
            .handshake(wire)
            .await
            .map_err(|error| format!("HTTP/2 handshake failed: {error}"))
    }

    /// Each address gets its share of the time, so that one that swallows packets (IPv6 where it is
    /// not routed) does not hide the next.
    async fn tcp(&self, deadline: Instant) -> Result<TcpStream, String> {
        let addresses: Vec<SocketAddr> = lookup_host((self.endpoint.host(), self.endpoint.port()))
            .await
            .map_err(|error| format!("the name cannot be resolved: {error}"))?
            .collect();
        let mut problem = "the name has no address".to_owned();
        let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            let share = deadline.saturating_duration_since(Instant::now()) / left;
            left -= 1;
            problem = match timeout_at(Instant::now() + share, connect(address)).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => format!("{address}: {error}"),
                Err(_) => format!("{address}: no answer within {} ms", share.as_millis()),
            };
        }
        Err(problem)
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(address).await?;
    // A request with one message is smaller than a packet; waiting for more would cost a round trip.
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

fn connector(roots: RootCertStore) -> Result<TlsConnector, PubsubError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
