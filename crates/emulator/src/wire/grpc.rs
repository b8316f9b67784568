//! gRPC on top of HTTP/2 streams: frames in, frames and trailers out.
//!
//! ```text
//! frame:  0 (not compressed) │ length, 4 bytes, big endian │ message
//! reply:  HEADERS, DATA (frame), HEADERS (grpc-status: 0)       or, on an error,
//!         HEADERS (grpc-status, grpc-message)
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response};
use prost::Message;
use tonic::Status;

use crate::wire::limits;

/// The bytes reserved in front of an encoded response for the gRPC frame header.
pub(crate) const FRAME_HEADER_BYTES: usize = 5;

/// The messages of a request body.
pub(crate) struct Messages {
    body: RecvStream,
    /// The first bytes of a message whose end has not arrived.
    buffered: BytesMut,
}

impl Messages {
    pub(crate) fn of(body: RecvStream) -> Self {
        Self { body, buffered: BytesMut::new() }
    }

    /// Returns the next message, or `None` after the client's last one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(length) = frame_len(&self.buffered)?
                && self.buffered.len() >= FRAME_HEADER_BYTES + length
            {
                self.buffered.advance(FRAME_HEADER_BYTES);
                return Ok(Some(self.buffered.split_to(length).freeze()));
            }
            let Some(chunk) = self.body.data().await else {
                return match self.buffered.is_empty() {
                    true => Ok(None),
                    false => Err(Status::internal("the request body ends inside a message")),
                };
            };
            let mut chunk = chunk.map_err(|error| Status::cancelled(error.to_string()))?;
            // The bytes are in our memory, so the client may send as many again.
            let released = self.body.flow_control().release_capacity(chunk.len());
            released.map_err(|error| Status::internal(error.to_string()))?;
            // Nearly every request arrives in one chunk, which is used without a copy.
            if self.buffered.is_empty()
                && let Some(length) = frame_len(&chunk)?
                && chunk.len() == FRAME_HEADER_BYTES + length
            {
                chunk.advance(FRAME_HEADER_BYTES);
                return Ok(Some(chunk));
            }
            self.buffered.extend_from_slice(&chunk);
        }
    }

    /// Returns the only message of a unary call.
    pub(crate) async fn only(&mut self) -> Result<Bytes, Status> {
        self.next().await?.ok_or_else(|| Status::internal("the request has no message"))
    }
}

/// Returns the length of the message whose frame begins here, once its header is complete. A
/// message that is too large is refused before it is buffered.
fn frame_len(frame: &[u8]) -> Result<Option<usize>, Status> {
    let Some((&[compressed, a, b, c, d], _)) = frame.split_first_chunk() else { return Ok(None) };
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not implemented"));
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    match length > limits::REQUEST_BYTES_MAX {
        true => Err(limits::too_large(length)),
        false => Ok(Some(length)),
    }
}

/// Decodes a request.
pub(crate) fn decode<T: Message + Default>(frame: &Bytes) -> Result<T, Status> {
    T::decode(frame.clone()).map_err(|error| {
        Status::invalid_argument(format!("the request is not a well-formed message: {error}"))
    })
}

/// Encodes a response with space for the frame header in front.
pub(crate) fn encode(message: &impl Message) -> BytesMut {
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(FRAME_HEADER_BYTES + length);
    buffer.put_bytes(0, FRAME_HEADER_BYTES);
    // A BytesMut grows as needed, so encoding into it cannot fail.
    message.encode(&mut buffer).unwrap_or_else(|error| unreachable!("{error}"));
    buffer
}

/// Fills in the frame header of an encoded response.
pub(crate) fn frame(mut encoded: BytesMut) -> Bytes {
    let length = u32::try_from(encoded.len() - FRAME_HEADER_BYTES).unwrap_or(u32::MAX);
    encoded[1..FRAME_HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    encoded.freeze()
}

/// Sends the headers of a successful reply.
pub(crate) fn begin(respond: &mut SendResponse<Bytes>) -> Result<SendStream<Bytes>, h2::Error> {
    respond.send_response(headers(), false)
}

/// Ends a reply that has begun.
pub(crate) fn end(stream: &mut SendStream<Bytes>, status: &Status) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::with_capacity(2);
    put_status(&mut trailers, status);
    stream.send_trailers(trailers)
}

/// Sends the whole reply of a unary call.
pub(crate) fn reply(
    respond: &mut SendResponse<Bytes>,
    result: Result<BytesMut, Status>,
) -> Result<(), h2::Error> {
    match result {
        Ok(encoded) => {
            let mut stream = begin(respond)?;
            stream.send_data(frame(encoded), false)?;
            end(&mut stream, &Status::ok(""))
        }
        Err(status) => {
            let mut response = headers();
            put_status(response.headers_mut(), &status);
            respond.send_response(response, true).map(drop)
        }
    }
}

fn headers() -> Response<()> {
    let mut response = Response::new(());
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    response
}

fn put_status(headers: &mut HeaderMap, status: &Status) {
    if status.code() == tonic::Code::Ok {
        headers.insert("grpc-status", HeaderValue::from_static("0"));
        return;
    }
    // Fails only for metadata and details that are no valid headers, and this status has neither.
    if status.add_header(headers).is_err() {
        headers.insert("grpc-status", HeaderValue::from(i32::from(status.code())));
    }
}
