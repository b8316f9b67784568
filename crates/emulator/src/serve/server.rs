//! Connections and calls, directly on HTTP/2, with one task per connection.
//!
//! A call is polled once on arrival. Nearly all Publish calls are answered in that poll, without a
//! task, a channel or a wake-up of their own. Calls that arrive together are answered before the
//! replies are flushed, so that replies share system calls.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, Stream};
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::Status;

use crate::calls::acknowledge::{acknowledge, modify_ack_deadline};
use crate::calls::admin;
use crate::calls::publish::publish;
use crate::calls::pull::pull;
use crate::calls::streaming_pull::streaming_pull;
use crate::emulator::{Emulator, InFlight};
use crate::serve::rest;
use crate::serve::tls::Tls;
use crate::wire::grpc::{self, Encoding, Messages};

/// The time for streams to end after a shutdown. Held requests would otherwise wait for ever.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// The pause of accepting after an error such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The pause between checks for the rest of a preface that arrived in pieces.
const PREFACE_PAUSE: Duration = Duration::from_millis(1);
/// The maximum number of JSON connections that wait for their server.
const JSON_CONNECTIONS_WAITING: usize = 64;
/// The flow-control windows: several of the largest requests per connection, and any usual request
/// at once.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Large enough that a usual request is one DATA frame and need not be assembled.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Clients that time out reset many streams at once, and tests provoke this.
const RESET_STREAMS_MAX: usize = 100_000;

impl Emulator {
    /// Serves gRPC in plain text until `shutdown` completes. Streams then get a short time to end,
    /// and connections are closed.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        self.accept(listener, None, shutdown).await;
    }

    /// Serves gRPC over TLS only, as production does, until `shutdown` completes.
    pub async fn serve_tls(
        &self,
        listener: TcpListener,
        tls: &Tls,
        shutdown: impl Future<Output = ()>,
    ) {
        self.accept(listener, Some(tls), shutdown).await;
    }

    async fn accept(
        &self,
        listener: TcpListener,
        tls: Option<&Tls>,
        shutdown: impl Future<Output = ()>,
    ) {
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        let (json, to_json) = mpsc::channel(JSON_CONNECTIONS_WAITING);
        let json_connections =
            rest::Connections { accepted: to_json, address: listener.local_addr() };
        let mut json_stopped = stopped.clone();
        connections.spawn(rest::serve(self.clone(), json_connections, async move {
            // The sender is dropped at shutdown, which ends this wait.
            drop(json_stopped.changed().await);
        }));
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        let (emulator, stopped) = (self.clone(), stopped.clone());
                        match tls {
                            None => {
                                let json = json.clone();
                                let (socket, peer) = accepted;
                                connections.spawn(plain(emulator, socket, peer, stopped, json))
                            }
                            Some(tls) => {
                                let (socket, _) = accepted;
                                connections.spawn(secured(emulator, tls.clone(), socket, stopped))
                            }
                        };
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        drop(stop);
        let all = async { while connections.join_next().await.is_some() {} };
        // Dropping the set closes the remaining connections.
        drop(tokio::time::timeout(SHUTDOWN_GRACE, all).await);
    }
}

async fn plain(
    emulator: Emulator,
    socket: TcpStream,
    peer: SocketAddr,
    mut stopped: watch::Receiver<()>,
    json: mpsc::Sender<(TcpStream, SocketAddr)>,
) {
    let is_http2 = tokio::select! {
        is_http2 = is_http2(&socket) => is_http2,
        _ = stopped.changed() => return,
    };
    if !is_http2 {
        // Fails only after the server has stopped.
        return drop(json.send((socket, peer)).await);
    }
    drop(json);
    at_once(&socket);
    http2(emulator, socket, stopped).await;
}

async fn secured(
    emulator: Emulator,
    tls: Tls,
    socket: TcpStream,
    mut stopped: watch::Receiver<()>,
) {
    at_once(&socket);
    let handshake = tokio::select! {
        handshake = tls.accept(socket) => handshake,
        _ = stopped.changed() => return,
    };
    match handshake {
        Ok(stream) => http2(emulator, stream, stopped).await,
        Err(error) => tracing::debug!(%error, "TLS handshake failed"),
    }
}

fn at_once(socket: &TcpStream) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
}

