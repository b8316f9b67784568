//! Seek and snapshots: which messages are redelivered and which are dropped.
//!
//! The official emulator (0.8.20) replies UNIMPLEMENTED to a seek to a time on an ordered
//! subscription. Those tests use only the embedded emulator.

use std::time::{Duration, SystemTime};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::seek_request::Target;
use tonic::Code;

use crate::service::{Kind, Service, data, message, ours, services};

fn an_hour_ago() -> Target {
    Target::Time((SystemTime::now() - Duration::from_secs(3600)).into())
}

fn in_an_hour() -> Target {
    Target::Time((SystemTime::now() + Duration::from_secs(3600)).into())
}

/// Publishes messages of one key, and acknowledges the first `acknowledged` of them.
async fn publish(service: &mut Service, name: &str, texts: &[&str], acknowledged: usize) {
    for text in texts {
        service.publish("orders", vec![message("k", text)]).await.expect("published");
    }
    let received = service.pull(name, texts.len()).await;
    assert_eq!(data(&received), texts, "{:?}", service.kind);
    service.acknowledge(name, &received[..acknowledged]).await;
}

#[tokio::test]
async fn a_subscription_that_keeps_acknowledged_messages_delivers_them_again() {
    let mut service = ours().await;
    let keep = |its: &mut proto::Subscription| its.retain_acked_messages = true;
    service.subscribe_with("orders", "kept", keep).await.unwrap();
    publish(&mut service, "kept", &["1", "2", "3"], 2).await;

    service.seek("kept", an_hour_ago()).await.unwrap();
    let again = service.pull("kept", 3).await;
    assert_eq!(data(&again), ["1", "2", "3"], "{:?}", service.kind);
    service.acknowledge("kept", &again).await;
    assert_eq!(data(&service.pull_now("kept").await), [""; 0], "{:?}", service.kind);
}

#[tokio::test]
async fn a_subscription_that_does_not_keep_them_delivers_what_was_not_acknowledged() {
    let mut service = ours().await;
    publish(&mut service, "all", &["1", "2", "3"], 2).await;
    service.seek("all", an_hour_ago()).await.unwrap();
    assert_eq!(data(&service.pull("all", 1).await), ["3"], "{:?}", service.kind);
    assert_eq!(data(&service.pull_now("all").await), [""; 0], "{:?}", service.kind);
}

#[tokio::test]
async fn seeking_to_a_time_to_come_acknowledges_everything() {
    let mut service = ours().await;
    publish(&mut service, "all", &["1", "2"], 1).await;
    service.publish("orders", vec![message("other", "3")]).await.unwrap();
    service.seek("all", in_an_hour()).await.unwrap();
    assert_eq!(data(&service.pull_now("all").await), [""; 0], "{:?}", service.kind);
    // The seek affects only past messages: new messages are delivered.
    service.publish("orders", vec![message("k", "4")]).await.unwrap();
    assert_eq!(data(&service.pull("all", 1).await), ["4"], "{:?}", service.kind);
}

#[tokio::test]
async fn a_snapshot_holds_what_was_not_acknowledged_and_all_that_came_later() {
    let mut service = ours().await;
    publish(&mut service, "all", &["1", "2", "3"], 1).await;
    let snapshot = service.take_snapshot("all", "before").await.unwrap();
    assert_eq!(snapshot.topic, service.topic("orders"), "{:?}", service.kind);
    service.seek("all", in_an_hour()).await.unwrap();
    publish(&mut service, "all", &["4"], 1).await;

    for _ in 0..2 {
        service.seek_to("all", "before").await.unwrap();
        let again = service.pull("all", 3).await;
        assert_eq!(data(&again), ["2", "3", "4"], "{:?}", service.kind);
        service.acknowledge("all", &again).await;
    }
    assert_eq!(data(&service.pull_now("all").await), [""; 0], "{:?}", service.kind);
}

#[tokio::test]
async fn a_topic_that_keeps_messages_has_them_for_subscriptions_that_came_later() {
    let mut service = ours().await;
    let request = proto::UpdateTopicRequest {
        topic: Some(proto::Topic {
            name: service.topic("orders"),
            message_retention_duration: Some(prost_types::Duration { seconds: 600, nanos: 0 }),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["message_retention_duration".to_owned()],
        }),
    };
    service.publisher.update_topic(request).await.unwrap();
    service.publish("orders", vec![message("k", "1"), message("k", "2")]).await.unwrap();
    service.subscribe("orders", "late").await.unwrap();
    assert_eq!(data(&service.pull_now("late").await), [""; 0]);
    service.seek("late", an_hour_ago()).await.unwrap();
    assert_eq!(data(&service.pull("late", 2).await), ["1", "2"], "{:?}", service.kind);
}

