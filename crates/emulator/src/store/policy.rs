//! The IAM policy of a topic or a subscription. The emulator enforces none.

/// `google.iam.v1.Policy`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Policy {
    #[prost(int32, tag = "1")]
    pub(crate) version: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) etag: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) bindings: Vec<Binding>,
}

/// `google.iam.v1.Binding`. The condition stays encoded.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Binding {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) members: Vec<String>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) condition: Option<Vec<u8>>,
}
