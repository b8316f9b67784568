//! A Publish server over bare HTTP/2 with scripted answers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{PublishRequest, PublishResponse};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message as _;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use walrelay_testkit::tls::{CERTIFICATE, KEY};

use crate::buffered_wire::ByteStream;

/// The server's answer to one request.
#[derive(Clone)]
pub(super) enum Answer {
    /// One id per message: the message's data, so that a test sees the order.
    Ids,
    /// Like `Ids`, once as many requests have arrived as the barrier waits for.
    IdsTogether(Arc<Barrier>),
    /// Like `Ids` for requests with this `authorization`. Other requests are refused because of
    /// their token.
    IdsFor(String),
    /// Like `Ids`, in DATA frames of one byte.
    IdsInPieces,
    TheseIds(Vec<String>),
    /// A body of this size.
    Bytes(usize),
    /// An empty body, then this status in the trailers.
    Status(i32, &'static str),
    /// This status in the headers, and no body.
    TrailersOnly(i32, &'static str),
    /// A body that ends without a status.
    NoStatus,
    /// An answer that is not gRPC.
    Http(u16),
    /// RST_STREAM.
    Reset(Reason),
    /// The server cuts the connection.
    Cut,
    /// No answer, until the client gives up.
    Never,
}

/// A request as it arrived.
#[derive(Clone)]
pub(super) struct Seen {
    /// The number of its connection, from 0.
    pub(super) connection: usize,
    pub(super) uri: String,
    pub(super) headers: HeaderMap,
    pub(super) body: PublishRequest,
}

type Script = dyn Fn(usize) -> Answer + Send + Sync;

/// A running server. Dropping it cuts every connection and frees the port.
pub(super) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    script: Box<Script>,
    goaway_after: Option<usize>,
    connections: AtomicUsize,
    seen: watch::Sender<Vec<Seen>>,
    /// The number of requests that the client has cancelled.
    cancelled: watch::Sender<usize>,
    most_streams: Mutex<usize>,
}

impl Server {
    /// Starts a server on a free port. `script` gets the number of the request, from 0.
    pub(super) async fn start(script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start_at(any, None, script).await
    }

    /// Like `start`, with TLS.
    pub(super) async fn start_with_tls(
        script: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::listen(any, Some(tls()), None, Box::new(script)).await
    }

    /// Like `start`, but each connection sends GOAWAY after this many requests.
    pub(super) async fn going_away_after(
        requests: usize,
        script: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start_at(any, Some(requests), script).await
    }

    pub(super) async fn start_at(
        at: SocketAddr,
        goaway_after: Option<usize>,
        script: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::listen(at, None, goaway_after, Box::new(script)).await
    }

    async fn listen(
        at: SocketAddr,
        tls: Option<TlsAcceptor>,
        goaway_after: Option<usize>,
        script: Box<Script>,
    ) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let shared = Arc::new(Shared {
            script,
            goaway_after,
            connections: AtomicUsize::new(0),
            seen: watch::Sender::new(Vec::new()),
            cancelled: watch::Sender::new(0),
            most_streams: Mutex::new(0),
        });
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, tls, Arc::clone(&shared)));
        Self { address, shared, _tasks: tasks }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections ever opened.
    pub(super) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The highest number of concurrent requests on one connection.
    pub(super) fn most_streams(&self) -> usize {
        *self.shared.most_streams.lock().unwrap()
    }

    /// Waits for `count` requests and returns them.
    pub(super) async fn seen(&self, count: usize) -> Vec<Seen> {
        let mut seen = self.shared.seen.subscribe();
        seen.wait_for(|seen| seen.len() >= count).await.unwrap().clone()
    }

    /// Waits until the client has cancelled `count` requests.
    pub(super) async fn cancelled(&self, count: usize) {
        let mut cancelled = self.shared.cancelled.subscribe();
        cancelled.wait_for(|cancelled| *cancelled >= count).await.unwrap();
    }
}

