//! Tests the publisher against a server on a socket.

mod goaway;
mod pull_ends;
mod server;
mod tokens;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use h2::Reason;
use pgoutput_parser::{Lsn, Position};
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tokio::time::{Instant, timeout};
use walrelay_core::{CallCode, FailureClass, Message, PublishFailure, Topic};

use crate::dialer::Dialer;
use crate::{Endpoint, GrpcPublisher, PublisherConfig, PubsubError};
use server::{Answer, Server};

const TOPIC: &str = "projects/p/topics/orders.events";
/// Far more time than any of these calls takes, so that a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(30);

fn config(server: &Server) -> PublisherConfig {
    PublisherConfig::new(Endpoint::emulator(&server.address().to_string()).unwrap())
}

fn publisher(server: &Server) -> GrpcPublisher {
    GrpcPublisher::connect(&config(server)).unwrap()
}

fn message(data: &[u8]) -> Message {
    let mut body = vec![0x0A]; // data
    let mut length = data.len();
    while length >= 0x80 {
        body.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    body.push(length.to_le_bytes()[0]);
    body.extend_from_slice(data);
    body.extend_from_slice(&[0x2A, 1, b'k']); // ordering_key "k"
    let position = Position { commit_lsn: Lsn::new(1), tx_index: 0 };
    Message::from_encoded(TOPIC.into(), position, "event", &body).unwrap()
}

async fn publish(publisher: &GrpcPublisher, data: &[&str]) -> Result<Vec<String>, PublishFailure> {
    let messages: Vec<Message> = data.iter().map(|data| message(data.as_bytes())).collect();
    let publish = publisher.publish(&Topic::from(TOPIC), messages.iter());
    drop(messages);
    timeout(PATIENCE, publish).await.expect("the call ends")
}

async fn publish_one(publisher: &GrpcPublisher, data: &str) -> Result<Vec<String>, PublishFailure> {
    publish(publisher, &[data]).await
}

#[test]
fn a_call_that_waits_keeps_less_than_the_allocator_has_at_hand() {
    fn call(
        publisher: GrpcPublisher,
        topic: &'static Topic,
        messages: std::slice::Iter<'static, Message>,
    ) -> impl Future {
        publisher.publish(topic, messages)
    }
    fn size<F>(
        _: fn(GrpcPublisher, &'static Topic, std::slice::Iter<'static, Message>) -> F,
    ) -> usize {
        size_of::<F>()
    }
    // glibc caches freed blocks of up to 1,032 bytes per thread. It has to search for a larger
    // block, which costs more than all other allocations of a small request.
    assert!(size(call) <= 1_032, "{} bytes", size(call));
}

/// Publishes one message to a server that gives `answer`. Returns the failure.
async fn failure_of(answer: Answer) -> PublishFailure {
    let server = Server::start(move |_| answer.clone()).await;
    publish(&publisher(&server), &["a"]).await.unwrap_err()
}

#[tokio::test]
async fn a_batch_arrives_whole_and_its_ids_come_back_in_order() {
    let server = Server::start(|_| Answer::Ids).await;
    let mut config = config(&server);
    config.quota_project = Some("payer".to_owned());
    let publisher = GrpcPublisher::connect(&config).unwrap();

    let ids = publish(&publisher, &["one", "two", "three"]).await.unwrap();

    assert_eq!(ids, ["one", "two", "three"]);
    let seen = server.seen(1).await.remove(0);
    assert_eq!(seen.body.topic, TOPIC);
    let data: Vec<_> = seen.body.messages.iter().map(|message| &message.data[..]).collect();
    assert_eq!(data, [&b"one"[..], b"two", b"three"]);
    assert!(seen.body.messages.iter().all(|message| message.ordering_key == "k"));
    let address = server.address();
    assert_eq!(seen.uri, format!("http://{address}/google.pubsub.v1.Publisher/Publish"));
    let headers: HashMap<_, _> =
        seen.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    assert_eq!(headers["te"], "trailers");
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-timeout"], "60000m");
    assert_eq!(headers["x-goog-user-project"], "payer");
    assert_eq!(headers["x-goog-request-params"], "topic=projects%2Fp%2Ftopics%2Forders.events");
    assert!(headers["user-agent"].starts_with("walrelay/"));
    assert!(!headers.contains_key("authorization"), "an emulator gets no credentials");
}

#[tokio::test]
async fn a_response_in_pieces_is_put_together() {
    let server = Server::start(|_| Answer::IdsInPieces).await;
    assert_eq!(publish(&publisher(&server), &["one", "two"]).await.unwrap(), ["one", "two"]);
}

#[tokio::test]
async fn every_status_is_classified_in_trailers_and_in_headers() {
    for code in 1..=16 {
        let expected = crate::classify(tonic::Code::from_i32(code), "no: näin");
        let trailers = failure_of(Answer::Status(code, "no: n%C3%A4in")).await;
        assert_eq!(trailers, expected);
        let headers = failure_of(Answer::TrailersOnly(code, "no: n%C3%A4in")).await;
        assert_eq!(headers, expected);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_grpc_is_classified_by_its_http_status() {
    for (status, code) in [
        (400, CallCode::Internal),
        (401, CallCode::Unauthenticated),
        (403, CallCode::PermissionDenied),
        (404, CallCode::Unimplemented),
        (429, CallCode::Unavailable),
        (502, CallCode::Unavailable),
        (503, CallCode::Unavailable),
        (504, CallCode::Unavailable),
        (500, CallCode::Unknown),
        (200, CallCode::Unknown),
    ] {
        assert_eq!(failure_of(Answer::Http(status)).await.code, code.into(), "{status}");
    }
}

#[tokio::test]
async fn an_answer_that_proves_nothing_is_transient() {
    for answer in [
        Answer::NoStatus,
        Answer::TheseIds(vec![]),
        Answer::TheseIds(vec!["1".to_owned(), "2".to_owned()]),
        Answer::Bytes(3),
        Answer::Bytes(2 * 1024 * 1024),
        Answer::TrailersOnly(0, ""),
    ] {
        assert_eq!(failure_of(answer).await.class, FailureClass::Transient);
    }
    let miscounted = failure_of(Answer::TheseIds(vec![])).await;
    assert_eq!(miscounted.message, "1 messages were sent and 0 ids came back");
}

#[tokio::test]
async fn a_reset_stream_counts_as_grpc_says() {
    for (reason, code, congestion) in [
        (Reason::CANCEL, CallCode::Cancelled, false),
        (Reason::ENHANCE_YOUR_CALM, CallCode::ResourceExhausted, true),
        (Reason::INADEQUATE_SECURITY, CallCode::PermissionDenied, false),
        (Reason::INTERNAL_ERROR, CallCode::Internal, false),
        (Reason::PROTOCOL_ERROR, CallCode::Internal, false),
        (Reason::REFUSED_STREAM, CallCode::Unavailable, false),
    ] {
        let failure = failure_of(Answer::Reset(reason)).await;
        assert_eq!((failure.code, failure.congestion), (code.into(), congestion), "{reason}");
    }
}

#[tokio::test]
async fn a_refused_stream_is_sent_again() {
    let server = resetting_first(Reason::REFUSED_STREAM).await;
    assert_eq!(publish(&publisher(&server), &["a"]).await.unwrap(), ["a"]);
    assert_eq!(server.seen(2).await.len(), 2);
}

#[tokio::test]
async fn a_stream_reset_for_another_reason_is_not_sent_again() {
    let server = resetting_first(Reason::CANCEL).await;
    publish(&publisher(&server), &["a"]).await.unwrap_err();
    assert_eq!(server.seen(1).await.len(), 1);
}

async fn resetting_first(reason: Reason) -> Server {
    Server::start(move |number| if number == 0 { Answer::Reset(reason) } else { Answer::Ids }).await
}

#[tokio::test]
async fn a_connection_cut_mid_request_is_unavailable_and_replaced() {
    let server = Server::start(|number| if number == 0 { Answer::Cut } else { Answer::Ids }).await;
    let publisher = publisher(&server);

    let failure = publish(&publisher, &["a"]).await.unwrap_err();

    assert_eq!(
        (failure.class, failure.code),
        (FailureClass::Transient, CallCode::Unavailable.into())
    );
    assert_eq!(publish(&publisher, &["a"]).await.unwrap(), ["a"]);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn no_request_fails_because_connections_go_away() {
    let server = Server::going_away_after(3, |_| Answer::Ids).await;
    let publisher = publisher(&server);
    for round in 0..10 {
        let data: Vec<String> = (0..5).map(|index| format!("{round}/{index}")).collect();
        let batches = data.iter().map(|data| publish_one(&publisher, data));
        for (result, sent) in join_all(batches).await.into_iter().zip(&data) {
            assert_eq!(result.unwrap(), [sent.as_str()]);
        }
    }
    assert!(server.connections() >= 5, "{}", server.connections());
}

#[tokio::test]
async fn a_silent_service_is_a_deadline_and_the_request_is_cancelled() {
    let server = Server::start(|_| Answer::Never).await;
    let mut config = config(&server);
    config.request_timeout = Duration::from_millis(50);
    let publisher = GrpcPublisher::connect(&config).unwrap();

    let failure = publish(&publisher, &["a"]).await.unwrap_err();

    assert_eq!((failure.code, failure.congestion), (CallCode::DeadlineExceeded.into(), true));
    timeout(PATIENCE, server.cancelled(1)).await.expect("the service is told");
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_is_given_up_long_before_the_deadline() {
    // A server that accepts and never reads simulates a connection that the network has forgotten.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = PublisherConfig::new(Endpoint::emulator(&address).unwrap());
    let publisher = GrpcPublisher::connect(&config).unwrap();
    let begin = Instant::now();

    let failure = publish(&publisher, &["a"]).await.unwrap_err();

    assert_eq!(failure.code, CallCode::Unavailable.into(), "{failure}");
    assert_eq!(begin.elapsed().as_secs(), 20, "a look after 10 s, 10 s for the PING");
}

#[tokio::test(start_paused = true)]
async fn a_slow_service_keeps_its_connection() {
    let server =
        Server::start(|number| if number == 0 { Answer::Never } else { Answer::Ids }).await;
    let mut config = config(&server);
    config.request_timeout = Duration::from_secs(25);
    let publisher = GrpcPublisher::connect(&config).unwrap();

    let failure = publish(&publisher, &["a"]).await.unwrap_err();
    assert_eq!(failure.code, CallCode::DeadlineExceeded.into(), "PINGs are answered");

    publish(&publisher, &["a"]).await.unwrap();
    assert_eq!(server.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_before_a_gateway_forgets_it() {
    let server = Server::start(|_| Answer::Ids).await;
    let publisher = publisher(&server);
    publish(&publisher, &["a"]).await.unwrap();
    tokio::time::advance(Duration::from_mins(1)).await;
    publish(&publisher, &["a"]).await.unwrap();
    assert_eq!(server.connections(), 1);

    // Virtual time advances while all tasks are idle.
    tokio::time::sleep(Duration::from_mins(5)).await;

    publish(&publisher, &["a"]).await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled() {
    let server = Server::start(|_| Answer::Never).await;
    let publisher = publisher(&server);
    let call = publisher.publish(&Topic::from(TOPIC), [message(b"a")].iter());
    tokio::select! {
        result = call => panic!("nobody answered, and yet: {result:?}"),
        seen = server.seen(1) => assert_eq!(seen.len(), 1),
    }
    timeout(PATIENCE, server.cancelled(1)).await.expect("the service is told");
}

#[tokio::test]
async fn many_requests_spread_over_connections() {
    let together = Arc::new(Barrier::new(350));
    let server = Server::start(move |_| Answer::IdsTogether(Arc::clone(&together))).await;
    let publisher = publisher(&server);

    let calls = (0..350).map(|_| publish(&publisher, &["a"]));
    let failed = join_all(calls).await.into_iter().filter(Result::is_err).count();

    assert_eq!(failed, 0);
    assert!(server.connections() >= 4, "{}", server.connections());
    assert!(server.most_streams() <= 100, "{}", server.most_streams());
}

#[tokio::test]
async fn requests_that_start_together_share_a_connection_until_it_is_full() {
    let together = [350, 250].map(|count| Arc::new(Barrier::new(count)));
    let server = Server::start(move |number| {
        Answer::IdsTogether(Arc::clone(&together[usize::from(number >= 350)]))
    })
    .await;
    let publisher = publisher(&server);
    for count in [350, 250] {
        let calls = (0..count).map(|_| publish(&publisher, &["a"]));
        assert!(join_all(calls).await.iter().all(Result::is_ok));
    }

    let mut of_each = HashMap::new();
    for seen in server.seen(600).await.split_off(350) {
        *of_each.entry(seen.connection).or_insert(0) += 1;
    }
    let mut counts: Vec<i32> = of_each.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [50, 100, 100]);
}

#[tokio::test]
async fn the_limit_of_connections_holds() {
    let server = Server::start(|_| Answer::Ids).await;
    let mut config = config(&server);
    config.connections_max = 2;
    let publisher = GrpcPublisher::connect(&config).unwrap();
    let calls = (0..1000).map(|_| publish(&publisher, &["a"]));
    let failed = join_all(calls).await.into_iter().filter(Result::is_err).count();
    assert_eq!((failed, server.connections()), (0, 2));
}

#[tokio::test]
async fn one_connection_is_enough_for_little_work() {
    let server = Server::start(|_| Answer::Ids).await;
    let publisher = publisher(&server);
    for _ in 0..20 {
        publish(&publisher, &["a"]).await.unwrap();
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_service_that_comes_back_is_found_again() {
    let server = Server::start(|_| Answer::Ids).await;
    let publisher = publisher(&server);
    publish(&publisher, &["a"]).await.unwrap();

    let address = server.address();
    drop(server);
    let down = until(
        || publish(&publisher, &["a"]),
        |result| result.as_ref().is_err_and(|failure| failure.message.contains("cannot connect")),
    );
    let failure = down.await.unwrap_err();
    assert_eq!(
        (failure.class, failure.code),
        (FailureClass::Transient, CallCode::Unavailable.into())
    );
    assert!(failure.message.contains(&address.to_string()), "{failure}");

    let _server = Server::start_at(address, None, |_| Answer::Ids).await;
    assert_eq!(until(|| publish(&publisher, &["a"]), Result::is_ok).await.unwrap(), ["a"]);
}

/// Calls again until the result is as wanted.
async fn until<T, F: Future<Output = T>>(call: impl Fn() -> F, wanted: impl Fn(&T) -> bool) -> T {
    let repeated = async {
        loop {
            let result = call().await;
            if wanted(&result) {
                return result;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, repeated).await.expect("the result is as wanted at last")
}

#[tokio::test]
async fn a_dead_endpoint_is_not_dialled_by_every_request() {
    let server = Server::start(|_| Answer::Cut).await;
    let publisher = publisher(&server);
    let calls = (0..200).map(|_| publish(&publisher, &["a"]));
    let failed = join_all(calls).await.into_iter().filter(Result::is_err).count();
    assert_eq!(failed, 200);
    assert!(server.connections() <= 16, "{}", server.connections());
}

#[tokio::test]
async fn ten_megabytes_go_through() {
    let server = Server::start(|_| Answer::Ids).await;
    let publisher = publisher(&server);
    let data = vec![b'x'; 9_900_000];
    let messages = [message(&data)];
    let call = publisher.publish(&Topic::from(TOPIC), messages.iter());
    let ids = timeout(PATIENCE, call).await.unwrap().unwrap();
    assert_eq!(ids, ["x".repeat(20)]);
    assert_eq!(server.seen(1).await[0].body.messages[0].data.len(), data.len());
}

#[tokio::test]
async fn no_failure_tells_what_was_published() {
    for answer in [Answer::Cut, Answer::NoStatus, Answer::TheseIds(vec![]), Answer::Http(500)] {
        let server = Server::start(move |_| answer.clone()).await;
        let failure = publish(&publisher(&server), &["hunter2"]).await.unwrap_err();
        assert!(!format!("{failure} {failure:?}").contains("hunter2"), "{failure}");
    }
}

#[tokio::test]
async fn settings_out_of_range_are_named() {
    let endpoint = Endpoint::emulator("127.0.0.1:1").unwrap();
    let mut config = PublisherConfig::new(endpoint);
    config.connections_max = 0;
    let error = GrpcPublisher::connect(&config).unwrap_err();
    assert!(matches!(error, PubsubError::Setting { name: "connections_max", .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_moves_away_from_a_silent_address_is_followed_within_20_seconds() {
    // A server that accepts and never reads simulates an old address that swallows packets.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(|_| Answer::Ids).await;
    let config = config(&server);
    let addresses = Arc::new(Mutex::new(vec![silent.local_addr().unwrap()]));
    let dialer = Dialer::new(&config).unwrap().resolving_to(Arc::clone(&addresses));
    let publisher = GrpcPublisher::assemble(&config, dialer, None).unwrap();
    let begin = Instant::now();
    let before = publish(&publisher, &["a"]);
    tokio::pin!(before);
    assert!(timeout(Duration::from_secs(1), &mut before).await.is_err(), "no answer");

    *addresses.lock().unwrap() = vec![server.address()];
    assert_eq!(before.await.unwrap_err().code, CallCode::Unavailable.into());

    assert_eq!(publish(&publisher, &["a"]).await.unwrap(), ["a"]);
    let took = begin.elapsed();
    assert!(took <= Duration::from_secs(21), "a look after 10 s, 10 s for the PING: {took:?}");
}

#[tokio::test]
async fn a_wrong_number_of_ids_is_never_taken_for_stored() {
    for count in [0, 1, 2, 4, 1_000, 40_000] {
        let ids = vec!["1".to_owned(); count];
        let server = Server::start(move |_| Answer::TheseIds(ids.clone())).await;
        let failure = publish(&publisher(&server), &["a", "b", "c"]).await.unwrap_err();
        assert_eq!(
            (failure.class, failure.code),
            (FailureClass::Transient, CallCode::Internal.into())
        );
        assert_eq!(failure.message, format!("3 messages were sent and {count} ids came back"));
        assert_eq!(server.seen(1).await.len(), 1, "it is the caller who sends it again");
    }
}
