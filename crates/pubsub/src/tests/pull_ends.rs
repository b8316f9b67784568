//! How streaming pulls end, sent by a server over bare HTTP/2.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::Status;

use crate::{Endpoint, Subscriber, is_announced_end};

/// The end of a stream, after one response.
#[derive(Debug, Clone, Copy)]
enum Ends {
    Trailers(u16),
    /// This status in the headers, and no response.
    Headers(u16),
    /// A body without trailers.
    NoStatus,
    /// RST_STREAM.
    Reset(Reason),
    Cut,
    /// A proxy's HTTP status, and no response.
    Http(u16),
    /// A response that is not well-formed.
    Malformed,
}

const DEADLINE: Duration = Duration::from_secs(30);

fn response(status: u16) -> Response<()> {
    let mut response = Response::builder().status(status).body(()).expect("a response");
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    response
}

fn grpc_status(code: u16) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from(code))])
}

/// Answers the call. Returns whether the connection stays open.
fn answer(mut respond: SendResponse<Bytes>, ends: Ends) -> Result<bool, h2::Error> {
    if let Ends::Headers(code) = ends {
        let mut response = response(200);
        response.headers_mut().extend(grpc_status(code));
        respond.send_response(response, true)?;
        return Ok(true);
    }
    if let Ends::Http(status) = ends {
        respond.send_response(response(status), true)?;
        return Ok(true);
    }
    let mut body = respond.send_response(response(200), false)?;
    body.send_data(Bytes::from_static(&[0; 5]), false)?;
    match ends {
        Ends::Trailers(code) => body.send_trailers(grpc_status(code))?,
        Ends::NoStatus => body.send_data(Bytes::new(), true)?,
        Ends::Reset(reason) => body.send_reset(reason),
        Ends::Malformed => body.send_data(Bytes::from_static(&[0, 0, 0, 0, 1, 0x0B]), false)?,
        Ends::Cut => return Ok(false),
        Ends::Headers(_) | Ends::Http(_) => {}
    }
    Ok(true)
}

async fn serve(listener: TcpListener, ends: Ends) {
    let (tcp, _) = listener.accept().await.expect("a connection");
    let mut connection = h2::server::handshake(tcp).await.expect("HTTP/2");
    while let Some(Ok((_request, respond))) = connection.accept().await {
        if !answer(respond, ends).expect("an answer") {
            // The response leaves first.
            let flushed = futures_util::future::poll_fn(|cx| connection.poll_closed(cx));
            drop(tokio::time::timeout(Duration::from_millis(50), flushed).await);
            return;
        }
    }
}

/// Returns the status of a stream that ends this way. `None` is the status OK.
async fn end(ends: Ends) -> Option<Status> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let mut serving = JoinSet::new();
    serving.spawn(serve(listener, ends));
    let endpoint = Endpoint::emulator(&address).expect("an endpoint");
    let subscriber = Subscriber::connect(&endpoint).expect("a client");
    let mut stream = subscriber.pull(StreamingPullRequest::default());
    let end = async {
        loop {
            match stream.responses.next().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return Some(status),
                None => return None,
            }
        }
    };
    tokio::time::timeout(DEADLINE, end).await.expect("the stream ends")
}

#[tokio::test]
async fn only_a_status_from_the_service_announces_the_end_of_a_stream() {
    assert!(end(Ends::Trailers(0)).await.is_none());
    for (ends, is_announced) in [
        (Ends::Trailers(14), true),
        (Ends::Headers(5), true),
        (Ends::NoStatus, false),
        (Ends::Reset(Reason::INTERNAL_ERROR), false),
        (Ends::Reset(Reason::NO_ERROR), false),
        (Ends::Cut, false),
        (Ends::Http(504), false),
        (Ends::Malformed, false),
    ] {
        let status = end(ends).await.unwrap_or_else(|| panic!("{ends:?} is no clean end"));
        assert_eq!(is_announced_end(&status), is_announced, "{ends:?}: {status:?}");
    }
}
