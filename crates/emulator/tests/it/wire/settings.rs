//! Settings of topics, subscriptions and snapshots: the updates that production accepts, and the
//! values that it refuses.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use prost_types::FieldMask;
use tonic::Code;

use super::support::{SUBSCRIPTION, Server, TOPIC};

fn mask(path: &str) -> Option<FieldMask> {
    Some(FieldMask { paths: vec![path.to_owned()] })
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[tokio::test]
async fn the_storage_policy_of_a_topic_can_be_updated() {
    let server = Server::with_topic().await;
    let mut publisher = server.publisher().await;
    let policy = proto::MessageStoragePolicy {
        allowed_persistence_regions: vec!["europe-west1".to_owned()],
        ..Default::default()
    };
    let update = |message_storage_policy| proto::UpdateTopicRequest {
        topic: Some(proto::Topic {
            name: TOPIC.to_owned(),
            message_storage_policy,
            ..Default::default()
        }),
        update_mask: mask("message_storage_policy"),
    };
    publisher.update_topic(update(Some(policy.clone()))).await.unwrap();
    let get = proto::GetTopicRequest { topic: TOPIC.to_owned() };
    let stored = publisher.get_topic(get).await.unwrap().into_inner();
    assert_eq!(stored.message_storage_policy, Some(policy));

    let nowhere = proto::MessageStoragePolicy::default();
    let refused = publisher.update_topic(update(Some(nowhere))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // Without a policy the organisation decides, and there is none here.
    let reset = publisher.update_topic(update(None)).await.unwrap().into_inner();
    assert_eq!(reset.message_storage_policy, None);
}

#[tokio::test]
async fn an_update_of_no_field_is_refused() {
    let server = Server::with_topic().await;
    let topic = proto::Topic { name: TOPIC.to_owned(), ..Default::default() };
    for update_mask in [None, Some(FieldMask::default())] {
        let update = proto::UpdateTopicRequest { topic: Some(topic.clone()), update_mask };
        let refused = server.publisher().await.update_topic(update).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn an_empty_push_configuration_leaves_a_subscription_with_pull() {
    let server = Server::with_subscription().await;
    let mut subscriber = server.subscriber().await;
    let modify = |subscription: &str, endpoint: &str| proto::ModifyPushConfigRequest {
        subscription: subscription.to_owned(),
        push_config: Some(proto::PushConfig {
            push_endpoint: endpoint.to_owned(),
            ..Default::default()
        }),
    };
    subscriber.modify_push_config(modify(SUBSCRIPTION, "")).await.unwrap();
    let unset =
        proto::ModifyPushConfigRequest { subscription: SUBSCRIPTION.to_owned(), push_config: None };
    subscriber.modify_push_config(unset).await.unwrap();
    let pushing = modify(SUBSCRIPTION, "https://example.com/push");
    let refused = subscriber.modify_push_config(pushing).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let missing = modify("projects/test/subscriptions/missing", "");
    let missing = subscriber.modify_push_config(missing).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);

    let update = proto::UpdateSubscriptionRequest {
        subscription: Some(proto::Subscription {
            name: SUBSCRIPTION.to_owned(),
            push_config: Some(proto::PushConfig::default()),
            ..Default::default()
        }),
        update_mask: mask("push_config"),
    };
    subscriber.update_subscription(update).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_without_a_name_gets_one_in_the_project_of_its_subscription() {
    let server = Server::with_subscription().await;
    let mut subscriber = server.subscriber().await;
    let unnamed = proto::CreateSnapshotRequest {
        subscription: SUBSCRIPTION.to_owned(),
        ..Default::default()
    };
    let first = subscriber.create_snapshot(unnamed.clone()).await.unwrap().into_inner().name;
    let second = subscriber.create_snapshot(unnamed).await.unwrap().into_inner().name;
    assert!(first.starts_with("projects/test/snapshots/"), "{first}");
    assert_ne!(first, second);
    let get = proto::GetSnapshotRequest { snapshot: second };
    assert_eq!(subscriber.get_snapshot(get).await.unwrap().into_inner().topic, TOPIC);

    let of_nothing = proto::CreateSnapshotRequest {
        subscription: "projects/test/subscriptions/missing".to_owned(),
        ..Default::default()
    };
    let missing = subscriber.create_snapshot(of_nothing).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

#[tokio::test]
async fn settings_that_production_refuses_are_refused_on_creation_and_update() {
    let server = Server::with_subscription().await;
    let mut subscriber = server.subscriber().await;
    let plain = || proto::Subscription { topic: TOPIC.to_owned(), ..Default::default() };
    let retry_policy =
        Some(proto::RetryPolicy { minimum_backoff: seconds(20), maximum_backoff: seconds(10) });
    let expiration_policy = Some(proto::ExpirationPolicy { ttl: seconds(3600) });
    let labels = [("Team".to_owned(), "orders".to_owned())];
    for (path, refused) in [
        ("retry_policy", proto::Subscription { retry_policy, ..plain() }),
        ("expiration_policy", proto::Subscription { expiration_policy, ..plain() }),
        ("labels", proto::Subscription { labels: labels.clone().into(), ..plain() }),
    ] {
        let name = "projects/test/subscriptions/refused".to_owned();
        let created = proto::Subscription { name, ..refused.clone() };
        let refused_creation = subscriber.create_subscription(created).await.unwrap_err();
        assert_eq!(refused_creation.code(), Code::InvalidArgument, "{path}");

        let changed = proto::Subscription { name: SUBSCRIPTION.to_owned(), ..refused };
        let update = proto::UpdateSubscriptionRequest {
            subscription: Some(changed),
            update_mask: mask(path),
        };
        let refused_update = subscriber.update_subscription(update).await.unwrap_err();
        assert_eq!(refused_update.code(), Code::InvalidArgument, "{path}");
    }
    let topic = proto::Topic {
        name: "projects/test/topics/refused".to_owned(),
        labels: labels.clone().into(),
        ..Default::default()
    };
    let refused_topic = server.publisher().await.create_topic(topic).await.unwrap_err();
    assert_eq!(refused_topic.code(), Code::InvalidArgument);
    let snapshot = proto::CreateSnapshotRequest {
        subscription: SUBSCRIPTION.to_owned(),
        labels: labels.into(),
        ..Default::default()
    };
    let refused_snapshot = subscriber.create_snapshot(snapshot).await.unwrap_err();
    assert_eq!(refused_snapshot.code(), Code::InvalidArgument);
}
