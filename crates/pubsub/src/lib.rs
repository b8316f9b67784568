//! The Pub/Sub client of walrelay: the Publish call, the classes of its failures, administration.
//!
//! Owns the connections to the service and the credentials. Promises that an `Ok` of
//! [`GrpcPublisher::publish`] means "stored", with one id per message (I2). Promises that every
//! failure has a class. Never logs a payload, a key or a token.
//!
//! The crate sends a request again in two cases only:
//! - HTTP/2 proves that the service did not process the request.
//! - The service refused the access token, and there is a new one.
//!
//! The caller decides everything else: lanes, back-off and parking are in `walrelay-core`.

#![warn(missing_docs)]

mod admin;
mod buffered_wire;
mod channel;
mod classify;
mod config;
mod connection;
mod credentials;
mod dialer;
mod error;
mod google_call;
mod grpc;
mod iam;
mod monitoring;
mod pool;
mod pull_response;
mod roots;
mod subscriber;
mod time;
mod wire;

#[cfg(test)]
mod tests;

pub use admin::{Admin, TopicSettings};
pub use classify::{call_code, classify, operator_fix, operator_fix_of, split_topic};
pub use config::{Endpoint, PublisherConfig};
pub use credentials::GoogleTokens;
pub use error::{Answer, PubsubError, code_of_call, code_of_failure};
pub use grpc::GrpcPublisher;
pub use iam::IamBinding;
pub use monitoring::{BACKLOG_METRIC, OLDEST_METRIC, SubscriptionBacklog};
pub use pull_response::{Delivered, MalformedMessage, MessageRef, ReceivedMessage};
pub use roots::client_tls;
pub use subscriber::{DELETED_TOPIC, StreamingPull, Subscriber, is_announced_end};
pub use time::{parse_rfc3339, time_at};

/// Installs ring as the process's cryptography provider for TLS and credentials.
///
/// Call it once in `main`, before any other function of this crate. The credentials library has no
/// provider of its own and panics at its first request without one. Does nothing if a provider is
/// installed already.
pub fn install_crypto_provider() {
    // The error contains the provider that was installed first, which also works.
    drop(rustls::crypto::ring::default_provider().install_default());
}
