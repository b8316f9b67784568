//! Seeks to a time between two messages, and the memory of retained messages.

use std::time::SystemTime;

use super::support::{SUBSCRIPTION, Server, Stream, TOPIC, message, payloads, request, within};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::seek_request::Target;
use tonic::Code;
use walrelay_emulator::{Log, Options, StoredMessage};

/// Creates a subscription that retains acknowledged messages.
async fn with_retention(server: &Server, filter: &str) {
    let subscription = proto::Subscription {
        name: SUBSCRIPTION.to_owned(),
        topic: TOPIC.to_owned(),
        enable_message_ordering: true,
        retain_acked_messages: true,
        filter: filter.to_owned(),
        ..Default::default()
    };
    let mut subscriber = server.subscriber().await;
    within(subscriber.create_subscription(subscription)).await.expect("a new subscription");
}

async fn seek(server: &Server, time: SystemTime) {
    let request = proto::SeekRequest {
        subscription: SUBSCRIPTION.to_owned(),
        target: Some(Target::Time(time.into())),
    };
    within(server.subscriber().await.seek(request)).await.expect("a seek");
}

#[tokio::test]
async fn a_seek_to_a_time_divides_messages_by_their_publication() {
    let server = Server::with_topic().await;
    with_retention(&server, "").await;
    server.publish(&[("k", "1"), ("k", "2"), ("k", "3"), ("k", "4")]).await;
    let received = server.pull(4).await.unwrap();
    server.acknowledge(&received[..3]).await.unwrap();
    let times: Vec<SystemTime> =
        server.emulator.published(TOPIC).iter().map(StoredMessage::publish_time).collect();

    // A message published exactly at the time counts as later. Message 4 is leased, and is also
    // redelivered.
    seek(&server, times[1]).await;
    assert_eq!(payloads(&server.pull(10).await.unwrap()), ["2", "3", "4"]);
    seek(&server, times[3]).await;
    assert_eq!(payloads(&server.pull(10).await.unwrap()), ["4"]);
    seek(&server, SystemTime::UNIX_EPOCH).await;
    assert_eq!(payloads(&server.pull(10).await.unwrap()), ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn a_seek_wakes_streams_and_voids_their_ack_ids() {
    let server = Server::with_topic().await;
    with_retention(&server, "").await;
    server.publish(&[("k", "1"), ("k", "2")]).await;
    let mut stream = Stream::open(&server, 0).await;
    let first = stream.take(2).await;

    seek(&server, SystemTime::UNIX_EPOCH).await;
    let again = stream.take(2).await;
    assert_eq!(payloads(&again), ["1", "2"]);
    server.acknowledge(&first).await.unwrap();
    assert_eq!(server.emulator.stats().messages_acknowledged, 0);
    server.acknowledge(&again).await.unwrap();
    assert_eq!(server.emulator.stats().messages_acknowledged, 2);
}

#[tokio::test]
async fn what_a_filter_excludes_is_not_brought_back() {
    let server = Server::with_topic().await;
    let mut publisher = server.publisher().await;
    with_retention(&server, "attributes.event_type = \"OrderPaid\"").await;
    let other = proto::PubsubMessage { attributes: [].into(), ..message("other", "k") };
    publisher.publish(request(vec![message("1", "k"), other])).await.unwrap();
    let snapshot = proto::CreateSnapshotRequest {
        name: "projects/test/snapshots/early".to_owned(),
        subscription: SUBSCRIPTION.to_owned(),
        ..Default::default()
    };
    let mut subscriber = server.subscriber().await;
    let snapshot = subscriber.create_snapshot(snapshot).await.unwrap().into_inner();
    let later = proto::PubsubMessage { attributes: [].into(), ..message("later", "k") };
    publisher.publish(request(vec![later, message("2", "k")])).await.unwrap();

    seek(&server, SystemTime::UNIX_EPOCH).await;
    assert_eq!(payloads(&server.pull(10).await.unwrap()), ["1", "2"]);
    let request = proto::SeekRequest {
        subscription: SUBSCRIPTION.to_owned(),
        target: Some(Target::Snapshot(snapshot.name)),
    };
    subscriber.seek(request).await.unwrap();
    assert_eq!(payloads(&server.pull(10).await.unwrap()), ["1", "2"]);
}

#[tokio::test]
async fn what_is_kept_counts_towards_the_bound_on_memory() {
    let options = Options { log: Log::Off, stored_bytes_max: 10_000, ..Options::default() };
    let server = Server::with(options).await;
    server.emulator.create_topic(TOPIC).unwrap();
    with_retention(&server, "").await;
    let mut publisher = server.publisher().await;
    let large = || request(vec![message(&"x".repeat(3_000), "")]);
    for _ in 0..2 {
        publisher.publish(large()).await.unwrap();
        let received = server.pull(1).await.unwrap();
        server.acknowledge(&received).await.unwrap();
    }
    let full = publisher.publish(request(vec![message(&"x".repeat(4_000), "")])).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);

    // Messages that are no longer retained free memory.
    let update = proto::UpdateSubscriptionRequest {
        subscription: Some(proto::Subscription {
            name: SUBSCRIPTION.to_owned(),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["retain_acked_messages".into()] }),
    };
    server.subscriber().await.update_subscription(update).await.unwrap();
    assert_eq!(server.emulator.stats().stored_bytes, 0);
    publisher.publish(large()).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_outlives_its_topic_and_frees_its_memory_when_it_is_deleted() {
    let options = Options { log: Log::Off, ..Options::default() };
    let server = Server::with(options).await;
    server.emulator.create_topic(TOPIC).unwrap();
    with_retention(&server, "").await;
    server.publish(&[("k", "1")]).await;
    let mut subscriber = server.subscriber().await;
    let name = "projects/test/snapshots/early".to_owned();
    let create = proto::CreateSnapshotRequest {
        name: name.clone(),
        subscription: SUBSCRIPTION.to_owned(),
        ..Default::default()
    };
    subscriber.create_snapshot(create).await.unwrap();
    let with_snapshot = server.emulator.stats().stored_bytes;
    let topic = proto::DeleteTopicRequest { topic: TOPIC.to_owned() };
    server.publisher().await.delete_topic(topic).await.unwrap();
    let get = proto::GetSnapshotRequest { snapshot: name.clone() };
    let orphan = subscriber.get_snapshot(get).await.unwrap().into_inner();
    assert_eq!(orphan.topic, "_deleted-topic_");

    let delete = proto::DeleteSnapshotRequest { snapshot: name };
    subscriber.delete_snapshot(delete).await.unwrap();
    assert_eq!(server.emulator.stats().stored_bytes * 2, with_snapshot);
}
