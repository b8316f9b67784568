//! The official Rust client against the emulator: administration, ordered publishing, streaming
//! pull.

use std::collections::BTreeSet;

use super::support::{SUBSCRIPTION, Server, TOPIC, within};
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{Publisher, Subscriber, SubscriptionAdmin, TopicAdmin};
use google_cloud_pubsub::model::Message;
use google_cloud_pubsub::subscriber::handler::Handler;

#[tokio::test]
async fn the_official_client_publishes_and_receives_in_order_and_again_after_a_nack() {
    // The client is built without a TLS provider, and uses the process's provider.
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = Server::start().await;
    let credentials = anonymous::Builder::new().build();

    let topics = TopicAdmin::builder()
        .with_endpoint(server.url())
        .with_credentials(credentials.clone())
        .build()
        .await
        .unwrap();
    topics.create_topic().set_name(TOPIC).send().await.unwrap();
    let subscriptions = administration(&server).await;
    let create = subscriptions.create_subscription().set_name(SUBSCRIPTION).set_topic(TOPIC);
    create.set_enable_message_ordering(true).send().await.unwrap();

    let publisher = Publisher::builder(TOPIC)
        .with_endpoint(server.url())
        .with_credentials(credentials)
        .build()
        .await
        .unwrap();
    let mut replies = Vec::new();
    for number in 0..300 {
        let message = Message::new()
            .set_data(number.to_string())
            .set_ordering_key(format!("key-{}", number % 3))
            .set_attributes([("event_type", "OrderPaid")]);
        replies.push(publisher.publish(message));
    }
    for reply in replies {
        within(reply).await.unwrap();
    }
    assert_eq!(server.emulator.stats().in_flight_per_key_max, 1);

    let mut stream = subscriber(&server).await.subscribe(SUBSCRIPTION).build();
    let mut received: [Vec<u32>; 3] = Default::default();
    let mut distinct = BTreeSet::new();
    let mut nacked = false;
    while distinct.len() < 300 {
        let (message, handler) = within(stream.next()).await.unwrap().unwrap();
        let number: u32 = std::str::from_utf8(&message.data).unwrap().parse().unwrap();
        if number == 150 && !nacked {
            // 150 and all later messages of its key have to be redelivered.
            nacked = true;
            handler.nack();
            continue;
        }
        distinct.insert(number);
        received[usize::try_from(number % 3).unwrap()].push(number);
        handler.ack();
    }

    // A redelivery steps back within a key. Otherwise every number follows its predecessor.
    let follows = |pair: &[u32]| pair[1] <= pair[0] + 3 || pair == [147, 153];
    assert!(received[0].windows(2).all(follows), "{:?}", received[0]);
    for key in [1, 2] {
        let all: Vec<u32> = (0..300).filter(|number| number % 3 == key).collect();
        assert_eq!(received[usize::try_from(key).unwrap()], all);
    }
}

#[tokio::test]
async fn the_official_client_retries_what_failed_for_now_and_reports_what_is_invalid() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = Server::with_topic().await;
    let subscriptions = administration(&server).await;
    let create = subscriptions.create_subscription().set_name(SUBSCRIPTION).set_topic(TOPIC);
    create.set_enable_exactly_once_delivery(true).send().await.unwrap();
    server.fault("on=acknowledge,key=retried,first=1,fail-ids=temporary");
    server.fault("on=acknowledge,key=refused,fail-ids=invalid");
    server.publish(&[("retried", "1"), ("refused", "2")]).await;

    let mut stream = subscriber(&server).await.subscribe(SUBSCRIPTION).build();
    let mut confirmed = Vec::new();
    for _ in 0..2 {
        let (message, handler) = within(stream.next()).await.unwrap().unwrap();
        let Handler::ExactlyOnce(handler) = handler else { panic!("it was told") };
        let is_confirmed = within(handler.confirmed_ack()).await.is_ok();
        confirmed.push((message.ordering_key, is_confirmed));
    }
    confirmed.sort();
    assert_eq!(confirmed, [("refused".to_owned(), false), ("retried".to_owned(), true)]);
}

async fn administration(server: &Server) -> SubscriptionAdmin {
    SubscriptionAdmin::builder()
        .with_endpoint(server.url())
        .with_credentials(anonymous::Builder::new().build())
        .build()
        .await
        .unwrap()
}

async fn subscriber(server: &Server) -> Subscriber {
    Subscriber::builder()
        .with_endpoint(server.url())
        .with_credentials(anonymous::Builder::new().build())
        .build()
        .await
        .unwrap()
}
