//! Exactly-once delivery: the valid acknowledgements, and the error details for all others.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::StreamingPullRequest;
use tonic::{Code, Status};

use crate::service::{Kind, Service, data, message, ours, services};

async fn subscribe(service: &mut Service) {
    let set = |its: &mut proto::Subscription| its.enable_exactly_once_delivery = true;
    service.subscribe_with("orders", "once", set).await.expect("a subscription");
}

/// Reports whether the error details pair this ack id with this kind of failure.
fn says(status: &Status, ack_id: &str, failure: &str) -> bool {
    let text = String::from_utf8_lossy(status.details()).into_owned();
    let length = char::from(u8::try_from(failure.len()).expect("a short text"));
    // A protobuf map entry: the id, the tag and length of the value, and the value.
    text.contains(&format!("{ack_id}\x12{length}{failure}"))
}

const INVALID: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";

#[tokio::test]
async fn messages_of_a_key_are_acknowledged_in_order_and_once() {
    for mut service in services().await {
        let kind = service.kind;
        subscribe(&mut service).await;
        let messages = ["1", "2", "3"].map(|text| message("k", text)).to_vec();
        service.publish("orders", messages).await.unwrap();
        let received = service.pull("once", 3).await;
        let ids: Vec<&str> = received.iter().map(|its| its.ack_id.as_str()).collect();

        let early = service.try_acknowledge("once", &ids[1..2]).await.unwrap_err();
        assert_eq!(early.code(), Code::InvalidArgument, "{kind:?}: {early}");
        assert!(says(&early, ids[1], "TRANSIENT_FAILURE_UNORDERED_ACK_ID"), "{kind:?}: {early:?}");
        service.try_acknowledge("once", &ids[..1]).await.unwrap();
        service.try_acknowledge("once", &ids[1..2]).await.unwrap();
        let again = service.try_acknowledge("once", &ids[..1]).await.unwrap_err();
        assert_eq!(again.code(), Code::InvalidArgument, "{kind:?}: {again}");
        assert!(says(&again, ids[0], INVALID), "{kind:?}: {again:?}");

        // An ack id that the error does not list was acknowledged.
        let partly = service.try_acknowledge("once", &[ids[2], "garbage"]).await.unwrap_err();
        assert!(says(&partly, "garbage", INVALID), "{kind:?}: {partly:?}");
        assert!(!says(&partly, ids[2], INVALID), "{kind:?}: {partly:?}");
        assert_eq!(data(&service.pull_now("once").await), [""; 0], "{kind:?}");
    }
}

#[tokio::test]
async fn an_ack_id_is_invalid_once_its_message_was_given_back() {
    for mut service in services().await {
        let kind = service.kind;
        subscribe(&mut service).await;
        service.publish("orders", vec![message("k", "1")]).await.unwrap();
        let first = service.pull("once", 1).await;
        service.give_back("once", &first).await;
        let second = service.pull("once", 1).await;
        let stale = service.try_acknowledge("once", &[&first[0].ack_id]).await.unwrap_err();
        assert!(says(&stale, &first[0].ack_id, INVALID), "{kind:?}: {stale:?}");
        service.try_acknowledge("once", &[&second[0].ack_id]).await.unwrap();
    }
}

#[tokio::test]
async fn without_it_stale_ack_ids_are_ignored_and_malformed_ones_refused() {
    for mut service in services().await {
        let kind = service.kind;
        service.publish("orders", vec![message("k", "1")]).await.unwrap();
        let received = service.pull("all", 1).await;
        let id = received[0].ack_id.as_str();
        service.try_acknowledge("all", &[id]).await.unwrap();
        service.try_acknowledge("all", &[id]).await.unwrap();
        let malformed = service.try_acknowledge("all", &["garbage"]).await;
        match kind {
            Kind::Embedded => assert_eq!(malformed.unwrap_err().code(), Code::InvalidArgument),
            // The official emulator treats any text as a late acknowledgement.
            Kind::Official => malformed.unwrap(),
        }
    }
}

/// The official emulator (0.8.20) sent no confirmation within minutes, so only the embedded
/// emulator is tested.
#[tokio::test]
async fn a_stream_confirms_acknowledgements() {
    let mut service = ours().await;
    let kind = service.kind;
    subscribe(&mut service).await;
    service.publish("orders", vec![message("k", "1")]).await.unwrap();
    let (requests, mut receiver) = tokio::sync::mpsc::channel(10);
    let first = StreamingPullRequest {
        subscription: service.subscription("once"),
        stream_ack_deadline_seconds: 60,
        ..Default::default()
    };
    requests.send(first).await.unwrap();
    let outbound = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let mut replies = service.subscriber.streaming_pull(outbound).await.unwrap().into_inner();
    let delivered = replies.message().await.unwrap().unwrap();
    let properties = delivered.subscription_properties.unwrap();
    assert!(properties.exactly_once_delivery_enabled, "{kind:?}");

    let id = delivered.received_messages[0].ack_id.clone();
    let ack_ids = vec![id.clone(), "garbage".to_owned()];
    requests.send(StreamingPullRequest { ack_ids, ..Default::default() }).await.unwrap();
    let confirmed = replies.message().await.unwrap().unwrap().acknowledge_confirmation;
    let confirmed = confirmed.unwrap();
    assert_eq!(confirmed.ack_ids, [id], "{kind:?}");
    assert_eq!(confirmed.invalid_ack_ids, ["garbage"], "{kind:?}");
}
