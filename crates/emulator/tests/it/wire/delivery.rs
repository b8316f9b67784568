//! Topics, subscriptions and delivery over real gRPC with a raw client.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::subscriber_client::SubscriberClient;
use tonic::Code;
use walrelay_emulator::{Ordering, SubscriptionOptions};

use super::support::{SUBSCRIPTION, Server, Stream, TOPIC, message, payload, request, within};

#[tokio::test]
async fn topics_and_subscriptions_are_created_listed_changed_and_deleted() {
    let server = Server::start().await;
    let mut publisher = server.publisher().await;
    let mut subscriber = server.subscriber().await;

    for name in ["bbb", "aaa", "ccc"] {
        let name = format!("projects/test/topics/{name}");
        let topic = proto::Topic { name, ..Default::default() };
        publisher.create_topic(topic.clone()).await.unwrap();
        let again = publisher.create_topic(topic).await.unwrap_err();
        assert_eq!(again.code(), Code::AlreadyExists);
    }
    let mut listing = proto::ListTopicsRequest {
        project: "projects/test".to_owned(),
        page_size: 2,
        ..Default::default()
    };
    let page = publisher.list_topics(listing.clone()).await.unwrap().into_inner();
    let names: Vec<_> = page.topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["projects/test/topics/aaa", "projects/test/topics/bbb"]);
    listing.page_token = page.next_page_token;
    let last = publisher.list_topics(listing).await.unwrap().into_inner();
    assert_eq!((last.topics.len(), last.next_page_token.as_str()), (1, ""));

    let subscription = proto::Subscription {
        name: SUBSCRIPTION.to_owned(),
        topic: "projects/test/topics/aaa".to_owned(),
        enable_message_ordering: true,
        ..Default::default()
    };
    let filtered = proto::Subscription { filter: "x".to_owned(), ..subscription.clone() };
    let status = subscriber.create_subscription(filtered).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let made = subscriber.create_subscription(subscription.clone()).await.unwrap().into_inner();
    assert_eq!(made.ack_deadline_seconds, 10);

    let update = proto::UpdateSubscriptionRequest {
        subscription: Some(proto::Subscription { ack_deadline_seconds: 33, ..subscription }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["ack_deadline_seconds".into()] }),
    };
    let updated = subscriber.update_subscription(update).await.unwrap().into_inner();
    assert_eq!((updated.ack_deadline_seconds, updated.enable_message_ordering), (33, true));

    let topic = proto::DeleteTopicRequest { topic: "projects/test/topics/aaa".to_owned() };
    publisher.delete_topic(topic).await.unwrap();
    let get = proto::GetSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() };
    let orphan = subscriber.get_subscription(get.clone()).await.unwrap().into_inner();
    assert_eq!(orphan.topic, "_deleted-topic_");
    let delete = proto::DeleteSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() };
    subscriber.delete_subscription(delete).await.unwrap();
    let gone = subscriber.get_subscription(get).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test]
async fn a_subscription_gets_what_is_published_after_its_creation() {
    let server = Server::with_topic().await;
    let mut publisher = server.publisher().await;
    publisher.publish(request(vec![message("before", "")])).await.unwrap();
    let options = SubscriptionOptions::default();
    server.emulator.create_subscription(SUBSCRIPTION, TOPIC, options).unwrap();
    publisher.publish(request(vec![message("after", "k")])).await.unwrap();

    let mut subscriber = server.subscriber().await;
    let pull = proto::PullRequest {
        subscription: SUBSCRIPTION.to_owned(),
        max_messages: 10,
        ..Default::default()
    };
    let pulled = subscriber.pull(pull).await.unwrap().into_inner().received_messages;

    assert_eq!(pulled.iter().map(payload).collect::<Vec<_>>(), ["after"]);
    // Delivery attempts are counted only with a dead-letter policy, as in production.
    assert_eq!(pulled[0].delivery_attempt, 0);
    let delivered = pulled[0].message.as_ref().unwrap();
    assert_eq!((delivered.message_id.as_str(), delivered.ordering_key.as_str()), ("2", "k"));
    assert!(delivered.publish_time.unwrap().seconds > 0);
}

