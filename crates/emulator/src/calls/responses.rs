//! Encodes Publish and pull responses from the stored bytes, without building messages first.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{BufMut, BytesMut};
use walrelay_protobuf::{field_len, put_field, put_header, put_varint};

use crate::store::queue::Delivery;
use crate::wire::decimal::Decimal;
use crate::wire::grpc::FRAME_HEADER_BYTES;

/// Encodes a `PublishResponse` with ids from `first` on, with space for the frame header in front.
pub(crate) fn encode_publish_response(first: u64, count: usize) -> BytesMut {
    let mut buffer = BytesMut::with_capacity(FRAME_HEADER_BYTES + count * 22);
    buffer.put_bytes(0, FRAME_HEADER_BYTES);
    for id in (first..).take(count) {
        put_field(&mut buffer, 1, Decimal::of(id).as_bytes());
    }
    buffer
}

/// Encodes `received_messages` of a `PullResponse` or `StreamingPullResponse` (field 1 of both),
/// with space for the frame header in front.
///
/// ```text
/// ReceivedMessage { 1: ack_id, 2: PubsubMessage { client's bytes, 3: message_id, 4: publish_time },
///                   3: delivery_attempt }
/// ```
///
/// The last value of a field wins, so the appended id and time replace values that a client may
/// have set.
pub(crate) fn encode_received(deliveries: &[Delivery]) -> BytesMut {
    let estimate: usize = deliveries.iter().map(|d| d.message.body().len() + 96).sum();
    let mut buffer = BytesMut::with_capacity(FRAME_HEADER_BYTES + estimate);
    buffer.put_bytes(0, FRAME_HEADER_BYTES);
    for delivery in deliveries {
        let message = &delivery.message;
        let body = message.body();
        let ack_id = Decimal::of(delivery.ack_id);
        let id = Decimal::of(message.id());
        let time = encode_timestamp(message.publish_time());
        let body_len = body.len() + field_len(id.as_bytes().len()) + field_len(time.len());
        let mut attempt = BytesMut::with_capacity(6);
        put_varint(&mut attempt, u64::from(delivery.attempt));
        let received_len =
            field_len(ack_id.as_bytes().len()) + field_len(body_len) + 1 + attempt.len();
        put_header(&mut buffer, 1, received_len);
        put_field(&mut buffer, 1, ack_id.as_bytes());
        put_header(&mut buffer, 2, body_len);
        buffer.put_slice(body);
        put_field(&mut buffer, 3, id.as_bytes());
        put_field(&mut buffer, 4, &time);
        buffer.put_u8(3 << 3);
        buffer.put_slice(&attempt);
    }
    buffer
}

/// Encodes a `google.protobuf.Timestamp`. Both fields are always written. The timestamp is merged
/// with the client's value, and an absent field would keep that value.
fn encode_timestamp(time: SystemTime) -> BytesMut {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut buffer = BytesMut::with_capacity(16);
    buffer.put_u8(1 << 3);
    put_varint(&mut buffer, since.as_secs());
    buffer.put_u8(2 << 3);
    put_varint(&mut buffer, u64::from(since.subsec_nanos()));
    buffer
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
    use prost::Message as _;

    use super::*;
    use crate::store::message::StoredMessage;

    #[test]
    fn what_is_delivered_is_what_was_sent_with_our_id_and_time() {
        // Given a client that sets fields reserved for the service.
        let sent = proto::PubsubMessage {
            data: Bytes::from_static(b"{}"),
            attributes: [("event_id".to_owned(), "7".to_owned())].into(),
            message_id: "made up".to_owned(),
            publish_time: Some(prost_types::Timestamp { seconds: 1, nanos: 999 }),
            ordering_key: "A-17".to_owned(),
        };
        let time = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let key = Bytes::from_static(b"A-17");
        let message = StoredMessage::new(42, time, key, sent.encode_to_vec().into());
        assert_eq!(message.attribute("event_id"), Some("7"));
        assert_eq!(message.data(), "{}");

        // When it is delivered for the second time.
        let encoded = encode_received(&[Delivery { ack_id: 300, attempt: 2, message }]);

        // Then the service's values win.
        let response = proto::PullResponse::decode(&encoded[FRAME_HEADER_BYTES..]).unwrap();
        let received = &response.received_messages[0];
        assert_eq!((received.ack_id.as_str(), received.delivery_attempt), ("300", 2));
        let expected = proto::PubsubMessage {
            message_id: "42".to_owned(),
            publish_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            ..sent
        };
        assert_eq!(received.message.as_ref(), Some(&expected));
    }

    #[test]
    fn publish_answers_with_ascending_ids() {
        let encoded = encode_publish_response(99, 3);
        let response = proto::PublishResponse::decode(&encoded[FRAME_HEADER_BYTES..]).unwrap();
        assert_eq!(response.message_ids, ["99", "100", "101"]);
    }
}
