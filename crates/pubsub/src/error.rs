//! Why Pub/Sub could not be set up or administered.

use std::error::Error;
use std::fmt;
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
    /// What asks for tokens would trust nobody.
    #[error(
        "this machine has no certificate authorities, which are needed to ask Google for credentials; install \
         ca-certificates, or name a PEM file in SSL_CERT_FILE"
    )]
    NoAuthorities,
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
        source: Box<Answer>,
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
        source: Box<Answer>,
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
        source: Option<Box<Answer>>,
    },
}

impl PubsubError {
    /// Whether the service answers, and takes no topic of the name that it was asked about.
    #[must_use]
    pub fn is_about_the_name(&self) -> bool {
        matches!(self, Self::Topic { code: "INVALID_ARGUMENT", .. })
    }
}

/// What a call came back with, in the words of the service, or of what lies between.
#[derive(Debug)]
pub struct Answer(String);

impl Answer {
    /// A status prints its code in other words than everything else here, and a failed connection four times.
    pub(crate) fn of(status: &tonic::Status) -> Self {
        let mut text = status.message().to_owned();
        let mut cause = status.source();
        while let Some(next) = cause.and_then(Error::source) {
            cause = Some(next);
        }
        let root = cause.map(ToString::to_string).filter(|root| !text.contains(root));
        if let Some(root) = root {
            text = format!("{text}: {root}");
        }
        if text.is_empty() {
            text.push_str("without a word");
        }
        Self(text)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Answer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_said_is_told_once() {
        let refused = std::io::Error::other("Connection refused (os error 111)");
        let mut status = tonic::Status::unavailable("tcp connect error");
        status.set_source(std::sync::Arc::new(refused));
        let told = Answer::of(&status).to_string();
        assert_eq!(told, "tcp connect error: Connection refused (os error 111)");
        assert_eq!(Answer::of(&tonic::Status::not_found("no topic")).to_string(), "no topic");
        assert_eq!(Answer::of(&tonic::Status::not_found("")).to_string(), "without a word");
    }
}
