//! gRPC on top of HTTP/2 streams: frames in, frames and trailers out.
//!
//! ```text
//! frame:  0, or 1 (compressed) │ length, 4 bytes, big endian │ message
//! reply:  HEADERS, DATA (frame), HEADERS (grpc-status: 0)       or, on an error,
//!         HEADERS (grpc-status, grpc-message)
//! ```

use std::io::Read as _;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response};
use prost::Message;
use tonic::Status;

use crate::wire::limits;

/// The bytes reserved in front of an encoded response for the gRPC frame header.
pub(crate) const FRAME_HEADER_BYTES: usize = 5;

/// The compression that a call's `grpc-encoding` header names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Unknown,
}

impl Encoding {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        match headers.get("grpc-encoding").map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Self::Identity,
            Some(b"gzip") => Self::Gzip,
            Some(_) => Self::Unknown,
        }
    }

    /// Decompresses a message. The result is bounded, so that a few bytes cannot fill the memory.
    fn decompress(self, message: &[u8]) -> Result<Bytes, Status> {
        match self {
            Self::Gzip => {}
            Self::Identity => {
                return Err(Status::internal("a message is compressed without a grpc-encoding"));
            }
            Self::Unknown => {
                return Err(Status::unimplemented("the emulator decompresses gzip only"));
            }
        }
        let mut decompressed = Vec::new();
        // One byte beyond the limit shows that the limit is exceeded.
        let limit = u64::try_from(limits::REQUEST_BYTES_MAX + 1).unwrap_or(u64::MAX);
        let read = MultiGzDecoder::new(message).take(limit).read_to_end(&mut decompressed);
        read.map_err(|error| Status::internal(format!("a message is not gzip: {error}")))?;
        match decompressed.len() > limits::REQUEST_BYTES_MAX {
            true => Err(limits::too_large(decompressed.len())),
            false => Ok(decompressed.into()),
        }
    }
}

/// The messages of a request body.
pub(crate) struct Messages {
    body: RecvStream,
    encoding: Encoding,
    /// The first bytes of a message whose end has not arrived.
    buffered: BytesMut,
}

impl Messages {
    pub(crate) fn of(body: RecvStream, encoding: Encoding) -> Self {
        Self { body, encoding, buffered: BytesMut::new() }
    }

    /// Returns the next message, or `None` after the client's last one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(header) = FrameHeader::of(&self.buffered)?
                && self.buffered.len() >= FRAME_HEADER_BYTES + header.length
            {
                self.buffered.advance(FRAME_HEADER_BYTES);
                let message = self.buffered.split_to(header.length).freeze();
                return self.message(header, message).map(Some);
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
                && let Some(header) = FrameHeader::of(&chunk)?
                && chunk.len() == FRAME_HEADER_BYTES + header.length
            {
                chunk.advance(FRAME_HEADER_BYTES);
                return self.message(header, chunk).map(Some);
            }
            self.buffered.extend_from_slice(&chunk);
        }
    }

    fn message(&self, header: FrameHeader, bytes: Bytes) -> Result<Bytes, Status> {
        if header.is_compressed { self.encoding.decompress(&bytes) } else { Ok(bytes) }
    }

    /// Returns the only message of a unary call.
    pub(crate) async fn only(&mut self) -> Result<Bytes, Status> {
        self.next().await?.ok_or_else(|| Status::internal("the request has no message"))
    }
}

#[derive(Debug, Clone, Copy)]
struct FrameHeader {
    is_compressed: bool,
    length: usize,
}

impl FrameHeader {
    /// Reads the header of the frame that begins here, once the header is complete. A message that
    /// is too large is refused before it is buffered.
    fn of(frame: &[u8]) -> Result<Option<Self>, Status> {
        let Some((&[compressed, a, b, c, d], _)) = frame.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        match length > limits::REQUEST_BYTES_MAX {
            true => Err(limits::too_large(length)),
            false => Ok(Some(Self { is_compressed: compressed != 0, length })),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_decompressed_up_to_the_limit_of_a_request() {
        let largest = vec![0; limits::REQUEST_BYTES_MAX];
        assert_eq!(Encoding::Gzip.decompress(&gzip(&largest)).unwrap(), largest);
        let larger = vec![0; 2 * limits::REQUEST_BYTES_MAX];
        let refused = Encoding::Gzip.decompress(&gzip(&larger)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn a_compressed_message_needs_an_encoding_that_is_known() {
        let header = |name: &'static str| {
            HeaderMap::from_iter([(
                "grpc-encoding".parse().unwrap(),
                HeaderValue::from_static(name),
            )])
        };
        let code = |headers: &HeaderMap, bytes: &[u8]| {
            Encoding::of(headers).decompress(bytes).map_err(|status| status.code())
        };
        let compressed = gzip(b"message");
        assert_eq!(code(&header("gzip"), &compressed).unwrap(), "message");
        assert_eq!(code(&header("gzip"), b"message"), Err(tonic::Code::Internal));
        assert_eq!(code(&header("zstd"), &compressed), Err(tonic::Code::Unimplemented));
        assert_eq!(code(&HeaderMap::new(), &compressed), Err(tonic::Code::Internal));
    }
}
