//! Pull and Acknowledge: delivery, order and redelivery.

use std::collections::BTreeMap;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::PubsubMessage;

use crate::service::{data, message, services};

#[tokio::test]
async fn a_message_arrives_as_it_was_published_with_the_id_that_was_answered() {
    for mut service in services().await {
        let attributes = [("event_id", "e-1"), ("empty", ""), ("ümlaut", "ß")];
        let attributes: BTreeMap<String, String> =
            attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let bytes: Vec<u8> = (0..=255).collect();
        let sent = PubsubMessage {
            data: bytes.into(),
            attributes,
            ordering_key: "A 17/ü".to_owned(),
            ..PubsubMessage::default()
        };
        let ids = service.publish("orders", vec![sent.clone()]).await.unwrap();

        let received = service.pull("all", 1).await;
        let got = received[0].message.clone().unwrap();
        assert_eq!(
            (&got.data, &got.attributes),
            (&sent.data, &sent.attributes),
            "{:?}",
            service.kind
        );
        assert_eq!((got.ordering_key, vec![got.message_id]), (sent.ordering_key, ids));
        assert!(got.publish_time.is_some());
    }
}

#[tokio::test]
async fn messages_of_a_key_come_in_the_order_they_were_published() {
    for mut service in services().await {
        for request in 0..20 {
            let (key, first) = (["a", "b"][request % 2], 5 * (request / 2));
            let numbers = first..first + 5;
            let messages = numbers.map(|n| message(key, &format!("{key}-{n:02}"))).collect();
            let ids = service.publish("orders", messages).await.unwrap();
            assert_eq!(ids.len(), 5);
        }
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut count = 0;
        while count < 100 {
            let received = service.pull_once("all", 100).await;
            service.acknowledge("all", &received).await;
            count += received.len();
            data(&received)
                .into_iter()
                .for_each(|text| seen.entry(text[..1].to_owned()).or_default().push(text));
        }
        for (key, texts) in seen {
            let expected: Vec<String> = (0..50).map(|n| format!("{key}-{n:02}")).collect();
            assert_eq!(texts, expected, "{:?}", service.kind);
        }
    }
}

#[tokio::test]
async fn rejected_messages_are_redelivered_in_order_and_acknowledged_ones_are_not() {
    for mut service in services().await {
        let messages = (0..4).map(|n| message("a", &n.to_string())).collect();
        service.publish("orders", messages).await.unwrap();
        let first = service.pull("all", 4).await;
        assert_eq!(data(&first), ["0", "1", "2", "3"], "{:?}", service.kind);
        service.give_back("all", &first).await;

        let again = service.pull("all", 4).await;
        assert_eq!(data(&again), ["0", "1", "2", "3"], "{:?}", service.kind);
        service.acknowledge("all", &again).await;

        // The next pull returns only new messages.
        service.publish("orders", vec![message("a", "4")]).await.unwrap();
        assert_eq!(data(&service.pull("all", 1).await), ["4"], "{:?}", service.kind);
    }
}

#[tokio::test]
async fn each_subscription_gets_what_was_published_after_its_creation() {
    for mut service in services().await {
        service.publish("orders", vec![message("", "before")]).await.unwrap();
        service.subscribe("orders", "late").await.unwrap();
        service.publish("orders", vec![message("", "after")]).await.unwrap();

        assert_eq!(data(&service.pull("late", 1).await), ["after"], "{:?}", service.kind);
        let mut all = data(&service.pull("all", 2).await);
        all.sort();
        assert_eq!(all, ["after", "before"], "{:?}", service.kind);
    }
}
