//! Bytes and their rules: how requests and replies are written, and what production refuses.

pub(crate) mod codes;
pub(crate) mod grpc;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod protobuf;
