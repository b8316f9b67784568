//! Errors in the setup and administration of Pub/Sub.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use walrelay_core::{CallCode, FailureCode};
use walrelay_errors::{Code, Coded};

/// A problem that the operator has to fix before the relay can use Pub/Sub.
#[derive(Debug, thiserror::Error)]
pub enum PubsubError {
    /// The endpoint's text is not an address.
    #[error("endpoint {text:?} {problem}")]
    Endpoint {
        /// The given text, without the part before an `@`.
        text: String,
        /// The problem, and the expected form.
        problem: &'static str,
    },
    /// A publisher setting is invalid.
    #[error("publisher setting {name} {problem}")]
    Setting {
        /// The field of `PublisherConfig`.
        name: &'static str,
        /// The problem.
        problem: &'static str,
    },
    /// No usable credentials were found.
    #[error("no usable Google Cloud credentials")]
    Credentials(#[source] Box<dyn Error + Send + Sync>),
    /// The machine has no certificate authorities, so the token request would trust no server.
    #[error(
        "this machine has no certificate authorities, which are needed to ask Google for credentials; install \
         ca-certificates, or name a PEM file in SSL_CERT_FILE"
    )]
    NoAuthorities,
    /// TLS cannot be set up in this process.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// A topic could not be read or created.
    #[error("cannot {action} topic {topic}: {code}")]
    Topic {
        /// `look up` or `create`.
        action: &'static str,
        /// The full name.
        topic: String,
        /// The gRPC code.
        code: CallCode,
        /// The text of the service.
        #[source]
        source: Box<Answer>,
    },
    /// A call about a subscription failed.
    #[error("cannot {action} subscription {subscription}: {code}")]
    Subscription {
        /// `look up`, `create`, `delete`, `seek` or `read the backlog of`.
        action: &'static str,
        /// The full name.
        subscription: String,
        /// The gRPC code.
        code: CallCode,
        /// The text of the service.
        #[source]
        source: Box<Answer>,
    },
    /// An IAM policy could not be read or changed.
    #[error("cannot change the IAM policy of {resource}: {code}")]
    Policy {
        /// The full name of the topic or the subscription.
        resource: String,
        /// The gRPC code.
        code: CallCode,
        /// The text of the service.
        #[source]
        source: Box<Answer>,
    },
    /// The certificates of a private authority cannot be used.
    #[error("{problem}")]
    Roots {
        /// The certificate and the reason.
        problem: String,
    },
    /// The channel for administration and pulling cannot be created.
    #[error("the connection to Pub/Sub cannot be set up")]
    Channel(#[source] Box<dyn Error + Send + Sync>),
    /// The service did not answer an administrative call.
    #[error("cannot {action} topic {topic}: no answer of {endpoint} within {} s", waited.as_secs())]
    NoAnswer {
        /// The address of the service.
        endpoint: String,
        /// `look up` or `create`.
        action: &'static str,
        /// The full name.
        topic: String,
        /// The time that the client waited.
        waited: Duration,
        /// The failure of the last attempt, if that attempt ended.
        #[source]
        source: Option<Box<Answer>>,
    },
}

impl PubsubError {
    /// Whether the service answered and refused the topic's name as invalid.
    #[must_use]
    pub fn is_about_the_name(&self) -> bool {
        matches!(self, Self::Topic { code: CallCode::InvalidArgument, .. })
    }
}

impl PubsubError {
    /// Whether nobody answered: neither the service nor, for a call without a token, the source of tokens.
    #[must_use]
    pub const fn is_unanswered(&self) -> bool {
        match self {
            Self::Topic { code, .. }
            | Self::Subscription { code, .. }
            | Self::Policy { code, .. } => {
                matches!(code, CallCode::Unavailable | CallCode::DeadlineExceeded)
            }
            Self::NoAnswer { .. } => true,
            Self::Endpoint { .. }
            | Self::Setting { .. }
            | Self::Credentials(_)
            | Self::NoAuthorities
            | Self::Tls(_)
            | Self::Roots { .. }
            | Self::Channel(_) => false,
        }
    }
}

