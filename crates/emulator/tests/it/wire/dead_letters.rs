//! Dead letters after expired leases. The conformance suite covers the other cases.

use super::support::{SUBSCRIPTION, Server, Stream};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;

#[tokio::test]
async fn a_message_whose_lease_runs_out_too_often_is_forwarded() {
    let server = Server::with_subscription().await;
    let dead = "projects/test/topics/dead";
    server.emulator.create_topic(dead).unwrap();
    let policy =
        proto::DeadLetterPolicy { dead_letter_topic: dead.to_owned(), max_delivery_attempts: 5 };
    let update = proto::UpdateSubscriptionRequest {
        subscription: Some(proto::Subscription {
            name: SUBSCRIPTION.to_owned(),
            dead_letter_policy: Some(policy),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["dead_letter_policy".into()] }),
    };
    server.subscriber().await.update_subscription(update).await.unwrap();
    server.fault("on=delivery,first=5,expire");
    server.publish(&[("k", "1")]).await;

    let received = server.pull(1).await.unwrap();
    assert_eq!(received[0].delivery_attempt, 1);
    let mut stream = Stream::open(&server, 0).await;
    let attempts: Vec<i32> = stream.take(4).await.iter().map(|its| its.delivery_attempt).collect();
    assert_eq!(attempts, [2, 3, 4, 5]);
    assert_eq!(server.emulator.stats().messages_forwarded, 1);
    let letter = server.emulator.published(dead).remove(0);
    assert_eq!((letter.key(), &letter.data()[..]), ("k", &b"1"[..]));
    assert_eq!(letter.attribute("CloudPubSubDeadLetterSourceDeliveryCount"), Some("5"));
    assert_eq!(letter.attribute("event_type"), Some("OrderPaid"));
}
