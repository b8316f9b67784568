//! StreamingPull: how streams share a subscription.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::StreamingPullRequest;
use tokio::task::JoinSet;
use walrelay_testkit::wait_until;
use walrelay_tests::DEADLINE;

use crate::service::{Service, message, services};

const KEYS: usize = 40;
const ROUNDS: usize = 50;

/// The messages that each stream received: number of the stream, key, data.
type Given = Arc<Mutex<Vec<(usize, String, String)>>>;

/// Runs a client that acknowledges every response until the test ends. The official emulator
/// replies to the call itself only when a message is available.
async fn drain(mut service: Service, number: usize, given: Given) {
    let (requests, mut receiver) = tokio::sync::mpsc::channel(100);
    let first = StreamingPullRequest {
        subscription: service.subscription("all"),
        client_id: format!("client-{number}"),
        stream_ack_deadline_seconds: 60,
        max_outstanding_messages: 100,
        ..Default::default()
    };
    requests.send(first).await.expect("the stream takes its first request");
    let outbound = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let replies = service.subscriber.streaming_pull(outbound).await;
    let mut replies = replies.expect("a stream").into_inner();
    while let Ok(Some(response)) = replies.message().await {
        let received = response.received_messages;
        let ack_ids = received.iter().map(|its| its.ack_id.clone()).collect();
        let messages = received
            .into_iter()
            .filter_map(|its| its.message)
            .map(|its| (number, its.ordering_key, String::from_utf8_lossy(&its.data).into_owned()));
        given.lock().expect("a sound lock").extend(messages);
        let acknowledged = StreamingPullRequest { ack_ids, ..Default::default() };
        requests.send(acknowledged).await.expect("the stream is open");
    }
}

/// Each stream receives at least a fifth of the messages, from either emulator.
#[tokio::test]
async fn two_streams_share_the_keys_and_no_order_breaks() {
    for mut service in services().await {
        let given = Given::default();
        let mut clients = JoinSet::new();
        for number in [1, 2] {
            clients.spawn(drain(service.another().await, number, Arc::clone(&given)));
        }
        for number in 0..KEYS * ROUNDS {
            let (key, round) = (number % KEYS, number / KEYS);
            let message = message(&format!("key-{key}"), &format!("{round:03}"));
            service.publish("orders", vec![message]).await.unwrap();
        }
        wait_until(DEADLINE, "the backlog to be drained", async || {
            (given.lock().unwrap().len() >= KEYS * ROUNDS).then_some(())
        })
        .await;

        let kind = service.kind;
        let given = given.lock().unwrap();
        let mut of_keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (_, key, data) in given.iter() {
            of_keys.entry(key).or_default().push(data);
        }
        assert!(of_keys.values().all(|data| data.is_sorted()), "{kind:?}: {of_keys:?}");
        let of_second = given.iter().filter(|(number, ..)| *number == 2).count();
        assert!((400..=1600).contains(&of_second), "{kind:?}: {of_second} of 2000");
    }
}
