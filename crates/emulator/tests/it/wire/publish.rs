//! Publish over real gRPC: stored messages, refused requests, and every fault.

use std::time::{Duration, Instant};

use super::support::{Server, TOPIC, message, request, stored, within};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tokio::task::JoinSet;
use tonic::Code;
use walrelay_emulator::{Effect, Fault, Log, Options, SubscriptionOptions};

#[tokio::test]
async fn messages_are_stored_in_order_with_ascending_ids() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;

    let first = client.publish(request(vec![message("a", "k"), message("b", "k")])).await.unwrap();
    let second = client.publish(request(vec![message("c", "")])).await.unwrap();

    assert_eq!(first.into_inner().message_ids, ["1", "2"]);
    assert_eq!(second.into_inner().message_ids, ["3"]);
    assert_eq!(stored(&server.emulator), ["a", "b", "c"]);
    let log = server.emulator.published(TOPIC);
    assert_eq!((log[0].key(), log[2].key()), ("k", ""));
    assert_eq!(log[0].attribute("event_type"), Some("OrderPaid"));
}

#[tokio::test]
async fn what_production_refuses_is_refused() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    let long = "x".repeat(1_025);
    let to = |topic: &str| proto::PublishRequest {
        topic: topic.to_owned(),
        messages: vec![message("a", "")],
    };

    for (request, code, part) in [
        (request(vec![]), Code::InvalidArgument, "no messages"),
        (
            request(vec![message("a", "k1"), message("b", "k2")]),
            Code::InvalidArgument,
            "another ordering key",
        ),
        (request(vec![message("a", &long)]), Code::InvalidArgument, "ordering key"),
        (request(vec![message("a", ""); 1_001]), Code::InvalidArgument, "1001 messages"),
        (to("orders"), Code::InvalidArgument, "malformed topic name"),
        (to("projects/test/topics/unknown"), Code::NotFound, "does not exist"),
    ] {
        let status = client.publish(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(part), "{status}");
    }
    assert_eq!(stored(&server.emulator), [""; 0]);
    assert_eq!(server.emulator.stats().publish_replies["INVALID_ARGUMENT"], 5);
}

#[tokio::test]
async fn a_request_may_be_as_large_as_in_production_and_not_larger() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;

    let largest = message(&"x".repeat(9_999_900), "");
    client.publish(request(vec![largest])).await.unwrap();
    let larger = message(&"x".repeat(10_000_000), "");
    let status = client.publish(request(vec![larger])).await.unwrap_err();

    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("exceeds the limit"), "{status}");
    // The connection is still usable.
    client.publish(request(vec![message("a", "")])).await.unwrap();
}

