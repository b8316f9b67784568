//! Faults on the operations of consumers: pull, delivery, acknowledgement, deadline changes.

use std::time::Duration;

use super::support::{SUBSCRIPTION, Server, Stream, TOPIC, payloads, within};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tokio::task::JoinSet;
use tonic::Code;
use walrelay_emulator::{Ordering, SubscriptionOptions};

/// Starts a server with a subscription whose leases end soon.
async fn with_short_leases() -> Server {
    let server = Server::with_topic().await;
    let ack_deadline = Duration::from_millis(50);
    let options = SubscriptionOptions { ack_deadline, ordering: Ordering::PerKey };
    server.emulator.create_subscription(SUBSCRIPTION, TOPIC, options).unwrap();
    server
}

#[tokio::test]
async fn a_rejected_pull_leases_nothing() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1")]).await;
    server.fault("on=pull,subscription=orders.all,first=1,reject=UNAVAILABLE");
    server.fault("on=pull,subscription=other,reject=INTERNAL");

    assert_eq!(server.pull(1).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(payloads(&server.pull(1).await.unwrap()), ["1"]);
    assert_eq!(server.emulator.stats().messages_delivered, 1);
}

#[tokio::test]
async fn a_stream_is_refused_or_kept_waiting_when_it_is_opened() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1")]).await;
    server.fault("on=streaming-pull,first=1,reject=UNAVAILABLE");
    server.fault("on=streaming-pull,hold-before");
    assert_eq!(Stream::try_open(&server, 0).await.err(), Some(Code::Unavailable));

    let emulator = server.emulator.clone();
    let release = async {
        within(emulator.wait_until(|emulator| emulator.stats().held == 1)).await;
        assert_eq!(emulator.stats().messages_delivered, 0);
        emulator.release();
    };
    let (mut stream, ()) = tokio::join!(Stream::open(&server, 0), release);
    assert_eq!(stream.next(1).await, ["1"]);
}

#[tokio::test]
async fn a_stream_that_a_delivery_breaks_leaves_the_messages_to_the_next_one() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1"), ("other", "2")]).await;
    server.fault("on=delivery,key=k,first=1,reject=UNAVAILABLE");

    let mut broken = Stream::open(&server, 0).await;
    assert_eq!(broken.end().await, Err(Code::Unavailable));
    assert_eq!(broken.received.len(), 0);
    let mut next = Stream::open(&server, 0).await;
    let mut both = next.next(2).await;
    both.sort();
    assert_eq!(both, ["1", "2"]);
}

#[tokio::test]
async fn a_stream_may_break_behind_its_messages() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1")]).await;
    server.fault("on=delivery,first=1,fail-after=INTERNAL");

    let mut broken = Stream::open(&server, 0).await;
    assert_eq!(broken.end().await, Err(Code::Internal));
    let received = std::mem::take(&mut broken.received);
    assert_eq!(payloads(&received), ["1"]);
    // The lease outlives the stream, so a request can acknowledge the message.
    server.acknowledge(&received).await.unwrap();
    assert_eq!(server.emulator.stats().messages_acknowledged, 1);
}

#[tokio::test]
async fn a_lost_delivery_comes_again_when_its_lease_has_ended() {
    let server = with_short_leases().await;
    server.publish(&[("k", "1")]).await;
    server.fault("on=delivery,first=1,black-hole");

    // A stream without its own deadline uses the subscription's.
    let first =
        proto::StreamingPullRequest { subscription: SUBSCRIPTION.to_owned(), ..Default::default() };
    let mut stream = Stream::from(&server, first).await.unwrap();
    assert_eq!(stream.next(1).await, ["1"]);
    assert_eq!(server.emulator.stats().messages_delivered, 2);
}

#[tokio::test]
async fn an_expired_delivery_comes_twice_with_all_that_follows_it() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1"), ("k", "2"), ("k", "3")]).await;
    server.fault("on=delivery,first=1,expire");

    let mut stream = Stream::open(&server, 0).await;
    let twice = stream.take(6).await;
    assert_eq!(payloads(&twice), ["1", "2", "3", "1", "2", "3"]);
    // The first ack ids are no longer valid.
    server.acknowledge(&twice[..3]).await.unwrap();
    assert_eq!(server.emulator.stats().messages_acknowledged, 0);
    server.acknowledge(&twice[3..]).await.unwrap();
    assert_eq!(server.emulator.stats().messages_acknowledged, 3);
}

#[tokio::test]
async fn what_comes_later_does_not_overtake_a_held_delivery() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 0).await;
    server.fault("on=delivery,first=1,hold");
    server.publish(&[("k", "1")]).await;
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 1)).await;
    server.publish(&[("k", "2"), ("k", "3")]).await;
    // The message is already leased, so no other consumer gets it.
    assert_eq!(server.emulator.stats().messages_delivered, 1);

    server.emulator.release();
    assert_eq!(stream.next(3).await, ["1", "2", "3"]);
}

#[tokio::test]
async fn a_delivery_kept_back_is_leased_when_it_is_released() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 0).await;
    server.fault("on=delivery,attr.event_type=OrderPaid,first=1,hold-before");
    server.publish(&[("k", "1")]).await;
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 1)).await;
    assert_eq!(server.emulator.stats().messages_delivered, 0);

    server.emulator.clear_faults();
    assert_eq!(stream.next(1).await, ["1"]);
}

