//! Access tokens that are sent, renewed, refused or late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use google_cloud_auth::credentials::{
    CacheableResource, Credentials, CredentialsProvider, EntityTag,
};
use google_cloud_auth::errors::CredentialsError;
use http::{Extensions, HeaderMap, HeaderValue};
use tokio::time::{Instant, advance};
use walrelay_core::{CallCode, FailureClass};
use walrelay_testkit::tls::CERTIFICATE;

use super::server::{Answer, Server};
use super::{config, publish};
use crate::credentials::MakeCredentials;
use crate::dialer::Dialer;
use crate::{Endpoint, GrpcPublisher, PublisherConfig};

fn with_credentials(config: &PublisherConfig, make: MakeCredentials) -> GrpcPublisher {
    GrpcPublisher::assemble(config, Dialer::new(config).unwrap(), Some(make)).unwrap()
}

/// Credentials that count the requests for a token.
#[derive(Debug, Clone)]
struct Token {
    asked: Arc<AtomicUsize>,
    failure: Option<bool>,
}

impl CredentialsProvider for Token {
    async fn headers(
        &self,
        extensions: Extensions,
    ) -> Result<CacheableResource<HeaderMap>, CredentialsError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(is_transient) = self.failure {
            return Err(CredentialsError::from_msg(is_transient, "the metadata server says no"));
        }
        assert!(extensions.get::<EntityTag>().is_none(), "kept headers are fresh");
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer s3cret"));
        headers.insert("x-goog-user-project", HeaderValue::from_static("from-the-key-file"));
        Ok(CacheableResource::New { entity_tag: EntityTag::new(), data: headers })
    }

    async fn universe_domain(&self) -> Option<String> {
        None
    }
}

fn with_token(config: &PublisherConfig, token: Token) -> GrpcPublisher {
    with_credentials(config, Box::new(move || Ok(Credentials::from(token.clone()))))
}

#[tokio::test]
async fn a_token_is_fetched_once_and_sent_with_every_request() {
    let server = Server::start(|_| Answer::Ids).await;
    let mut config = config(&server);
    config.quota_project = Some("payer".to_owned());
    let asked = Arc::default();
    let publisher = with_token(&config, Token { asked: Arc::clone(&asked), failure: None });

    publish(&publisher, &["a"]).await.unwrap();
    publish(&publisher, &["a"]).await.unwrap();

    for seen in server.seen(2).await {
        assert_eq!(seen.headers["authorization"], "Bearer s3cret");
        assert_eq!(seen.headers["x-goog-user-project"], "payer", "ours beats the key file's");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(!format!("{publisher:?}").contains("s3cret"));
}

#[tokio::test]
async fn missing_credentials_are_the_operators_and_a_hiccup_is_not() {
    let server = Server::start(|_| Answer::Ids).await;
    for (is_transient, code) in [(true, CallCode::Unavailable), (false, CallCode::Unauthenticated)]
    {
        let token = Token { asked: Arc::default(), failure: Some(is_transient) };
        let failure = publish(&with_token(&config(&server), token), &["a"]).await.unwrap_err();
        assert_eq!(failure.code, code.into());
        assert!(failure.message.contains("the metadata server says no"), "{failure}");
    }
}

/// The behaviour of credentials that are asked for a token.
#[derive(Debug, Clone)]
enum TokenBehaviour {
    Give(String),
    GiveNewest(Arc<AtomicUsize>),
    FailForEver,
    /// Wait for an endpoint that does not answer.
    Wait,
}

impl CredentialsProvider for TokenBehaviour {
    async fn headers(
        &self,
        _: Extensions,
    ) -> Result<CacheableResource<HeaderMap>, CredentialsError> {
        let token: String = match self {
            Self::Give(token) => token.clone(),
            Self::GiveNewest(number) => token(number.load(Ordering::SeqCst)),
            Self::FailForEver => return Err(CredentialsError::from_msg(false, "invalid_grant")),
            Self::Wait => std::future::pending().await,
        };
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&token).unwrap());
        Ok(CacheableResource::New { entity_tag: EntityTag::new(), data: headers })
    }

    async fn universe_domain(&self) -> Option<String> {
        None
    }
}

/// Creates credentials whose behaviour depends on the number of earlier creations. Also returns the
/// number of creations.
fn making(
    does: impl Fn(usize) -> TokenBehaviour + Send + Sync + 'static,
) -> (MakeCredentials, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let make = move || Ok(Credentials::from(does(count.fetch_add(1, Ordering::SeqCst))));
    (Box::new(make), made)
}

