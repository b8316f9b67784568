//! A service that receives events over HTTP, and misbehaves as a test asks it to.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::background_server::Background;
use crate::tls::{CERTIFICATE, KEY};

/// A request, as the service received it.
#[derive(Debug, Clone)]
pub struct Received {
    /// The method and the path.
    pub line: String,
    /// The headers, by lower-case name.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    pub at: Instant,
    /// The requests with the same `webhook-id` so far, with this one.
    pub attempt: usize,
}

impl Received {
    /// Returns a header, or an empty text.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// A status line without its version, more headers that end in line breaks, and a body.
    Status(&'static str, String, &'static str),
    /// 200, after this time.
    Slow(Duration),
    /// No answer, while the connection stays open.
    Hang,
    /// Half of the headers, then the end of the connection.
    HalfHead,
    /// 200, and half of the body.
    HalfBody,
    /// 200, and a body of a gigabyte.
    Huge,
    /// The connection ends without an answer.
    Close,
}

impl Reply {
    /// Returns an answer of a status alone, such as `404 Not Found`.
    #[must_use]
    pub const fn status(status: &'static str) -> Self {
        Self::Status(status, String::new(), "")
    }
}

/// Decides on the answer to a request.
pub type Answer = Box<dyn FnMut(&Received) -> Reply + Send>;

struct State {
    received: Vec<Received>,
    answer: Answer,
    open: usize,
    open_max: usize,
    huge_bytes: usize,
}

/// A service on a random port. Dropping the value stops the service.
pub struct Receiver {
    state: Shared,
    server: Background,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<State>>);

impl Receiver {
    /// Starts a service without TLS.
    pub fn start(answer: impl FnMut(&Received) -> Reply + Send + 'static) -> Self {
        Self::serve(answer, None)
    }

    /// As [`start`](Self::start), with the certificate of [`tls`](crate::tls).
    pub fn start_tls(answer: impl FnMut(&Received) -> Reply + Send + 'static) -> Self {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a pair");
        Self::serve(answer, Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn serve(
        answer: impl FnMut(&Received) -> Reply + Send + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let state = Shared(Arc::new(Mutex::new(State {
            received: Vec::new(),
            answer: Box::new(answer),
            open: 0,
            open_max: 0,
            huge_bytes: 0,
        })));
        let keeper = state.clone();
        Self { state, server: Background::start("the receiver", |at| listen(keeper, at, tls)) }
    }

    /// Returns `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Returns the requests so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.state.get().received.clone()
    }

    /// Answers in another way from now on.
    pub fn answer(&self, answer: impl FnMut(&Received) -> Reply + Send + 'static) {
        self.state.get().answer = Box::new(answer);
    }

    /// Returns the most requests that were open at once.
    #[must_use]
    pub fn open_max(&self) -> usize {
        self.state.get().open_max
    }

    /// Returns the bytes of huge bodies that were sent.
    #[must_use]
    pub fn huge_bytes(&self) -> usize {
        self.state.get().huge_bytes
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Shared {
    fn get(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request, and returns its answer.
    fn note(&self, mut received: Received) -> Reply {
        let mut state = self.get();
        let id = received.header("webhook-id").to_owned();
        let is_same = |it: &&Received| it.header("webhook-id") == id;
        received.attempt = 1 + state.received.iter().filter(is_same).count();
        state.open += 1;
        state.open_max = state.open_max.max(state.open);
        let reply = (state.answer)(&received);
        state.received.push(received);
        reply
    }
}

async fn listen(state: Shared, listener: TcpListener, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { return };
        let (state, tls) = (state.clone(), tls.clone());
        // An error is ignored: the client has gone.
        connections.spawn(async move { drop(connected(&state, socket, tls).await) });
    }
}

async fn connected(state: &Shared, socket: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<()> {
    match tls {
        Some(tls) => converse(state, tls.accept(socket).await?).await,
        None => converse(state, socket).await,
    }
}

async fn converse(
    state: &Shared,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some(received) = read(&mut stream).await? {
        let reply = state.note(received);
        let answered = send(state, &mut stream, reply).await;
        state.get().open -= 1;
        if answered? == Next::Close {
            break;
        }
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

async fn send(
    state: &Shared,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    reply: Reply,
) -> io::Result<Next> {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: ";
    let text = match reply {
        Reply::Status(status, headers, body) => {
            let length = body.len();
            format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
        }
        Reply::Slow(time) => {
            sleep(time).await;
            format!("{ok}0\r\n\r\n")
        }
        Reply::Hang => {
            // Ends when the client closes.
            stream.read_u8().await?;
            return Ok(Next::Close);
        }
        Reply::HalfHead => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").await?;
            return Ok(Next::Close);
        }
        Reply::HalfBody => {
            stream.write_all(format!("{ok}10\r\n\r\nhalf").as_bytes()).await?;
            return Ok(Next::Close);
        }
        Reply::Huge => {
            stream.write_all(format!("{ok}{}\r\n\r\n", 1 << 30).as_bytes()).await?;
            let block = vec![b'x'; 64 * 1024];
            for _ in 0..(1 << 30) / block.len() {
                stream.write_all(&block).await?;
                state.get().huge_bytes += block.len();
            }
            return Ok(Next::Close);
        }
        Reply::Close => return Ok(Next::Close),
    };
    stream.write_all(text.as_bytes()).await?;
    Ok(Next::Request)
}

/// Reads a request. `None` at the end of the connection.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Received>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let line = lines.next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    let split = |header: &str| {
        let (name, value) = header.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: BTreeMap<String, String> = lines.filter_map(split).collect();
    let length = headers.get("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Received { line, headers, body, at: Instant::now(), attempt: 0 }))
}
