//! Reports the failed ack ids in a unary reply: an error with a `google.rpc.ErrorInfo`, whose
//! metadata has an entry for each of them. Clients treat unlisted ids as confirmed.

use bytes::{BufMut, BytesMut};
use tonic::{Code, Status};
use walrelay_protobuf::{put_field, put_varint};

use crate::store::confirmation::Confirmation;

const TYPE_URL: &[u8] = b"type.googleapis.com/google.rpc.ErrorInfo";

/// The service's own value. Some client libraries read the metadata only with this reason.
const REASON: &[u8] = b"EXACTLY_ONCE_ACKID_FAILURE";

const INVALID: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";
const UNORDERED: &str = "TRANSIENT_FAILURE_UNORDERED_ACK_ID";
const TEMPORARY: &str = "TRANSIENT_FAILURE_OTHER";

/// Returns the error for a confirmation, unless all ids are confirmed.
pub(crate) fn check(confirmation: &Confirmation) -> Result<(), Status> {
    let failed = [
        (&confirmation.invalid, INVALID),
        (&confirmation.unordered, UNORDERED),
        (&confirmation.temporary, TEMPORARY),
    ];
    if failed.iter().all(|(ids, _)| ids.is_empty()) {
        return Ok(());
    }
    let mut info = BytesMut::new();
    put_field(&mut info, 1, REASON);
    put_field(&mut info, 2, b"pubsub.googleapis.com");
    for (id, failure) in
        failed.iter().flat_map(|(ids, failure)| ids.iter().map(move |id| (id, failure)))
    {
        let mut entry = BytesMut::new();
        put_field(&mut entry, 1, id.as_bytes());
        put_field(&mut entry, 2, failure.as_bytes());
        put_field(&mut info, 3, &entry);
    }
    let message = "some acknowledgement ids in the request were invalid, out of order or failed";
    let code = Code::InvalidArgument;
    Err(Status::with_details(code, message, encode_status(code, message, &info).freeze()))
}

/// Encodes `google.rpc.Status { 1: code, 2: message, 3: google.protobuf.Any { 1: type_url, 2: value
/// } }`
fn encode_status(code: Code, message: &str, info: &[u8]) -> BytesMut {
    let mut any = BytesMut::new();
    put_field(&mut any, 1, TYPE_URL);
    put_field(&mut any, 2, info);
    let mut status = BytesMut::new();
    status.put_u8(1 << 3);
    put_varint(&mut status, u64::try_from(i32::from(code)).unwrap_or_default());
    put_field(&mut status, 2, message.as_bytes());
    put_field(&mut status, 3, &any);
    status
}