impl Coded for PubsubError {
    fn code(&self) -> Code {
        match self {
            Self::Endpoint { .. } => Code::PubsubEndpointInvalid,
            Self::Credentials(_) => Code::PubsubCredentialsMissing,
            Self::NoAuthorities => Code::CertificateAuthoritiesMissing,
            Self::Roots { .. } => Code::PubsubRootsUnreadable,
            Self::Topic { code: CallCode::InvalidArgument, .. } => Code::TopicNameInvalid,
            Self::Subscription { code: CallCode::NotFound, .. } => Code::SubscriptionNotFound,
            Self::NoAnswer { source: Some(answer), .. }
            | Self::Topic { source: answer, .. }
            | Self::Subscription { source: answer, .. }
            | Self::Policy { source: answer, .. }
                if answer.is_about_a_token() =>
            {
                Code::PubsubCredentialsMissing
            }
            Self::Topic { code, .. }
            | Self::Subscription { code, .. }
            | Self::Policy { code, .. } => code_of_call(*code),
            Self::NoAnswer { .. } => Code::PubsubUnreachable,
            Self::Setting { .. } | Self::Tls(_) | Self::Channel(_) => Code::PubsubUnusable,
        }
    }
}

/// Returns the error code for a gRPC code. A code that the documentation does not mention has the
/// general error code.
#[must_use]
pub const fn code_of_call(code: CallCode) -> Code {
    match code {
        CallCode::NotFound => Code::TopicNotFound,
        CallCode::PermissionDenied => Code::PubsubPermissionMissing,
        CallCode::Unauthenticated => Code::PubsubCredentialsMissing,
        CallCode::Unavailable | CallCode::DeadlineExceeded => Code::PubsubUnreachable,
        CallCode::Ok
        | CallCode::Cancelled
        | CallCode::Unknown
        | CallCode::InvalidArgument
        | CallCode::AlreadyExists
        | CallCode::ResourceExhausted
        | CallCode::FailedPrecondition
        | CallCode::Aborted
        | CallCode::OutOfRange
        | CallCode::Unimplemented
        | CallCode::Internal
        | CallCode::DataLoss => Code::PubsubUnusable,
    }
}

/// Returns the error code for a failure. A reason of our own has the general error code.
#[must_use]
pub const fn code_of_failure(code: FailureCode) -> Code {
    match code {
        FailureCode::Call(code) => code_of_call(code),
        FailureCode::BadHeaders
        | FailureCode::LocalLimit
        | FailureCode::TooLarge
        | FailureCode::Unroutable
        | FailureCode::Unreadable
        | FailureCode::DispatchState
        | FailureCode::OtherServer => Code::PubsubUnusable,
    }
}

/// The failure text of a call, from the service or from the network in between.
#[derive(Debug)]
pub struct Answer(String);

/// Begins the text of a call that was not sent, because there are no credentials.
pub(crate) const NO_TOKEN: &str = "no access token";

impl Answer {
    fn is_about_a_token(&self) -> bool {
        self.0.starts_with(NO_TOKEN)
    }

    /// Creates the text of a failure from its message and root cause. The `Display` of a status
    /// uses other code names than this crate, and repeats a failed connection four times.
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
    fn a_call_without_a_token_is_about_credentials_and_not_about_the_network() {
        let failed = |code, text: &str| PubsubError::Subscription {
            action: "look up",
            subscription: "s".to_owned(),
            code,
            source: Box::new(Answer(text.to_owned())),
        };
        for (code, text, named, is_unanswered) in [
            (
                CallCode::Unavailable,
                "no access token: silence",
                Code::PubsubCredentialsMissing,
                true,
            ),
            (
                CallCode::Unauthenticated,
                "no access token: no file",
                Code::PubsubCredentialsMissing,
                false,
            ),
            (CallCode::Unavailable, "Connection refused", Code::PubsubUnreachable, true),
        ] {
            let error = failed(code, text);
            assert_eq!((error.code(), error.is_unanswered()), (named, is_unanswered), "{text}");
        }
    }

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
