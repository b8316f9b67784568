//! Opens one HTTP/2 connection: DNS, TCP, TLS, preface.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::buffered_wire::{ByteStream, cork};
use crate::config::{Endpoint, PublisherConfig};
use crate::connection::Driver;
use crate::error::PubsubError;
use crate::roots::tls_config;

/// The receive window of a stream: more than the largest response that is read.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// The receive window of a connection. Responses are small and read at once, so it never stalls.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The largest header or trailer block, in bytes. Google's error details take a few KB.
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;
/// Google's limit of streams on a connection, assumed until the server sends its own limit.
const STREAMS_ASSUMED: usize = 100;

/// Opens connections to one endpoint.
pub(crate) struct Dialer {
    endpoint: Endpoint,
    tls: Option<TlsConnector>,
    timeout: Duration,
    /// Addresses that replace the resolver's answer.
    #[cfg(test)]
    addresses: Option<Arc<std::sync::Mutex<Vec<SocketAddr>>>>,
}

/// The failure to open a connection. Cheap to clone for all requests that waited for it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot connect to {endpoint}: {problem}")]
pub(crate) struct ConnectFailure {
    endpoint: Arc<str>,
    problem: Arc<str>,
}

impl Dialer {
    pub(crate) fn new(config: &PublisherConfig) -> Result<Self, PubsubError> {
        let endpoint = config.endpoint.clone();
        let tls = match endpoint.is_emulator() {
            true => None,
            false => Some(connector(endpoint.roots().store()?)?),
        };
        Ok(Self {
            endpoint,
            tls,
            timeout: config.connect_timeout,
            #[cfg(test)]
            addresses: None,
        })
    }