#[tokio::test]
async fn a_stream_delivers_in_order_as_it_is_published() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 0).await;
    let mut publisher = server.publisher().await;
    let mut expected = Vec::new();
    for number in 0..50 {
        let data = number.to_string();
        publisher.publish(request(vec![message(&data, "k")])).await.unwrap();
        expected.push(data);
    }
    assert_eq!(stream.next(50).await, expected);
}

#[tokio::test]
async fn a_message_given_back_comes_again_with_all_later_ones_of_its_key() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 0).await;
    let mut publisher = server.publisher().await;
    let batch = ["1", "2", "3"].map(|data| message(data, "k")).to_vec();
    publisher.publish(request(batch)).await.unwrap();
    assert_eq!(stream.next(3).await, ["1", "2", "3"]);

    // Ack ids count from 1.
    stream.modify(0, &["2"]).await;
    assert_eq!(stream.next(2).await, ["2", "3"]);
    stream.acknowledge(&["1", "4", "5"]).await;
    publisher.publish(request(vec![message("4", "k")])).await.unwrap();
    assert_eq!(stream.next(1).await, ["4"]);
}

#[tokio::test]
async fn a_stream_gets_no_more_than_it_asked_for() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 2).await;
    let mut publisher = server.publisher().await;
    let batch = (0..5).map(|number| message(&number.to_string(), "")).collect();
    publisher.publish(request(batch)).await.unwrap();

    assert_eq!(stream.next(2).await, ["0", "1"]);
    stream.acknowledge(&["1"]).await;
    assert_eq!(stream.next(1).await, ["2"]);
    assert_eq!(stream.received.len(), 0);
    stream.acknowledge(&["2", "3"]).await;
    assert_eq!(stream.next(2).await, ["3", "4"]);
}

#[tokio::test]
async fn a_second_stream_gets_a_key_when_the_first_has_acknowledged_it() {
    let server = Server::with_subscription().await;
    let mut first = Stream::open(&server, 1).await;
    let mut publisher = server.publisher().await;
    let batch = ["1", "2"].map(|data| message(data, "k")).to_vec();
    publisher.publish(request(batch)).await.unwrap();
    assert_eq!(first.next(1).await, ["1"]);

    let mut second = Stream::open(&server, 0).await;
    publisher.publish(request(vec![message("other", "o")])).await.unwrap();
    assert_eq!(second.next(1).await, ["other"]);

    // The first stream ends without taking "2". The key is free once "1" is acknowledged.
    drop(first.requests);
    while within(first.replies.message()).await.unwrap().is_some() {}
    second.acknowledge(&["1"]).await;
    assert_eq!(second.next(1).await, ["2"]);
}

async fn stream_of(server: &Server, client_id: &str, outstanding: i64) -> Stream {
    let first = proto::StreamingPullRequest {
        subscription: SUBSCRIPTION.to_owned(),
        stream_ack_deadline_seconds: 60,
        client_id: client_id.to_owned(),
        max_outstanding_messages: outstanding,
        ..Default::default()
    };
    Stream::from(server, first).await.unwrap()
}

#[tokio::test]
async fn a_client_that_comes_back_has_its_keys_and_what_it_holds_counts() {
    let server = Server::with_subscription().await;
    let mut first = stream_of(&server, "one", 2).await;
    server.publish(&[("k", "1")]).await;
    let held = first.take(1).await;
    first.close().await;

    // Another client does not get the key. The same client continues with the key.
    let mut other = stream_of(&server, "two", 0).await;
    let mut again = stream_of(&server, "one", 2).await;
    server.publish(&[("k", "2"), ("k", "3"), ("other", "4")]).await;
    assert_eq!(again.next(1).await, ["2"]);
    assert_eq!(other.next(1).await, ["4"]);
    assert_eq!(server.emulator.stats().messages_delivered, 3);
    server.acknowledge(&held).await.unwrap();
    assert_eq!(again.next(1).await, ["3"]);
}