/// The token of the credentials after this many earlier creations.
fn token(made: usize) -> String {
    format!("Bearer t{made}")
}

#[tokio::test]
async fn a_token_that_is_refused_over_tls_is_replaced_and_no_request_fails() {
    let valid = Arc::new(AtomicUsize::new(0));
    let now_valid = Arc::clone(&valid);
    let answer = move |_| Answer::IdsFor(token(now_valid.load(Ordering::SeqCst)));
    let server = Server::start_with_tls(answer).await;
    let endpoint = Endpoint::regional(&format!("https://localhost:{}", server.address().port()));
    let config = PublisherConfig::new(endpoint.unwrap().with_roots(CERTIFICATE).unwrap());
    let (make, made) = making(|made| TokenBehaviour::Give(token(made)));
    let publisher = with_credentials(&config, make);
    publish(&publisher, &["a"]).await.unwrap();

    valid.store(1, Ordering::SeqCst);
    let calls = (0..50).map(|_| publish(&publisher, &["a"]));
    let failed = join_all(calls).await.into_iter().filter(Result::is_err).count();

    assert_eq!((failed, made.load(Ordering::SeqCst)), (0, 2), "made again once, for all of them");
}

#[tokio::test(start_paused = true)]
async fn while_every_token_is_refused_credentials_are_made_again_every_half_minute() {
    let server = Server::start(|_| Answer::IdsFor(token(2))).await;
    let (make, made) = making(|made| TokenBehaviour::Give(token(made)));
    let publisher = with_credentials(&config(&server), make);
    for _ in 0..20 {
        let failure = publish(&publisher, &["a"]).await.unwrap_err();
        assert_eq!(
            (failure.class, failure.code),
            (FailureClass::Operator, CallCode::Unauthenticated.into())
        );
    }
    assert_eq!(made.load(Ordering::SeqCst), 2);

    advance(Duration::from_secs(30)).await;

    assert_eq!(publish(&publisher, &["a"]).await.unwrap(), ["a"]);
    assert_eq!(made.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn credentials_that_have_failed_for_ever_are_made_again() {
    let server = Server::start(|_| Answer::IdsFor(token(1))).await;
    let (make, made) = making(|made| match made {
        0 => TokenBehaviour::FailForEver,
        made => TokenBehaviour::Give(token(made)),
    });
    let publisher = with_credentials(&config(&server), make);
    let failure = publish(&publisher, &["a"]).await.unwrap_err();
    assert_eq!(failure.code, CallCode::Unauthenticated.into());
    assert!(failure.message.contains("invalid_grant"), "{failure}");

    assert_eq!(publish(&publisher, &["a"]).await.unwrap(), ["a"]);
    assert_eq!(made.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_endpoint_that_does_not_answer_holds_a_request_for_15_seconds() {
    let server = Server::start(|_| Answer::Ids).await;
    let (make, _) = making(|_| TokenBehaviour::Wait);
    let publisher = with_credentials(&config(&server), make);
    let begin = Instant::now();

    let failure = publish(&publisher, &["a"]).await.unwrap_err();

    assert_eq!(begin.elapsed().as_secs(), 15);
    assert_eq!(
        (failure.class, failure.code),
        (FailureClass::Transient, CallCode::Unavailable.into())
    );
    assert!(!failure.congestion, "Pub/Sub is not slow");
    assert_eq!(failure.message, "no access token within 15 s");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_the_library_has_renewed_goes_out_a_second_later() {
    let renewed = Arc::new(AtomicUsize::new(0));
    let server = Server::start(|_| Answer::Ids).await;
    let (make, made) = making({
        let renewed = Arc::clone(&renewed);
        move |_| TokenBehaviour::GiveNewest(Arc::clone(&renewed))
    });
    let publisher = with_credentials(&config(&server), make);
    publish(&publisher, &["a"]).await.unwrap();
    renewed.store(1, Ordering::SeqCst);
    advance(Duration::from_secs(1)).await;
    publish(&publisher, &["a"]).await.unwrap();

    let seen = server.seen(2).await;
    assert_eq!(seen[0].headers["authorization"], token(0));
    assert_eq!(seen[1].headers["authorization"], token(1));
    assert_eq!(made.load(Ordering::SeqCst), 1);
}
