//! GOAWAY with requests in flight, sent frame by frame, because a library would not send all of
//! these.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut as _, BytesMut};
use futures_util::future::join_all;
use h2::Reason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use walrelay_core::{CallCode, FailureClass, PublishFailure};

use super::publish;
use crate::{Endpoint, GrpcPublisher, PublisherConfig};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The server's side of one connection.
struct RawConnection(TcpStream);

/// A request: its stream, and the test message that it carries.
struct Request {
    stream: u32,
    data: String,
}

impl RawConnection {
    async fn accept(listener: &TcpListener) -> Self {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut preface = [0; PREFACE.len()];
        tcp.read_exact(&mut preface).await.unwrap();
        assert_eq!(preface, PREFACE);
        let mut raw = Self(tcp);
        raw.write(SETTINGS, 0, 0, &[]).await;
        raw
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = BytesMut::new();
        frame.put_uint(payload.len() as u64, 3);
        frame.put_u8(kind);
        frame.put_u8(flags);
        frame.put_u32(stream);
        frame.extend_from_slice(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    /// Reads the next whole request.
    async fn request(&mut self) -> Request {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            match kind {
                SETTINGS if flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]).await,
                PING if flags & ACK == 0 => self.write(PING, ACK, 0, &payload).await,
                DATA if flags & END_STREAM != 0 => {
                    return Request { stream, data: data_of(&payload).to_owned() };
                }
                _ => {}
            }
        }
    }

    /// Answers that the request is stored, with its data as the message id.
    async fn store(&mut self, request: &Request) {
        self.write(HEADERS, END_HEADERS, request.stream, &[0x88]).await; // :status 200
        let mut body = BytesMut::new();
        body.put_u8(0); // not compressed
        body.put_u32(2 + u32::try_from(request.data.len()).unwrap());
        body.put_u8(0x0A); // message_ids
        body.put_u8(u8::try_from(request.data.len()).unwrap());
        body.extend_from_slice(request.data.as_bytes());
        self.write(DATA, 0, request.stream, &body).await;
        let mut trailers = vec![0, 11]; // a literal header that is not indexed, its name's length
        trailers.extend_from_slice(b"grpc-status");
        trailers.extend_from_slice(&[1, b'0']);
        self.write(HEADERS, END_HEADERS | END_STREAM, request.stream, &trailers).await;
    }

    async fn go_away(&mut self, last_stream: u32, reason: Reason) {
        let mut payload = BytesMut::new();
        payload.put_u32(last_stream);
        payload.put_u32(reason.into());
        self.write(GOAWAY, 0, 0, &payload).await;
    }
}

/// The test message that a request carries.
fn data_of(payload: &[u8]) -> &'static str {
    let is_in = |data: &str| payload.windows(data.len()).any(|part| part == data.as_bytes());
    ["one", "two", "three"].into_iter().find(|data| is_in(data)).unwrap()
}

async fn listen() -> (TcpListener, GrpcPublisher) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = PublisherConfig::new(Endpoint::emulator(&address).unwrap());
    (listener, GrpcPublisher::connect(&config).unwrap())
}

/// Publishes each message at once, in a request of its own.
async fn publish_each(
    publisher: &GrpcPublisher,
    data: &[&'static str],
) -> Vec<Result<Vec<String>, PublishFailure>> {
    join_all(data.iter().map(|data| async move { publish(publisher, &[data]).await })).await
}

#[tokio::test]
async fn requests_above_the_last_stream_are_sent_again_and_the_others_awaited() {
    let (listener, publisher) = listen().await;
    let serving = async {
        let mut leaving = RawConnection::accept(&listener).await;
        let first = leaving.request().await;
        let (second, third) = (leaving.request().await, leaving.request().await);
        leaving.go_away(first.stream, Reason::NO_ERROR).await;
        let mut next = RawConnection::accept(&listener).await;
        let mut again = [next.request().await, next.request().await];
        for request in &again {
            next.store(request).await;
        }
        // The last answer comes on the connection that is shutting down.
        leaving.store(&first).await;
        again.sort_by_key(|request| request.data != second.data);
        assert_eq!([&*again[0].data, &*again[1].data], [&*second.data, &*third.data]);
        (leaving, next)
    };
    let (results, _connections) =
        tokio::join!(publish_each(&publisher, &["one", "two", "three"]), serving);
    for (result, data) in results.into_iter().zip(["one", "two", "three"]) {
        assert_eq!(result.unwrap(), [data], "each is stored once");
    }
}

#[tokio::test]
async fn a_request_at_the_last_stream_that_is_never_answered_may_be_stored_and_is_not_sent_again() {
    let (listener, publisher) = listen().await;
    let serving = async {
        let mut leaving = RawConnection::accept(&listener).await;
        let request = leaving.request().await;
        leaving.go_away(request.stream, Reason::NO_ERROR).await;
    };
    let (results, ()) = tokio::join!(publish_each(&publisher, &["one"]), serving);
    let failure = results[0].as_ref().unwrap_err();
    assert_eq!(
        (failure.class, failure.code),
        (FailureClass::Transient, CallCode::Unavailable.into())
    );
}

#[tokio::test]
async fn a_service_that_wants_calm_gets_it_from_the_caller_and_few_connections() {
    let (listener, publisher) = listen().await;
    let mut tasks = JoinSet::new();
    let count = Arc::new(AtomicUsize::new(0));
    let accepted = Arc::clone(&count);
    tasks.spawn(async move {
        // The connections are kept, because closing one may lose its last frame.
        let mut left = Vec::new();
        loop {
            let mut connection = RawConnection::accept(&listener).await;
            accepted.fetch_add(1, Ordering::SeqCst);
            connection.request().await;
            connection.go_away(0, Reason::ENHANCE_YOUR_CALM).await;
            left.push(connection);
        }
    });
    let results = publish_each(&publisher, &["one"; 100]).await;
    let congested = |result: &Result<_, PublishFailure>| {
        result.as_ref().is_err_and(|failure| {
            (failure.class, failure.code)
                == (FailureClass::Transient, CallCode::ResourceExhausted.into())
                && failure.congestion
        })
    };
    let calm = results.iter().filter(|result| congested(result)).count();
    assert!(calm >= 90, "{calm} of 100; {:?}", results.iter().find(|result| !congested(result)));
    let connections = count.load(Ordering::SeqCst);
    assert!(connections <= 16, "{connections}");
}
