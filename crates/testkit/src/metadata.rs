//! A minimal metadata server, as on Google Cloud machines, that issues access tokens.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const TOKEN: &str = r#"{"access_token":"a-token","expires_in":3600,"token_type":"Bearer"}"#;
/// The maximum size of a token request, more than such a request needs.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// A metadata server that returns the same token to every client. Dropping the value stops the
/// server.
#[derive(Debug)]
pub struct MetadataServer {
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl MetadataServer {
    /// Starts the server on a free port.
    pub async fn start() -> io::Result<Self> {
        Self::start_after(0).await
    }

    /// As [`start`](Self::start), but answers the first `unavailable` requests with 503.
    pub async fn start_after(unavailable: usize) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut requests = 0;
            while let Ok((socket, _)) = listener.accept().await {
                requests += 1;
                let state = State::after(requests - 1, unavailable);
                // An error is ignored: a client that disconnected needs no token.
                drop(answer(socket, state).await);
            }
        });
        Ok(Self { address, _serving: serving })
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

async fn answer(mut socket: TcpStream, state: State) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        if socket.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let is_token = String::from_utf8_lossy(&request).lines().next().is_some_and(|line| {
        line.starts_with("GET /computeMetadata/v1/instance/service-accounts/default/token")
    });
    let (status, body) = match (state, is_token) {
        (State::Starting, _) => ("503 Service Unavailable", ""),
        (State::Up, true) => ("200 OK", TOKEN),
        (State::Up, false) => ("404 Not Found", ""),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await
}
