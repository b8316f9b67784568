//! A minimal metadata server, as on Google Cloud machines, that issues access tokens and identity tokens.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The token of a server at its start.
const TOKEN: &str = "a-token";
/// The maximum size of a token request, more than such a request needs.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// A metadata server that returns its current token to every client. Dropping the value stops the
/// server.
#[derive(Debug)]
pub struct MetadataServer {
    address: SocketAddr,
    issued: Issued,
    _serving: JoinSet<()>,
}

/// The answer to a request for a token.
type Issued = Arc<Mutex<String>>;

fn answer_of(token: &str, expires_in: u32) -> String {
    format!(r#"{{"access_token":"{token}","expires_in":{expires_in},"token_type":"Bearer"}}"#)
}

impl MetadataServer {
    /// Issues another token from now on, which expires in so many seconds.
    pub fn issue(&self, token: &str, expires_in: u32) {
        *self.issued.lock().unwrap_or_else(PoisonError::into_inner) = answer_of(token, expires_in);
    }

    /// Starts the server on a free port.
    pub async fn start() -> io::Result<Self> {
        Self::start_after(0).await
    }

    /// As [`start`](Self::start), but answers the first `unavailable` requests with 503.
    pub async fn start_after(unavailable: usize) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let issued = Arc::new(Mutex::new(answer_of(TOKEN, 3600)));
        let (current, mut serving) = (Arc::clone(&issued), JoinSet::new());
        serving.spawn(async move {
            let mut requests = 0;
            while let Ok((socket, _)) = listener.accept().await {
                requests += 1;
                let state = State::after(requests - 1, unavailable);
                // An error is ignored: a client that disconnected needs no token.
                let token = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
                drop(answer(socket, state, &token).await);
            }
        });
        Ok(Self { address, issued, _serving: serving })
    }

    /// Returns the address for `GCE_METADATA_HOST`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

/// Whether the server answers yet.
#[derive(Debug, Clone, Copy)]
enum State {
    Starting,
    Up,
}

impl State {
    /// Returns the state after a number of requests, if the first `unavailable` ones are refused.
    const fn after(requests: usize, unavailable: usize) -> Self {
        if requests < unavailable { Self::Starting } else { Self::Up }
    }
}

async fn answer(mut socket: TcpStream, state: State, token: &str) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        if socket.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let request = String::from_utf8_lossy(&request);
    let line = request.lines().next().unwrap_or_default();
    let wanted = line.strip_prefix("GET /computeMetadata/v1/instance/service-accounts/default/");
    let identity = wanted.filter(|it| it.starts_with("identity")).map(identity_token);
    let is_token = wanted.is_some_and(|it| it.starts_with("token"));
    let (status, body) = match (state, &identity) {
        (State::Starting, _) => ("503 Service Unavailable", ""),
        (State::Up, Some(identity)) => ("200 OK", &**identity),
        (State::Up, None) if is_token => ("200 OK", token),
        (State::Up, None) => ("404 Not Found", ""),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await
}

/// Returns an identity token without a valid signature, for the audience in the request.
fn identity_token(request: &str) -> String {
    let query = request.split(['?', ' ']).nth(1).unwrap_or_default();
    let audience = query.split('&').find_map(|pair| pair.strip_prefix("audience="));
    let audience = audience.unwrap_or_default().replace("%3A", ":").replace("%2F", "/");
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = format!(r#"{{"aud":"{audience}","exp":32503680000}}"#);
    [part(r#"{"alg":"RS256"}"#), part(&claims), part("signature")].join(".")
}