async fn listen(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            let wire: Box<dyn ByteStream> = match tls {
                None => Box::new(tcp),
                Some(tls) => match tls.accept(tcp).await {
                    Ok(stream) => Box::new(stream),
                    Err(_) => return,
                },
            };
            serve(wire, number, shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Creates a TLS acceptor with the testkit's certificate and HTTP/2.
fn tls() -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(wire: Box<dyn ByteStream>, number: usize, shared: Arc<Shared>) {
    let Ok(mut connection) = Builder::new()
        .max_concurrent_streams(100)
        .initial_window_size(1024 * 1024)
        .handshake::<_, Bytes>(wire)
        .await
    else {
        return;
    };
    let mut requests = JoinSet::new();
    let mut accepted = 0;
    // Ends when the client disconnects, or when an answer cuts the connection.
    while let Some(Ok((request, respond))) = next(&mut connection, &mut requests).await {
        requests.spawn(answer(number, request, respond, Arc::clone(&shared)));
        accepted += 1;
        {
            let mut most = shared.most_streams.lock().unwrap();
            *most = (*most).max(requests.len());
        }
        if shared.goaway_after == Some(accepted) {
            connection.graceful_shutdown();
        }
    }
}

type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

async fn next(
    connection: &mut Connection<Box<dyn ByteStream>, Bytes>,
    requests: &mut JoinSet<Next>,
) -> Option<Result<Accepted, h2::Error>> {
    loop {
        tokio::select! {
            accepted = connection.accept() => return accepted,
            Some(ended) = requests.join_next() => {
                if matches!(ended, Ok(Next::Cut(_))) {
                    return None;
                }
            }
        }
    }
}

enum Next {
    GoOn,
    /// Kept until the connection is closed, because dropping it earlier would reset the stream.
    #[expect(dead_code, reason = "held, not read")]
    Cut(SendResponse<Bytes>),
}

async fn answer(
    connection: usize,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    shared: Arc<Shared>,
) -> Next {
    let (head, mut stream) = request.into_parts();
    let mut frame = BytesMut::new();
    while let Some(chunk) = stream.data().await {
        let Ok(chunk) = chunk else { return Next::GoOn };
        stream.flow_control().release_capacity(chunk.len()).unwrap();
        frame.extend_from_slice(&chunk);
    }
    assert_eq!(frame[0], 0, "compressed?");
    assert_eq!(u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize, frame.len() - 5);
    let body = PublishRequest::decode(&frame[5..]).unwrap();
    let ids: Vec<String> = body
        .messages
        .iter()
        .map(|message| String::from_utf8_lossy(&message.data[..message.data.len().min(20)]).into())
        .collect();
    let token = head.headers.get("authorization").cloned();
    let mut number = 0;
    shared.seen.send_modify(|seen| {
        number = seen.len();
        seen.push(Seen { connection, uri: head.uri.to_string(), headers: head.headers, body });
    });
    let answer = match (shared.script)(number) {
        Answer::IdsFor(valid) if token.is_some_and(|token| token == valid) => Answer::Ids,
        Answer::IdsFor(_) => Answer::TrailersOnly(16, "the token is refused"),
        answer @ (Answer::Ids
        | Answer::IdsTogether(_)
        | Answer::IdsInPieces
        | Answer::TheseIds(_)
        | Answer::Bytes(_)
        | Answer::Status(..)
        | Answer::TrailersOnly(..)
        | Answer::NoStatus
        | Answer::Http(_)
        | Answer::Reset(_)
        | Answer::Cut
        | Answer::Never) => answer,
    };
    if let Answer::IdsTogether(barrier) = &answer {
        barrier.wait().await;
    }
    match answer {
        Answer::Cut => return Next::Cut(respond),
        Answer::Never => {
            std::future::poll_fn(|cx| respond.poll_reset(cx)).await.ok();
            shared.cancelled.send_modify(|cancelled| *cancelled += 1);
        }
        Answer::Reset(reason) => respond.send_reset(reason),
        Answer::Ids
        | Answer::IdsFor(_)
        | Answer::IdsTogether(_)
        | Answer::IdsInPieces
        | Answer::TheseIds(_)
        | Answer::Bytes(_)
        | Answer::Status(..)
        | Answer::TrailersOnly(..)
        | Answer::NoStatus
        | Answer::Http(_) => send(answer, ids, respond),
    }
    Next::GoOn
}

fn send(answer: Answer, ids: Vec<String>, mut respond: SendResponse<Bytes>) {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let (body, piece, status) = match answer {
        Answer::Ids | Answer::IdsTogether(_) => (framed(ids), usize::MAX, Some((0, ""))),
        Answer::IdsInPieces => (framed(ids), 1, Some((0, ""))),
        Answer::TheseIds(these) => (framed(these), usize::MAX, Some((0, ""))),
        Answer::Bytes(length) => (Bytes::from(vec![0; length]), usize::MAX, Some((0, ""))),
        Answer::Status(code, message) => (Bytes::new(), usize::MAX, Some((code, message))),
        Answer::NoStatus => (Bytes::new(), usize::MAX, None),
        Answer::TrailersOnly(code, message) => {
            put_status(head.headers_mut(), code, message);
            respond.send_response(head, true).unwrap();
            return;
        }
        Answer::Http(status) => {
            *head.status_mut() = status.try_into().unwrap();
            head.headers_mut().insert("content-type", HeaderValue::from_static("text/html"));
            let mut stream = respond.send_response(head, false).unwrap();
            stream.send_data(Bytes::from_static(b"<html>"), true).unwrap();
            return;
        }
        Answer::IdsFor(_) | Answer::Reset(_) | Answer::Cut | Answer::Never => {
            unreachable!("answered by the caller")
        }
    };
    let mut stream = respond.send_response(head, false).unwrap();
    for chunk in body.chunks(piece.min(16 * 1024)) {
        stream.send_data(Bytes::copy_from_slice(chunk), false).unwrap();
    }
    let Some((code, message)) = status else {
        stream.send_data(Bytes::new(), true).unwrap();
        return;
    };
    let mut trailers = HeaderMap::new();
    put_status(&mut trailers, code, message);
    stream.send_trailers(trailers).unwrap();
}

fn put_status(headers: &mut HeaderMap, code: i32, message: &'static str) {
    headers.insert("grpc-status", HeaderValue::from(code));
    headers.insert("grpc-message", HeaderValue::from_static(message));
}

fn framed(message_ids: Vec<String>) -> Bytes {
    let body = PublishResponse { message_ids }.encode_to_vec();
    let mut frame = vec![0];
    frame.put_u32(u32::try_from(body.len()).unwrap());
    frame.extend_from_slice(&body);
    frame.into()
}
