//! Exactly-once delivery: the confirmations on streams and in the details of errors.

use super::support::{SUBSCRIPTION, Server, Stream, TOPIC, within};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::streaming_pull_response::{AcknowledgeConfirmation, ModifyAckDeadlineConfirmation};
use tonic::{Code, Status};

async fn server() -> Server {
    let server = Server::with_topic().await;
    let subscription = proto::Subscription {
        name: SUBSCRIPTION.to_owned(),
        topic: TOPIC.to_owned(),
        enable_message_ordering: true,
        enable_exactly_once_delivery: true,
        ..Default::default()
    };
    let mut subscriber = server.subscriber().await;
    subscriber.create_subscription(subscription).await.unwrap();
    server
}

/// Returns the next response without messages.
async fn confirmation(stream: &mut Stream) -> proto::StreamingPullResponse {
    loop {
        let reply = within(stream.replies.message()).await.unwrap().expect("the stream is open");
        assert!(reply.subscription_properties.unwrap().exactly_once_delivery_enabled);
        if reply.received_messages.is_empty() {
            return reply;
        }
        stream.received.extend(reply.received_messages);
    }
}

async fn acknowledged(stream: &mut Stream, ids: &[&str]) -> AcknowledgeConfirmation {
    stream.acknowledge(ids).await;
    confirmation(stream).await.acknowledge_confirmation.unwrap()
}

async fn modified(
    stream: &mut Stream,
    seconds: i32,
    ids: &[&str],
) -> ModifyAckDeadlineConfirmation {
    stream.modify(seconds, ids).await;
    confirmation(stream).await.modify_ack_deadline_confirmation.unwrap()
}

/// Returns whether the details of an error contain the service's reason, and this failure of an ack
/// id.
fn says(status: &Status, id: &str, failure: &str) -> bool {
    let field = |number: u8, text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        [&[number << 3 | 2, length], text.as_bytes()].concat()
    };
    let reason = field(1, "EXACTLY_ONCE_ACKID_FAILURE");
    // An entry of a protobuf map.
    let entry = [field(1, id), field(2, failure)].concat();
    let has = |part: &[u8]| status.details().windows(part.len()).any(|bytes| bytes == part);
    has(&reason) && has(&entry)
}

const INVALID: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";

#[tokio::test]
async fn a_stream_confirms_each_ack_id() {
    let server = server().await;
    server.publish(&[("k", "1"), ("k", "2"), ("", "3")]).await;
    let mut stream = Stream::open(&server, 0).await;
    let received = stream.take(3).await;
    let ids: Vec<&str> = received.iter().map(|message| message.ack_id.as_str()).collect();

    let early = acknowledged(&mut stream, &[ids[1], ids[2], "garbage"]).await;
    assert_eq!(early.ack_ids, [ids[2]]);
    assert_eq!(early.unordered_ack_ids, [ids[1]]);
    assert_eq!(early.invalid_ack_ids, ["garbage"]);

    // Within a request the order does not matter.
    let both = acknowledged(&mut stream, &[ids[1], ids[0]]).await;
    assert_eq!(both.ack_ids, [ids[0], ids[1]]);
    let again = acknowledged(&mut stream, &[ids[0]]).await;
    assert_eq!(again.invalid_ack_ids, [ids[0]]);
    assert_eq!(server.emulator.stats().messages_acknowledged, 3);
}

#[tokio::test]
async fn an_ack_id_is_invalid_once_its_message_was_given_back() {
    let server = server().await;
    server.publish(&[("k", "1")]).await;
    let mut stream = Stream::open(&server, 0).await;
    let first = stream.take(1).await.remove(0).ack_id;

    assert_eq!(modified(&mut stream, 0, &[&first]).await.ack_ids, [first.as_str()]);
    let second = stream.take(1).await.remove(0).ack_id;
    assert_eq!(modified(&mut stream, 60, &[&first]).await.invalid_ack_ids, [first.as_str()]);
    assert_eq!(acknowledged(&mut stream, &[&first]).await.invalid_ack_ids, [first.as_str()]);
    assert_eq!(modified(&mut stream, 60, &[&second]).await.ack_ids, [second.as_str()]);
    assert_eq!(acknowledged(&mut stream, &[&second]).await.ack_ids, [second.as_str()]);
}

#[tokio::test]
async fn a_unary_reply_lists_what_failed_in_its_details() {
    let server = server().await;
    server.publish(&[("k", "1"), ("k", "2")]).await;
    let received = server.pull(2).await.unwrap();
    let (first, second) = (&received[0].ack_id, &received[1].ack_id);

    let early = server.acknowledge(&received[1..]).await.unwrap_err();
    assert_eq!(early.code(), Code::InvalidArgument);
    assert!(says(&early, second, "TRANSIENT_FAILURE_UNORDERED_ACK_ID"), "{early:?}");
    server.acknowledge(&received[..1]).await.unwrap();
    let partly = server.acknowledge(&received).await.unwrap_err();
    assert!(says(&partly, first, INVALID) && !says(&partly, second, INVALID), "{partly:?}");
    // The id that is not listed was acknowledged.
    assert_eq!(server.emulator.stats().messages_acknowledged, 2);
    let late = server.modify(&received[1..], 60).await.unwrap_err();
    assert!(says(&late, second, INVALID), "{late:?}");
}

#[tokio::test]
async fn faults_fail_ids_and_lose_acknowledgements_that_were_confirmed() {
    let server = server().await;
    server.publish(&[("k", "1")]).await;
    let mut stream = Stream::open(&server, 0).await;
    let id = stream.take(1).await.remove(0).ack_id;
    server.fault("on=acknowledge,first=1,fail-ids=temporary");
    server.fault("on=acknowledge,first=1,fail-ids=invalid");
    server.fault("on=acknowledge,first=1,lose");
    server.fault("on=modify-ack-deadline,first=1,fail-ids=temporary");

    let ids = [id.as_str()];
    assert_eq!(acknowledged(&mut stream, &ids).await.temporary_failed_ack_ids, ids);
    assert_eq!(acknowledged(&mut stream, &ids).await.invalid_ack_ids, ids);
    assert_eq!(acknowledged(&mut stream, &ids).await.ack_ids, ids);
    assert_eq!(modified(&mut stream, 60, &ids).await.temporary_failed_ack_ids, ids);
    assert_eq!(server.emulator.stats().messages_acknowledged, 0);
    assert_eq!(acknowledged(&mut stream, &ids).await.ack_ids, ids);
    assert_eq!(server.emulator.stats().messages_acknowledged, 1);
}