async fn http2<S: AsyncRead + AsyncWrite + Unpin>(
    emulator: Emulator,
    socket: S,
    mut stopped: watch::Receiver<()>,
) {
    let shaking_hands = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(emulator.options().concurrent_streams_max)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(None)
        .handshake::<_, Bytes>(socket);
    let connection = tokio::select! {
        handshake = shaking_hands => match handshake {
            Ok(connection) => connection,
            Err(error) => return tracing::debug!(%error, "handshake failed"),
        },
        _ = stopped.changed() => return,
    };
    let mut calls = Calls { emulator, connection, running: FuturesUnordered::new() };
    let ended = tokio::select! {
        ended = poll_fn(|cx| calls.poll(cx)) => ended,
        // The sender is dropped at shutdown, which ends this wait.
        _ = stopped.changed() => {
            calls.connection.graceful_shutdown();
            poll_fn(|cx| calls.poll(cx)).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Returns whether the connection opens with HTTP/2's preface. Its first four bytes differ from
/// every HTTP/1 method, and clients send the preface at once.
async fn is_http2(socket: &TcpStream) -> bool {
    const PREFACE: [u8; 4] = *b"PRI ";
    let mut seen = [0; PREFACE.len()];
    loop {
        match socket.peek(&mut seen).await {
            Ok(0) | Err(_) => return false,
            Ok(length) if seen[..length] != PREFACE[..length] => return false,
            Ok(length) if length == PREFACE.len() => return true,
            // Only a part of the preface has arrived. Peeking again would return the part at once,
            // without waiting.
            Ok(_) => tokio::time::sleep(PREFACE_PAUSE).await,
        }
    }
}

type Call = Pin<Box<dyn Future<Output = Option<InFlight>> + Send>>;

struct Calls<S> {
    emulator: Emulator,
    connection: Connection<S, Bytes>,
    /// Calls that could not be answered at once.
    running: FuturesUnordered<Call>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Calls<S> {
    /// Answers calls until the connection is closed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            let mut arrived = Vec::new();
            // Reads and writes the socket. Pending means that both are exhausted.
            let closed = loop {
                match self.connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok(call))) => arrived.push(call),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(None) => break true,
                    Poll::Pending => break false,
                }
            };
            if closed {
                return Poll::Ready(Ok(()));
            }
            if !self.advance(arrived, cx) {
                return Poll::Pending;
            }
            // Replies were queued, and the next round writes them.
        }
    }

    /// Polls new and waiting calls. Returns whether any call was answered.
    fn advance(
        &mut self,
        arrived: Vec<(Request<RecvStream>, SendResponse<Bytes>)>,
        cx: &mut Context<'_>,
    ) -> bool {
        let mut answered = false;
        // Calls that arrived together were outstanding together, because none of their replies was
        // sent yet. They leave together here. Otherwise concurrent requests of one key would not be
        // counted as such.
        let mut leaving = Vec::new();
        for (request, respond) in arrived {
            let mut call: Call = Box::pin(answer(self.emulator.clone(), request, respond));
            match call.as_mut().poll(cx) {
                Poll::Ready(in_flight) => {
                    answered = true;
                    leaving.extend(in_flight);
                }
                Poll::Pending => self.running.push(call),
            }
        }
        while let Poll::Ready(Some(in_flight)) = Pin::new(&mut self.running).poll_next(cx) {
            answered = true;
            leaving.extend(in_flight);
        }
        answered
    }
}

const PULL: &str = "/google.pubsub.v1.Subscriber/Pull";

/// Returns the result of a call, or `None` once the client has given up.
async fn unless_cancelled(
    path: &str,
    respond: &mut SendResponse<Bytes>,
    replying: impl Future<Output = Result<BytesMut, Status>>,
) -> Option<Result<BytesMut, Status>> {
    let mut replying = pin!(replying);
    let replied = poll_fn(|cx| {
        // A cancelled Pull must take no messages, because nobody would acknowledge them.
        if path == PULL && respond.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        match replying.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        }
    });
    replied.await
}

/// Answers one call from its headers to its trailers.
async fn answer(
    emulator: Emulator,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<InFlight> {
    let (head, body) = request.into_parts();
    let mut messages = Messages::of(body, Encoding::of(&head.headers));
    let path = head.uri.path();
    if path == "/google.pubsub.v1.Subscriber/StreamingPull" {
        streaming_pull(&emulator, messages, respond).await;
        return None;
    }
    let mut in_flight = None;
    let replying = async {
        let frame = messages.only().await?;
        match path {
            "/google.pubsub.v1.Publisher/Publish" => {
                let published = publish(&emulator, &frame).await;
                in_flight = published.in_flight;
                published.reply
            }
            PULL => pull(&emulator, &frame).await,
            "/google.pubsub.v1.Subscriber/Acknowledge" => acknowledge(&emulator, &frame).await,
            "/google.pubsub.v1.Subscriber/ModifyAckDeadline" => {
                modify_ack_deadline(&emulator, &frame).await
            }
            _ => admin::call(&mut emulator.broker(), path, &frame),
        }
    };
    let result = unless_cancelled(path, &mut respond, replying).await?;
    if let Err(error) = grpc::reply(&mut respond, result) {
        tracing::debug!(%error, "reply not sent");
    }
    in_flight
}