#[tokio::test]
async fn a_snapshot_of_one_subscription_is_the_state_of_another_one() {
    for mut service in services().await {
        publish(&mut service, "all", &["1", "2"], 1).await;
        service.take_snapshot("all", "of-all").await.unwrap();
        service.subscribe("orders", "late").await.unwrap();
        service.publish("orders", vec![message("k", "3")]).await.unwrap();
        service.seek_to("late", "of-all").await.unwrap();
        let expected: &[&str] = match service.kind {
            Kind::Embedded => &["2", "3"],
            // The official emulator keeps only the messages that the subscription itself received.
            Kind::Official => &["3"],
        };
        let received = service.pull("late", expected.len()).await;
        assert_eq!(data(&received), expected, "{:?}", service.kind);
    }
}

#[tokio::test]
async fn snapshots_are_made_found_listed_and_deleted() {
    for mut service in services().await {
        let kind = service.kind;
        service.take_snapshot("all", "first").await.unwrap();
        let made = service.take_snapshot("all", "second").await.unwrap();
        let twice = service.take_snapshot("all", "first").await.unwrap_err();
        assert_eq!(twice.code(), Code::AlreadyExists, "{kind:?}: {twice}");
        let orphan = service.take_snapshot("nobody", "third").await.unwrap_err();
        assert_eq!(orphan.code(), Code::NotFound, "{kind:?}: {orphan}");
        let malformed = service.take_snapshot("all", "1 x").await.unwrap_err();
        assert_eq!(malformed.code(), Code::InvalidArgument, "{kind:?}: {malformed}");

        // The snapshot holds no unacknowledged message, so it gets the longest lifetime.
        let expires = SystemTime::try_from(made.expire_time.unwrap()).unwrap();
        let days = expires.duration_since(SystemTime::now()).unwrap().as_secs_f64() / 86_400.0;
        assert!((6.9..=7.0).contains(&days), "{kind:?}: {days}");
        let get = proto::GetSnapshotRequest { snapshot: made.name.clone() };
        let got = service.subscriber.get_snapshot(get.clone()).await.unwrap().into_inner();
        assert_eq!(got, made, "{kind:?}");
        let list = proto::ListSnapshotsRequest {
            project: format!("projects/{}", service.project),
            ..Default::default()
        };
        let listed = service.subscriber.list_snapshots(list).await.unwrap().into_inner().snapshots;
        let mut names: Vec<&str> = listed.iter().map(|its| its.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, [service.snapshot("first"), service.snapshot("second")], "{kind:?}");

        let delete = proto::DeleteSnapshotRequest { snapshot: made.name };
        service.subscriber.delete_snapshot(delete).await.unwrap();
        let gone = service.subscriber.get_snapshot(get).await.unwrap_err();
        assert_eq!(gone.code(), Code::NotFound, "{kind:?}: {gone}");
    }
}

#[tokio::test]
async fn a_seek_without_a_target_or_to_a_foreign_snapshot_is_refused() {
    for mut service in services().await {
        let kind = service.kind;
        service.create_topic("other").await.unwrap();
        service.subscribe("other", "of-other").await.unwrap();
        service.take_snapshot("all", "of-all").await.unwrap();
        let foreign = service.seek_to("of-other", "of-all").await.unwrap_err();
        assert_eq!(foreign.code(), Code::FailedPrecondition, "{kind:?}: {foreign}");
        let missing = service.seek_to("all", "nothing").await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{kind:?}: {missing}");
        let request =
            proto::SeekRequest { subscription: service.subscription("all"), target: None };
        let nowhere = service.subscriber.seek(request).await.unwrap_err();
        assert_eq!(nowhere.code(), Code::InvalidArgument, "{kind:?}: {nowhere}");
    }
}

#[tokio::test]
async fn a_retention_that_is_too_short_is_refused() {
    for mut service in services().await {
        let short = prost_types::Duration { seconds: 599, nanos: 0 };
        let shorten = |its: &mut proto::Subscription| its.message_retention_duration = Some(short);
        let refused = service.subscribe_with("orders", "short", shorten).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{:?}: {refused}", service.kind);
    }
}
