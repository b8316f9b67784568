//! The bytes of a Publish call.
//!
//! ```text
//! request   0x00 compressed? no │ u32 length │ 0x0A topic │ 0x12 message │ 0x12 message …
//! response  0x00                │ u32 length │ 0x0A message id │ 0x0A message id …
//! ```
//!
//! Source: the gRPC over HTTP/2 protocol, and google/pubsub/v1/pubsub.proto.

use bytes::{BufMut, Bytes, BytesMut};
use walrelay_core::Message;
use walrelay_protobuf::{Fields, Value, field_len, put_field};

/// The size of the compression flag and the length before every gRPC message.
const PREFIX_LEN: usize = 5;
/// `PublishRequest.topic`.
const REQUEST_TOPIC: u8 = 1;
/// `PublishResponse.message_ids`.
const RESPONSE_MESSAGE_IDS: u64 = 1;

/// The largest response that is read, in bytes. 1,000 ids take about 25 KB.
pub(crate) const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

/// Encodes the only gRPC message of a Publish call, with its frame.
pub(crate) fn request<'a>(
    topic: &str,
    messages: impl Iterator<Item = &'a Message> + Clone,
) -> Bytes {
    let fields: usize = messages.clone().map(|message| message.request_field().len()).sum();
    let body_len = field_len(topic.len()) + fields;
    // The byte budget keeps rows in flight far below this limit.
    let length = u32::try_from(body_len).expect("a batch fits into a gRPC message");

    let mut frame = BytesMut::with_capacity(PREFIX_LEN + body_len);
    frame.put_u8(0);
    frame.put_u32(length);
    put_field(&mut frame, REQUEST_TOPIC, topic.as_bytes());
    for message in messages {
        frame.put_slice(message.request_field());
    }
    frame.freeze()
}

/// The reason why a response cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadResponse {
    #[error("the response is not one whole gRPC message")]
    Framing,
    #[error("the response is compressed, which was not offered")]
    Compressed,
    #[error("the response is not a PublishResponse")]
    Encoding,
}

/// Reads the message ids of a response, in the order of the request's messages.
pub(crate) fn message_ids(frame: &[u8]) -> Result<Vec<String>, BadResponse> {
    let (prefix, body) = frame.split_at_checked(PREFIX_LEN).ok_or(BadResponse::Framing)?;
    if prefix[0] != 0 {
        return Err(BadResponse::Compressed);
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if usize::try_from(length) != Ok(body.len()) {
        return Err(BadResponse::Framing);
    }
    let mut ids = Vec::new();
    for field in Fields::of(body) {
        if let (RESPONSE_MESSAGE_IDS, Value::Bytes(id)) =
            field.map_err(|_| BadResponse::Encoding)?
        {
            let id = std::str::from_utf8(id).map_err(|_| BadResponse::Encoding)?;
            ids.push(id.to_owned());
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds compression flag and length before the body.
    fn framed(body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 0, u8::try_from(body.len()).unwrap()];
        frame.extend_from_slice(body);
        frame
    }

    #[test]
    fn ids_come_in_order_and_unknown_fields_are_passed_over() {
        let body = [
            0x0A, 2, b'7', b'1', // message_ids
            0x10, 0x96, 0x01, // field 2, varint
            0x1D, 1, 2, 3, 4, // field 3, fixed32
            0x22, 1, b'x', // field 4, bytes
            0x29, 1, 2, 3, 4, 5, 6, 7, 8, // field 5, fixed64
            0x0A, 1, b'9', // message_ids
        ];
        assert_eq!(message_ids(&framed(&body)).unwrap(), ["71", "9"]);
    }

    #[test]
    fn no_cut_of_a_response_is_taken_for_a_whole_one() {
        let whole = framed(&[0x0A, 2, b'7', b'1', 0x0A, 1, b'9']);
        assert_eq!(message_ids(&whole).unwrap().len(), 2);
        for end in 0..whole.len() {
            assert_eq!(message_ids(&whole[..end]), Err(BadResponse::Framing), "{end}");
        }
    }

    #[test]
    fn a_broken_response_is_an_error_and_not_a_panic() {
        let compressed = [1, 0, 0, 0, 0];
        assert_eq!(message_ids(&compressed), Err(BadResponse::Compressed));
        for body in [
            &[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01][..],
            &[0x0A, 3, b'x'],
            &[0x0A, 1, 0xFF],
            &[0x0B],
            &[0x80],
        ] {
            assert_eq!(message_ids(&framed(body)), Err(BadResponse::Encoding), "{body:?}");
        }
    }
}
