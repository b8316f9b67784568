//! A gRPC codec for requests that are already encoded.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf, BufMut as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The codec of a call whose request is bytes and whose answer is an `A`.
#[derive(Debug)]
pub(crate) struct Encoded<A>(PhantomData<A>);

impl<A> Default for Encoded<A> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A: Message + Default + 'static> Codec for Encoded<A> {
    type Encode = Bytes;
    type Decode = A;
    type Encoder = RawEncoder;
    type Decoder = Self;

    fn encoder(&mut self) -> RawEncoder {
        RawEncoder
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

/// Writes the bytes unchanged.
#[derive(Debug)]
pub(crate) struct RawEncoder;

impl Encoder for RawEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put(item);
        Ok(())
    }
}

impl<A: Message + Default> Decoder for Encoded<A> {
    type Item = A;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<A>, Status> {
        let answer = A::decode(source.copy_to_bytes(source.remaining()));
        answer.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
