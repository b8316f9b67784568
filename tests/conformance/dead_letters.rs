//! Dead letters: delivery counts, and the forwarding of a message to the dead-letter topic.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::{Code, Status};

use crate::service::{Kind, Service, data, message, services};

/// Creates a subscription with a dead-letter policy.
async fn subscribe(
    service: &mut Service,
    name: &str,
    topic: &str,
    attempts: i32,
) -> Result<(), Status> {
    let policy = proto::DeadLetterPolicy {
        dead_letter_topic: service.topic(topic),
        max_delivery_attempts: attempts,
    };
    let set = |its: &mut proto::Subscription| its.dead_letter_policy = Some(policy);
    service.subscribe_with("orders", name, set).await
}

#[tokio::test]
async fn deliveries_are_counted_where_there_is_a_dead_letter_policy() {
    for mut service in services().await {
        service.create_topic("dead").await.unwrap();
        subscribe(&mut service, "counted", "dead", 5).await.unwrap();
        service.publish("orders", vec![message("k", "1"), message("k", "2")]).await.unwrap();
        for attempt in 1..=4 {
            let received = service.pull("counted", 2).await;
            let attempts: Vec<i32> = received.iter().map(|its| its.delivery_attempt).collect();
            assert_eq!(attempts, [attempt, attempt], "{:?}", service.kind);
            service.give_back("counted", &received).await;
        }
        let uncounted = service.pull("all", 2).await;
        assert!(uncounted.iter().all(|its| its.delivery_attempt == 0), "{:?}", service.kind);
    }
}

#[tokio::test]
async fn a_policy_needs_a_topic_that_exists_and_five_to_a_hundred_attempts() {
    for mut service in services().await {
        let kind = service.kind;
        let missing = subscribe(&mut service, "missing", "nowhere", 5).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{kind:?}: {missing}");
        service.create_topic("dead").await.unwrap();
        for attempts in [4, 101] {
            let refused = subscribe(&mut service, "refused", "dead", attempts).await.unwrap_err();
            assert_eq!(refused.code(), Code::OutOfRange, "{kind:?}: {refused}");
        }
        subscribe(&mut service, "default", "dead", 0).await.unwrap();
    }
}

/// The official emulator fails at forwarding: its Pull ends with UNKNOWN, and the message is lost.
#[tokio::test]
async fn a_message_given_back_five_times_is_forwarded_and_its_key_goes_on() {
    for mut service in services().await {
        if service.kind == Kind::Official {
            continue;
        }
        service.create_topic("dead").await.unwrap();
        service.subscribe("dead", "of-dead").await.unwrap();
        subscribe(&mut service, "counted", "dead", 5).await.unwrap();
        service.publish("orders", vec![message("k", "1"), message("k", "2")]).await.unwrap();
        for _ in 0..5 {
            let received = service.pull("counted", 2).await;
            assert_eq!(data(&received), ["1", "2"]);
            service.give_back("counted", &received[..1]).await;
        }

        let dead = service.pull("of-dead", 1).await.remove(0).message.unwrap();
        assert_eq!((&dead.data[..], dead.ordering_key.as_str()), (&b"1"[..], "k"));
        let attribute = |name: &str| {
            let name = format!("CloudPubSubDeadLetterSource{name}");
            dead.attributes.get(&name).cloned().unwrap_or_default()
        };
        assert_eq!(attribute("DeliveryCount"), "5");
        assert_eq!(attribute("Subscription"), "counted");
        assert_eq!(attribute("SubscriptionProject"), service.project);
        assert!(attribute("TopicPublishTime").ends_with("+00:00"));
        let next = service.pull("counted", 1).await;
        assert_eq!((data(&next), next[0].delivery_attempt), (vec!["2".to_owned()], 6));
    }
}