    /// Uses a resolver that returns the current content of `addresses`.
    #[cfg(test)]
    pub(crate) fn resolving_to(self, addresses: Arc<std::sync::Mutex<Vec<SocketAddr>>>) -> Self {
        Self { addresses: Some(addresses), ..self }
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

    async fn handshake(&self, deadline: Instant) -> Result<(SendRequest<Bytes>, Driver), String> {
        let tcp = self.tcp(deadline).await?;
        let wire: Box<dyn ByteStream> = match &self.tls {
            None => Box::new(tcp),
            Some(connector) => {
                let name = ServerName::try_from(self.endpoint.host().to_owned())
                    .map_err(|error| format!("the host is no TLS name: {error}"))?;
                let stream = connector.connect(name, tcp).await.map_err(|error| told(&error))?;
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err("the server does not offer HTTP/2 over TLS".to_owned());
                }
                Box::new(stream)
            }
        };
        let (corked, drain) = cork(wire);
        let (sender, connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .initial_max_send_streams(STREAMS_ASSUMED)
            .handshake(corked)
            .await
            .map_err(|error| format!("HTTP/2 handshake failed: {error}"))?;
        Ok((sender, Driver::new(connection, drain)))
    }

    /// Connects to the first address that answers. Each address gets a share of the time. An
    /// address that swallows packets, such as IPv6 without a route, therefore does not hide the
    /// next.
    async fn tcp(&self, deadline: Instant) -> Result<TcpStream, String> {
        let addresses = self.look_up().await?;
        let mut problem = "the name has no address".to_owned();
        let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            let share = deadline.saturating_duration_since(Instant::now()) / left;
            left -= 1;
            // The failure names the endpoint already.
            let is_named = self.endpoint.host() == address.ip().to_string();
            let at = if is_named { String::new() } else { format!("{address}: ") };
            problem = match timeout_at(Instant::now() + share, connect(address)).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => format!("{at}{error}"),
                Err(_) => format!("{at}no answer within {} ms", share.as_millis()),
            };
        }
        Err(problem)
    }

    /// Resolves the name again for each connection, because the service's addresses change.
    async fn look_up(&self) -> Result<Vec<SocketAddr>, String> {
        #[cfg(test)]
        if let Some(addresses) = &self.addresses {
            return Ok(addresses.lock().map(|found| found.clone()).unwrap_or_default());
        }
        lookup_host((self.endpoint.host(), self.endpoint.port()))
            .await
            .map(Iterator::collect)
            .map_err(|error| format!("the name cannot be resolved: {error}"))
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(address).await?;
    // A request with one message is smaller than a packet. Waiting for more bytes would cost a
    // round trip.
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

fn told(error: &io::Error) -> String {
    let problem = format!("TLS handshake failed: {error}");
    match problem.contains("UnknownIssuer") {
        true => format!("{problem}; a private authority must be configured"),
        false => problem,
    }
}

fn connector(roots: RootCertStore) -> Result<TlsConnector, PubsubError> {
    let mut config = tls_config(roots)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio_rustls::TlsAcceptor;
    use walrelay_testkit::tls::{CERTIFICATE, KEY};

    /// Dials a TLS server that offers `alpn`.
    async fn dial(
        trust: impl FnOnce(Endpoint) -> Endpoint,
        alpn: &[&[u8]],
    ) -> Result<(), ConnectFailure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()],
                PrivateKeyDer::from_pem_slice(KEY).unwrap(),
            )
            .unwrap();
        server.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(tls) = TlsAcceptor::from(Arc::new(server)).accept(tcp).await else { return };
            let Ok(mut connection) = h2::server::handshake(tls).await else { return };
            while connection.accept().await.is_some() {}
        });
        let endpoint = Endpoint::regional(&format!("https://localhost:{port}")).unwrap();
        let config = PublisherConfig::new(trust(endpoint));
        Dialer::new(&config).unwrap().open().await.map(drop)
    }

    fn trusting(endpoint: Endpoint) -> Endpoint {
        endpoint.with_roots(CERTIFICATE).unwrap()
    }

    #[tokio::test]
    async fn a_trusted_server_that_speaks_http2_is_connected_to() {
        dial(trusting, &[b"h2"]).await.unwrap();
    }

    #[tokio::test]
    async fn an_untrusted_certificate_is_named() {
        let failure = dial(|endpoint| endpoint, &[b"h2"]).await.unwrap_err().to_string();
        assert!(failure.contains("cannot connect to https://localhost:"), "{failure}");
        assert!(failure.contains("TLS handshake failed"), "{failure}");
        assert!(failure.contains("certificate"), "{failure}");
        assert!(failure.contains("private authority"), "{failure}");
    }

    #[tokio::test]
    async fn a_server_without_http2_is_named() {
        let failure = dial(trusting, &[]).await.unwrap_err().to_string();
        assert!(failure.contains("does not offer HTTP/2"), "{failure}");
    }

    #[tokio::test]
    async fn a_server_without_tls_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut tcp, greeting).await.unwrap();
            // Stays open until the client has decided.
            tokio::io::AsyncReadExt::read_to_end(&mut tcp, &mut Vec::new()).await.ok();
        });
        let endpoint = Endpoint::regional(&format!("localhost:{port}")).unwrap();
        let dialer = Dialer::new(&PublisherConfig::new(trusting(endpoint))).unwrap();
        let failure = dialer.open().await.map(drop).unwrap_err().to_string();
        assert!(failure.contains("TLS handshake failed"), "{failure}");
    }

    #[tokio::test]
    async fn a_name_that_does_not_exist_is_named() {
        let endpoint = Endpoint::regional("no-such-host.invalid").unwrap();
        let dialer = Dialer::new(&PublisherConfig::new(endpoint)).unwrap();
        let failure = dialer.open().await.map(drop).unwrap_err().to_string();
        assert!(failure.contains("no-such-host.invalid"), "{failure}");
        assert!(failure.contains("cannot be resolved"), "{failure}");
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = Endpoint::regional(&format!("localhost:{port}")).unwrap();
        let mut config = PublisherConfig::new(endpoint);
        config.connect_timeout = Duration::from_millis(50);
        let dialer = Dialer::new(&config).unwrap();
        let failure = dialer.open().await.map(drop).unwrap_err().to_string();
        assert!(failure.contains("no answer within"), "{failure}");
    }
}
