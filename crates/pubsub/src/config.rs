//! The address of Pub/Sub and the limits of the publisher. A value of these types is valid.

use std::fmt;
use std::time::Duration;

use http::Uri;

use crate::error::PubsubError;
use crate::roots::Roots;

const PRODUCTION: &str = "pubsub.googleapis.com";
const TLS_PORT: u16 = 443;

const NOT_AN_ADDRESS: &str = "is not an address; write HOST:PORT or https://HOST[:PORT], such as \
     europe-west1-pubsub.googleapis.com:443";
const NOT_AN_EMULATOR: &str =
    "is not an emulator's address; write HOST:PORT, such as localhost:8085";
const PLAINTEXT: &str = "has no TLS, and credentials would travel readable; use https://, or \
                         PUBSUB_EMULATOR_HOST for an emulator";

/// The address of Pub/Sub.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    kind: Kind,
    host: String,
    port: u16,
    roots: Roots,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Production,
    Regional,
    Emulator,
}

impl Endpoint {
    /// Google's global endpoint, which answers from the nearest region.
    #[must_use]
    pub fn production() -> Self {
        Self {
            kind: Kind::Production,
            host: PRODUCTION.to_owned(),
            port: TLS_PORT,
            roots: Roots::Public,
        }
    }

    /// An endpoint pinned by the operator: `HOST`, `HOST:PORT` or `https://HOST[:PORT]`.
    ///
    /// # Errors
    ///
    /// The text is not an address, or asks for plaintext.
    pub fn regional(text: &str) -> Result<Self, PubsubError> {
        if text.trim().starts_with("http://") {
            return Err(refused(text, PLAINTEXT));
        }
        let (host, port) = address(text, "https://", NOT_AN_ADDRESS)?;
        Ok(Self {
            kind: Kind::Regional,
            host,
            port: port.unwrap_or(TLS_PORT),
            roots: Roots::Public,
        })
    }

    /// An emulator with plaintext and no credentials: `HOST:PORT`, as in `PUBSUB_EMULATOR_HOST`.
    ///
    /// # Errors
    ///
    /// The text is not an address, or has no port.
    pub fn emulator(text: &str) -> Result<Self, PubsubError> {
        let (host, port) = address(text, "http://", NOT_AN_EMULATOR)?;
        let port = port.ok_or_else(|| refused(text, NOT_AN_EMULATOR))?;
        Ok(Self { kind: Kind::Emulator, host, port, roots: Roots::Public })
    }

    /// Trusts only certificates signed by these authorities (PEM), and no public ones. For a proxy
    /// or a private endpoint with its own certificate.
    ///
    /// # Errors
    ///
    /// The text has no certificate, or one of them cannot be read.
    pub fn with_roots(self, pem: &[u8]) -> Result<Self, PubsubError> {
        Ok(Self { roots: Roots::private(pem)?, ..self })
    }

    /// Whether this is an emulator.
    #[must_use]
    pub fn is_emulator(&self) -> bool {
        self.kind == Kind::Emulator
    }

    /// Whether any region may answer. Order per key then holds only while the region stays the
    /// same.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.kind == Kind::Production || (self.kind == Kind::Regional && self.host == PRODUCTION)
    }

    /// The host name without brackets, as resolvers and certificates expect it.
    pub(crate) fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// `host:port`, without the port if the scheme implies it.
    pub(crate) fn authority(&self) -> String {
        if !self.is_emulator() && self.port == TLS_PORT {
            return self.host.clone();
        }
        format!("{}:{}", self.host, self.port)
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_emulator() { "http" } else { "https" }
    }
}

fn address(
    text: &str,
    scheme: &str,
    problem: &'static str,
) -> Result<(String, Option<u16>), PubsubError> {
    let text = text.trim();
    let rest = text.strip_prefix(scheme).unwrap_or(text);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let uri: Uri = rest.parse().map_err(|_| refused(text, problem))?;
    let authority = uri.authority().ok_or_else(|| refused(text, problem))?;
    let whole = authority.host().len() + authority.port().map_or(0, |port| port.as_str().len() + 1);
    let colons = authority.host().matches(':').count();
    // Any part beyond host and port (a path, a user, half an IPv6 address) is an error, because it
    // was meant for something else.
    let is_plain = whole == rest.len() && (colons == 0 || authority.host().starts_with('['));
    if authority.host().is_empty() || !is_plain || authority.port_u16() == Some(0) {
        return Err(refused(text, problem));
    }
    Ok((authority.host().to_owned(), authority.port_u16()))
}

/// Shows neither the text before an `@` nor a query, because an error must show no password.
fn refused(text: &str, problem: &'static str) -> PubsubError {
    let host = text.rsplit('@').next().and_then(|rest| rest.split('?').next());
    PubsubError::Endpoint { text: host.unwrap_or_default().to_owned(), problem }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?}, {self})", self.kind)
    }
}