#[tokio::test]
async fn acknowledgements_go_on_while_a_delivery_is_held() {
    let server = Server::with_subscription().await;
    let mut stream = Stream::open(&server, 0).await;
    server.publish(&[("k", "1")]).await;
    let first = stream.take(1).await;
    server.fault("on=delivery,hold");
    server.publish(&[("k", "2")]).await;
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 1)).await;

    stream.acknowledge(&[&first[0].ack_id]).await;
    let is_acknowledged = |e: &walrelay_emulator::Emulator| e.stats().messages_acknowledged == 1;
    within(server.emulator.wait_until(is_acknowledged)).await;
}

#[tokio::test]
async fn a_lost_acknowledgement_looks_like_one_and_the_message_comes_again() {
    let server = with_short_leases().await;
    server.publish(&[("k", "1")]).await;
    server.fault("on=acknowledge,first=1,lose");

    let first = server.pull(1).await.unwrap();
    server.acknowledge(&first).await.unwrap();
    let again = server.pull(1).await.unwrap();
    assert_eq!(payloads(&again), ["1"]);
}

#[tokio::test]
async fn an_acknowledgement_whose_reply_is_lost_counts() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1"), ("k", "2")]).await;
    server.fault("on=acknowledge,key=k,first=1,fail-after=DEADLINE_EXCEEDED");
    server.fault("on=acknowledge,reject=UNAVAILABLE");

    let received = server.pull(2).await.unwrap();
    let lost = server.acknowledge(&received[..1]).await.unwrap_err();
    assert_eq!(lost.code(), Code::DeadlineExceeded);
    assert_eq!(server.emulator.stats().messages_acknowledged, 1);
    let rejected = server.acknowledge(&received[1..]).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    assert_eq!(server.emulator.stats().messages_acknowledged, 1);
}

#[tokio::test]
async fn an_acknowledgement_on_a_stream_is_lost_in_a_black_hole_and_a_rejected_one_ends_it() {
    let server = Server::with_subscription().await;
    server.publish(&[("a", "1"), ("b", "2")]).await;
    server.fault("on=acknowledge,key=a,first=1,black-hole");
    server.fault("on=acknowledge,key=b,first=1,reject=ABORTED");
    let mut stream = Stream::open(&server, 0).await;
    let received = stream.take(2).await;

    // The fault swallows the first acknowledgement, and the stream continues to read.
    stream.acknowledge(&[&received[0].ack_id]).await;
    stream.acknowledge(&[&received[1].ack_id]).await;
    assert_eq!(stream.end().await, Err(Code::Aborted));
    assert_eq!(server.emulator.stats().messages_acknowledged, 0);
}

#[tokio::test]
async fn a_held_acknowledgement_keeps_the_order_of_a_stream() {
    let server = Server::with_subscription().await;
    server.publish(&[("a", "1"), ("b", "2")]).await;
    server.fault("on=acknowledge,key=a,hold-before");
    let mut stream = Stream::open(&server, 0).await;
    let received = stream.take(2).await;
    stream.acknowledge(&[&received[0].ack_id]).await;
    stream.acknowledge(&[&received[1].ack_id]).await;
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 1)).await;
    // Messages still arrive.
    server.publish(&[("c", "3")]).await;
    assert_eq!(stream.next(1).await, ["3"]);
    assert_eq!(server.emulator.stats().messages_acknowledged, 0);

    server.emulator.release();
    let are_acknowledged = |e: &walrelay_emulator::Emulator| e.stats().messages_acknowledged == 2;
    within(server.emulator.wait_until(are_acknowledged)).await;
}

#[tokio::test]
async fn a_change_of_deadlines_may_fail_and_be_lost() {
    let server = Server::with_subscription().await;
    server.publish(&[("k", "1")]).await;
    let first = server.pull(1).await.unwrap();
    server.fault("on=modify-ack-deadline,first=1,reject=UNAVAILABLE");
    server.fault("on=modify-ack-deadline,first=1,lose");

    assert_eq!(server.modify(&first, 0).await.unwrap_err().code(), Code::Unavailable);
    // The second nack appears to succeed and has no effect. The third nack works.
    server.modify(&first, 0).await.unwrap();
    server.modify(&first, 0).await.unwrap();
    let again = server.pull(1).await.unwrap();
    assert_eq!(payloads(&again), ["1"]);
    assert_eq!(server.emulator.stats().messages_delivered, 2);
}

#[tokio::test]
async fn a_pull_in_a_black_hole_ends_when_the_client_gives_up() {
    let server = Server::with_subscription().await;
    server.fault("on=pull,black-hole");
    let mut pulls = JoinSet::new();
    let mut subscriber = server.subscriber().await;
    pulls.spawn(async move {
        let pull = proto::PullRequest {
            subscription: SUBSCRIPTION.to_owned(),
            max_messages: 1,
            ..Default::default()
        };
        tokio::time::timeout(Duration::from_millis(50), subscriber.pull(pull)).await
    });
    within(pulls.join_next()).await.unwrap().unwrap().unwrap_err();

    server.emulator.clear_faults();
    server.publish(&[("k", "1")]).await;
    assert_eq!(payloads(&server.pull(1).await.unwrap()), ["1"]);
}
