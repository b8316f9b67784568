//! Why Pub/Sub could not be set up or administered.

use std::error::Error;
use std::time::Duration;

/// Something the operator has to put right before the relay can use Pub/Sub.
#[derive(Debug, thiserror::Error)]
pub enum PubsubError {
    /// The endpoint's text is not an address.
    #[error("endpoint {text:?} {problem}")]
    Endpoint {
        /// As it was given, without what stands before an `@`.
        text: String,
        /// What is wrong with it, and what it should look like.
        problem: &'static str,
    },
    /// A setting of the publisher cannot work.
    #[error("publisher setting {name} {problem}")]
    Setting {
        /// The field of `PublisherConfig`.
        name: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No usable credentials were found.
    #[error(
        "no usable Google Cloud credentials; attach a service account, or set \
         GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`"
    )]
    Credentials(#[source] Box<dyn Error + Send + Sync>),
    /// TLS cannot be set up in this process.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// A topic could not be looked up or created.
    #[error("cannot {action} topic {topic}: {code}")]
    Topic {
        /// `look up` or `create`.
        action: &'static str,
        /// The full name.
        topic: String,
        /// The gRPC code.
        code: &'static str,
        /// What the service said.
        #[source]
        source: Box<tonic::Status>,
    },
    /// A subscription could not be looked up or created.
    #[error("cannot {action} subscription {subscription}: {code}")]
    Subscription {
        /// `look up` or `create`.
        action: &'static str,
        /// The full name.
        subscription: String,
        /// The gRPC code.
        code: &'static str,
        /// What the service said.
        #[source]
        source: Box<tonic::Status>,
    },
    /// The certificates of a private authority cannot be used.
    #[error("{problem}")]
    Roots {
        /// Which one, and why.
        problem: String,
    },
    /// The channel for administration and pulling cannot be made.
    #[error("the connection to Pub/Sub cannot be set up")]
    Channel(#[source] Box<dyn Error + Send + Sync>),
    /// The service did not answer an administrative call.
    #[error("cannot {action} topic {topic}: no answer within {} s", waited.as_secs())]
    NoAnswer {
        /// `look up` or `create`.
        action: &'static str,
        /// The full name.
        topic: String,
        /// How long it was waited for.
        waited: Duration,
        /// What came of the last try, when it came to an end.
        #[source]
        source: Option<Box<tonic::Status>>,
    },
}
