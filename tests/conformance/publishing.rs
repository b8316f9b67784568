//! Publish: accepted and refused messages.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::PubsubMessage;
use tonic::Code;

use crate::service::{Kind, message, services};

#[tokio::test]
async fn a_name_that_is_missing_taken_or_malformed_is_refused_with_the_same_code() {
    for mut service in services().await {
        let kind = service.kind;
        let missing = service.publish("nowhere", vec![message("", "x")]).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{kind:?}: {missing}");
        let taken = service.create_topic("orders").await.unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists, "{kind:?}: {taken}");
        let twice = service.subscribe("orders", "all").await.unwrap_err();
        assert_eq!(twice.code(), Code::AlreadyExists, "{kind:?}: {twice}");
        let orphan = service.subscribe("nowhere", "other").await.unwrap_err();
        assert_eq!(orphan.code(), Code::NotFound, "{kind:?}: {orphan}");
        let malformed = service.create_topic("1 x").await.unwrap_err();
        assert_eq!(malformed.code(), Code::InvalidArgument, "{kind:?}: {malformed}");
    }
}

#[tokio::test]
async fn an_empty_message_and_more_than_a_thousand_messages_are_refused() {
    for mut service in services().await {
        for messages in [vec![PubsubMessage::default()], vec![message("", "x"); 1_001]] {
            let refused = service.publish("orders", messages).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{:?}: {refused}", service.kind);
        }
        let most = service.publish("orders", vec![message("", "x"); 1_000]).await.unwrap();
        assert_eq!(most.len(), 1_000, "{:?}", service.kind);
    }
}

#[tokio::test]
async fn a_deleted_topic_is_not_found_any_more() {
    for mut service in services().await {
        let request = proto::DeleteTopicRequest { topic: service.topic("orders") };
        service.publisher.delete_topic(request).await.unwrap();
        let gone = service.publish("orders", vec![message("", "x")]).await.unwrap_err();
        assert_eq!(gone.code(), Code::NotFound, "{:?}: {gone}", service.kind);
    }
}

/// Requests that production refuses and the official emulator accepts, as intended differences.
#[tokio::test]
async fn the_embedded_one_enforces_limits_of_production_that_the_official_emulator_does_not() {
    let long = "x".repeat(1_025);
    let attribute = |name: &str, value: &str| PubsubMessage {
        attributes: [(name.to_owned(), value.to_owned())].into(),
        ..message("", "x")
    };
    let many = PubsubMessage {
        attributes: (0..101).map(|n| (format!("a{n}"), String::new())).collect(),
        ..message("", "x")
    };
    let requests = [
        ("two ordering keys in one request", vec![message("a", "1"), message("b", "2")]),
        ("keyed and unkeyed messages in one request", vec![message("a", "1"), message("", "2")]),
        ("an ordering key over 1,024 bytes", vec![message(&long, "1")]),
        ("an attribute value over 1,024 bytes", vec![attribute("a", &long)]),
        ("an attribute key over 256 bytes", vec![attribute(&long[..257], "1")]),
        ("an attribute key that begins with goog", vec![attribute("goog-x", "1")]),
        ("more than 100 attributes", vec![many]),
    ];
    for mut service in services().await {
        for (what, messages) in &requests {
            let answer = service.publish("orders", messages.clone()).await;
            let code = answer.map(drop).map_err(|status| status.code());
            let expected = match service.kind {
                Kind::Embedded => Err(Code::InvalidArgument),
                Kind::Official => Ok(()),
            };
            assert_eq!(code, expected, "{:?}: {what}", service.kind);
        }
    }
}