/// The settings of a [`GrpcPublisher`](crate::GrpcPublisher).
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// The address of Pub/Sub.
    pub endpoint: Endpoint,
    /// The maximum number of HTTP/2 connections, opened as demand grows. 1 … 64.
    pub connections_max: usize,
    /// The longest time that one request may take, including the connection. 1 ms … 10 min.
    pub request_timeout: Duration,
    /// The longest time that opening one connection may take: DNS, TCP, TLS and HTTP/2.
    pub connect_timeout: Duration,
    /// The project that pays and whose quota counts (`x-goog-user-project`).
    pub quota_project: Option<String>,
}

impl PublisherConfig {
    /// Google allows 100 streams on a connection, so 40 connections carry 4,000 requests at once.
    pub const CONNECTIONS_MAX_DEFAULT: usize = 40;
    /// The official clients' deadline for one attempt.
    pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
    /// Several round trips around the world, and one lost packet.
    pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

    /// The default settings for an endpoint.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connections_max: Self::CONNECTIONS_MAX_DEFAULT,
            request_timeout: Self::REQUEST_TIMEOUT_DEFAULT,
            connect_timeout: Self::CONNECT_TIMEOUT_DEFAULT,
            quota_project: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PubsubError> {
        let refuse = |name, problem| Err(PubsubError::Setting { name, problem });
        if !(1..=64).contains(&self.connections_max) {
            return refuse("connections_max", "must be between 1 and 64");
        }
        let timeout = Duration::from_millis(1)..=Duration::from_mins(10);
        if !timeout.contains(&self.request_timeout) {
            return refuse("request_timeout", "must be between 1 ms and 10 min");
        }
        if !timeout.contains(&self.connect_timeout) {
            return refuse("connect_timeout", "must be between 1 ms and 10 min");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_in_every_form_operators_write() {
        for (text, printed) in [
            (
                "europe-west1-pubsub.googleapis.com:443",
                "https://europe-west1-pubsub.googleapis.com",
            ),
            ("europe-west1-pubsub.googleapis.com", "https://europe-west1-pubsub.googleapis.com"),
            (" https://psc.example.com/ ", "https://psc.example.com"),
            ("https://psc.example.com:8443", "https://psc.example.com:8443"),
            ("[::1]:8443", "https://[::1]:8443"),
        ] {
            assert_eq!(Endpoint::regional(text).unwrap().to_string(), printed, "{text}");
        }
        for (text, printed) in [
            ("localhost:8085", "http://localhost:8085"),
            ("http://127.0.0.1:8085", "http://127.0.0.1:8085"),
            ("[::1]:443", "http://[::1]:443"),
        ] {
            assert_eq!(Endpoint::emulator(text).unwrap().to_string(), printed, "{text}");
        }
        assert_eq!(Endpoint::emulator("[::1]:1").unwrap().host(), "::1");
    }

    #[test]
    fn a_bad_endpoint_says_what_to_write() {
        for text in
            ["", "a b", "host:", "host:0", "host:99999", "host:x", "::1:80", "h/p", "ftp://h:1"]
        {
            let error = Endpoint::regional(text).unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{text}: {error}");
        }
        assert!(
            Endpoint::emulator("localhost").unwrap_err().to_string().contains("localhost:8085")
        );
        let plain = Endpoint::regional("http://pubsub.example.com").unwrap_err().to_string();
        assert!(plain.contains("no TLS"), "{plain}");
    }

    #[test]
    fn certificates_that_cannot_be_used_are_named() {
        let trusting = |pem: &[u8]| Endpoint::production().with_roots(pem);
        let certificate = String::from_utf8_lossy(walrelay_testkit::tls::CERTIFICATE);
        trusting(certificate.as_bytes()).unwrap();
        let empty = trusting(b"hello").unwrap_err().to_string();
        assert!(empty.contains("no certificate"), "{empty}");
        let damaged = certificate.replacen("MII", "AAA", 1);
        let second = trusting(format!("{certificate}{damaged}").as_bytes()).unwrap_err();
        assert!(second.to_string().starts_with("certificate 2 in it: "), "{second}");
    }

    #[test]
    fn an_endpoint_never_prints_a_password() {
        let error = Endpoint::regional("user:hunter2@host:443").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }

    #[test]
    fn only_the_production_endpoint_is_global() {
        assert!(Endpoint::production().is_global());
        assert!(Endpoint::regional("https://pubsub.googleapis.com").unwrap().is_global());
        assert!(!Endpoint::regional("us-east1-pubsub.googleapis.com").unwrap().is_global());
        assert!(!Endpoint::emulator("localhost:1").unwrap().is_global());
    }
}