/// Current official clients reopen a stream that leaves a ping unanswered.
#[tokio::test]
async fn an_empty_request_is_answered_at_once_also_while_a_delivery_is_held() {
    let server = Server::with_subscription().await;
    server.fault("on=delivery,hold");
    let mut stream = Stream::open(&server, 0).await;
    server.publish(&[("k", "held")]).await;
    for _ in 0..3 {
        stream.requests.send(proto::StreamingPullRequest::default()).await.unwrap();
        let answer = within(stream.replies.message()).await.unwrap().expect("the stream is open");
        assert_eq!(answer.received_messages, []);
        assert!(answer.subscription_properties.unwrap().message_ordering_enabled);
    }
}

#[tokio::test]
async fn a_stream_may_change_its_deadline() {
    let server = Server::with_subscription().await;
    let stream = stream_of(&server, "", 0).await;
    let change = |seconds| proto::StreamingPullRequest {
        stream_ack_deadline_seconds: seconds,
        ..Default::default()
    };
    stream.requests.send(change(10)).await.unwrap();
    stream.requests.send(change(5)).await.unwrap();
    let mut stream = stream;
    assert_eq!(stream.end().await, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn a_lease_that_runs_out_is_delivered_again() {
    let server = Server::with_topic().await;
    let options = SubscriptionOptions {
        ack_deadline: std::time::Duration::from_millis(50),
        ordering: Ordering::PerKey,
    };
    server.emulator.create_subscription(SUBSCRIPTION, TOPIC, options).unwrap();
    let mut publisher = server.publisher().await;
    publisher.publish(request(vec![message("a", "k")])).await.unwrap();
    let mut subscriber = server.subscriber().await;
    let pull = proto::PullRequest {
        subscription: SUBSCRIPTION.to_owned(),
        max_messages: 1,
        ..Default::default()
    };
    for _ in 0..3 {
        let pulled = within(subscriber.pull(pull.clone())).await.unwrap().into_inner();
        assert_eq!(pulled.received_messages.iter().map(payload).collect::<Vec<_>>(), ["a"]);
    }
}

#[tokio::test]
async fn deleting_a_subscription_ends_its_streams() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 0).await;
    let delete = proto::DeleteSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() };
    server.subscriber().await.delete_subscription(delete).await.unwrap();
    let status = within(stream.replies.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn a_backlog_larger_than_any_window_is_delivered_whole() {
    let server = Server::with_subscription().await;
    let mut publisher = server.publisher().await;
    for number in 0..40 {
        let data = format!("{number:02}{}", "x".repeat(500_000));
        publisher.publish(request(vec![message(&data, "k")])).await.unwrap();
    }
    let mut stream = Stream::open(&server, 0).await;
    let numbers: Vec<String> =
        stream.next(40).await.into_iter().map(|data| data[..2].to_owned()).collect();
    let expected: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test]
async fn what_is_not_implemented_says_so() {
    let server = Server::with_subscription().await;
    let detach = proto::DetachSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() };
    let status = server.publisher().await.detach_subscription(detach).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("DetachSubscription"), "{status}");
}

#[tokio::test]
async fn a_cancelled_pull_takes_no_message_that_is_published_afterwards() {
    let server = Server::with_subscription().await;
    let channel = server.channel().await;
    let mut subscriber = SubscriberClient::new(channel.clone());
    let mut publisher = PublisherClient::new(channel);
    let pull = proto::PullRequest {
        subscription: SUBSCRIPTION.to_owned(),
        max_messages: 10,
        ..Default::default()
    };
    for number in 0..20 {
        let mut waiting = Box::pin(subscriber.pull(pull.clone()));
        // The calls share one connection, so the Pull has arrived when this reply arrives.
        let get = proto::GetTopicRequest { topic: TOPIC.to_owned() };
        let arrived = within(async {
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("there is no message to pull"),
                topic = publisher.get_topic(get) => topic,
            }
        });
        arrived.await.unwrap();
        drop(waiting);

        let data = number.to_string();
        publisher.publish(request(vec![message(&data, "k")])).await.unwrap();
        let received = server.pull_now().await;
        assert_eq!(received.iter().map(payload).collect::<Vec<_>>(), [data]);
        server.acknowledge(&received).await.unwrap();
    }
}
