//! The Pub/Sub side of walrelay: the Publish call, what its failures mean, administration.
//!
//! Owns the connections to the service and the credentials. Promises that an `Ok` of
//! [`GrpcPublisher::publish`] means "stored", one id per message (I2), and that every failure comes
//! with its class. Sends a request again by itself only when HTTP/2 says that the service never
//! looked at it; everything else is the caller's decision: lanes, back-off and parking live in
//! `walrelay-core`. Never logs a payload, a key or a token.

mod admin;
mod channel;
mod classify;
mod config;
mod connection;
mod cork;
mod credentials;
mod delivered;
mod dial;
mod error;
mod grpc;
mod pool;
mod protobuf;
mod roots;
mod subscriber;
mod wire;

#[cfg(test)]
mod tests;

pub use admin::Admin;
pub use classify::{classify, operator_fix, operator_hint};
pub use config::{Endpoint, PublisherConfig};
pub use delivered::{Delivered, MessageRef, ReceivedMessage, Unreadable};
pub use error::{Answer, PubsubError};
pub use grpc::GrpcPublisher;
pub use subscriber::{StreamingPull, Subscriber};

/// Makes ring the process's cryptography for TLS and for credentials.
///
/// To be called once by `main`, before anything of this crate: the credentials library is built
/// without a provider of its own and panics at its first request when the process has none. Does
/// nothing when a provider is installed already.
pub fn install_crypto_provider() {
    // The error carries the provider that was there first, which serves us as well.
    drop(rustls::crypto::ring::default_provider().install_default());
}