#[tokio::test]
async fn memory_is_bounded_and_messages_for_nobody_cost_none() {
    let options = Options { log: Log::Off, stored_bytes_max: 10_000, ..Options::default() };
    let server = Server::with(options).await;
    server.emulator.create_topic(TOPIC).unwrap();
    let mut client = server.publisher().await;
    let large = || request(vec![message(&"x".repeat(6_000), "")]);

    for _ in 0..3 {
        client.publish(large()).await.unwrap();
    }
    assert_eq!(server.emulator.stats().messages_dropped, 3);
    assert_eq!(server.emulator.stats().stored_bytes, 0);

    let name = super::support::SUBSCRIPTION;
    server.emulator.create_subscription(name, TOPIC, SubscriptionOptions::default()).unwrap();
    client.publish(large()).await.unwrap();
    let status = client.publish(large()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_rejected_request_is_not_stored_and_a_lost_reply_is() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    let emulator = &server.emulator;
    emulator.set_fault(Fault::all(Effect::Reject(Code::Unavailable)).on_key("bad").first(1));
    emulator.set_fault("key=lost,fail-after-publish=DEADLINE_EXCEEDED".parse().unwrap());

    let mut publish = async |data, key| {
        client.publish(request(vec![message(data, key)])).await.map_err(|status| status.code())
    };
    assert_eq!(publish("1", "bad").await.unwrap_err(), Code::Unavailable);
    assert!(publish("2", "bad").await.is_ok());
    assert_eq!(publish("3", "lost").await.unwrap_err(), Code::DeadlineExceeded);
    assert!(publish("4", "good").await.is_ok());

    assert_eq!(stored(emulator), ["2", "3", "4"]);
    let stats = emulator.stats();
    assert_eq!(stats.publish_requests, 4);
    assert_eq!((stats.publish_replies["OK"], stats.publish_replies["UNAVAILABLE"]), (2, 1));
}

#[tokio::test]
async fn a_held_request_is_stored_at_once_and_answered_when_released() {
    let server = Server::with_topic().await;
    let client = server.publisher().await;
    let emulator = &server.emulator;
    emulator.set_fault("key=slow,hold".parse().unwrap());
    emulator.set_fault("key=later,hold-before".parse().unwrap());

    let mut waiting = JoinSet::new();
    for key in ["slow", "later"] {
        let mut client = client.clone();
        waiting.spawn(async move { client.publish(request(vec![message(key, key)])).await });
    }
    within(emulator.wait_until(|emulator| emulator.stats().held == 2)).await;
    assert_eq!(stored(emulator), ["slow"]);
    assert!(waiting.try_join_next().is_none());

    emulator.release();
    while let Some(reply) = within(waiting.join_next()).await {
        reply.unwrap().unwrap();
    }
    assert_eq!(stored(emulator), ["slow", "later"]);
    assert_eq!(emulator.stats().held, 0);
}

#[tokio::test]
async fn clearing_a_fault_releases_what_it_holds() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    let id = server.emulator.set_fault(Fault::all(Effect::Hold));
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { client.publish(request(vec![message("a", "k")])).await });
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 1)).await;

    assert!(server.emulator.clear_fault(id));

    within(waiting.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_black_hole_neither_stores_nor_answers_and_forgets_clients_that_give_up() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    server.emulator.set_fault("first=1,black-hole".parse().unwrap());

    let mut request_with_deadline = tonic::Request::new(request(vec![message("a", "k")]));
    request_with_deadline.set_timeout(Duration::from_millis(200));
    let status = client.publish(request_with_deadline).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");

    // The key is free again, so the next request is the only outstanding one.
    client.publish(request(vec![message("b", "k")])).await.unwrap();
    assert_eq!(stored(&server.emulator), ["b"]);
    assert!(!server.emulator.stats().publish_replies.contains_key("UNKNOWN"));
}

#[tokio::test]
async fn a_delay_holds_up_the_reply_and_not_the_message() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    server.emulator.set_fault("event_type=OrderPaid,delay=300ms".parse().unwrap());

    let started = Instant::now();
    client.publish(request(vec![message("a", "k")])).await.unwrap();

    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(stored(&server.emulator), ["a"]);
}

#[tokio::test]
async fn overlapping_requests_of_one_key_are_noticed() {
    let server = Server::with_topic().await;
    let client = server.publisher().await;
    let emulator = &server.emulator;

    for _ in 0..20 {
        client.clone().publish(request(vec![message("a", "k")])).await.unwrap();
    }
    assert_eq!(emulator.stats().in_flight_per_key_max, 1);

    let fault = emulator.set_fault(Fault::all(Effect::Hold));
    let mut waiting = JoinSet::new();
    for key in ["k", "k", "other", "", ""] {
        let mut client = client.clone();
        waiting.spawn(async move { client.publish(request(vec![message("a", key)])).await });
    }
    within(emulator.wait_until(|emulator| emulator.stats().held == 5)).await;
    assert_eq!(emulator.stats().in_flight_per_key_max, 2);
    assert!(emulator.clear_fault(fault));
    while let Some(reply) = within(waiting.join_next()).await {
        reply.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_may_be_outstanding_at_once() {
    let server = Server::with_topic().await;
    let client = server.publisher().await;
    server.emulator.set_fault(Fault::all(Effect::Hold));
    let mut waiting = JoinSet::new();
    for number in 0..10_000 {
        let mut client = client.clone();
        let one = message("a", &format!("key-{number}"));
        waiting.spawn(async move { client.publish(request(vec![one])).await });
    }
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 10_000)).await;
    server.emulator.release();
    while let Some(reply) = within(waiting.join_next()).await {
        reply.unwrap().unwrap();
    }
    assert_eq!(server.emulator.stats().messages_stored, 10_000);
}

#[tokio::test]
async fn a_stop_ends_held_requests_too() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    server.emulator.set_fault(Fault::all(Effect::BlackHole));
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { client.publish(request(vec![message("a", "k")])).await });
    let arrived = server.emulator.clone();
    within(arrived.wait_until(|emulator| emulator.stats().publish_requests == 1)).await;

    server.stop().await;

    within(waiting.join_next()).await.unwrap().unwrap().unwrap_err();
}
