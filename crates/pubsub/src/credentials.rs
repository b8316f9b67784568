//! The authentication headers, cached so that a request costs only a copy.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use google_cloud_auth::credentials::idtoken::{self, IDTokenCredentials};
use google_cloud_auth::credentials::{
    AccessTokenCredentials, Builder, CacheableResource, Credentials, EntityTag,
};
use google_cloud_auth::errors::CredentialsError;
use http::{Extensions, HeaderMap};
use rustls_native_certs::load_native_certs;
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::classify::classify;
use crate::error::{NO_TOKEN, PubsubError};
use walrelay_core::PublishFailure;

/// The widest scope. The roles of the account limit its access.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The scopes of Cloud SQL and of AlloyDB, for a login to their databases.
const LOGIN_SCOPES: [&str; 2] = [
    "https://www.googleapis.com/auth/sqlservice.login",
    "https://www.googleapis.com/auth/alloydb.login",
];

/// The age up to which a cached token is used without the library. The library renews tokens
/// minutes before they expire, so one second is safe. Asking it costs more than a one-message
/// request can afford.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The longest wait of a request for a token. The library retries in the background, so the next
/// request may get one.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(15);

/// The shortest pause between two replacements of the credentials, while the service refuses their
/// tokens.
const RENEWAL_PAUSE: Duration = Duration::from_secs(30);

pub(crate) fn application_default() -> Result<Credentials, PubsubError> {
    default_builder(&[SCOPE])?.build().map_err(|error| PubsubError::Credentials(Box::new(error)))
}

fn default_builder(scopes: &[&str]) -> Result<Builder, PubsubError> {
    refuse_without_authorities()?;
    Ok(Builder::default().with_scopes(scopes.iter().copied()))
}

/// Without certificate authorities, the library's client panics.
fn refuse_without_authorities() -> Result<(), PubsubError> {
    match load_native_certs().certs.is_empty() {
        true => Err(PubsubError::NoAuthorities),
        false => Ok(()),
    }
}

/// Tokens of the application default credentials, for another service of Google.
#[derive(Debug)]
pub struct GoogleTokens(TokenKind);

#[derive(Debug)]
enum TokenKind {
    Access(AccessTokenCredentials),
    Identity(IDTokenCredentials),
}

impl GoogleTokens {
    /// Finds the credentials.
    ///
    /// # Errors
    ///
    /// There are none, or the machine has no certificate authorities.
    pub fn application_default() -> Result<Self, PubsubError> {
        Self::of_scopes(&[SCOPE])
    }

    /// As [`Self::application_default`], for the login to databases of Cloud SQL and AlloyDB. These
    /// refuse the scope that covers everything.
    pub fn of_database_login() -> Result<Self, PubsubError> {
        Self::of_scopes(&LOGIN_SCOPES)
    }

    /// As [`Self::application_default`], with identity tokens for one service, such as the URL of a
    /// service of Cloud Run.
    pub fn of_identity(audience: &str) -> Result<Self, PubsubError> {
        refuse_without_authorities()?;
        let built = idtoken::Builder::new(audience).with_include_email().build();
        let found = built.map_err(|error| PubsubError::Credentials(Box::new(error)))?;
        Ok(Self(TokenKind::Identity(found)))
    }

    fn of_scopes(scopes: &[&str]) -> Result<Self, PubsubError> {
        let built = default_builder(scopes)?.build_access_token_credentials();
        let found = built.map_err(|error| PubsubError::Credentials(Box::new(error)))?;
        Ok(Self(TokenKind::Access(found)))
    }

    /// Returns a valid token. The library keeps it until shortly before it expires.
    pub async fn get(&self) -> Result<String, PubsubError> {
        let failed = |reason: String| PubsubError::Credentials(reason.into());
        let waited = TOKEN_TIMEOUT.as_secs();
        let answer = timeout(TOKEN_TIMEOUT, async {
            match &self.0 {
                TokenKind::Access(found) => found.access_token().await.map(|token| token.token),
                TokenKind::Identity(found) => found.id_token().await,
            }
        });
        let answer = answer.await;
        let answer = answer.map_err(|_| failed(format!("{NO_TOKEN} within {waited} s")))?;
        answer.map_err(|error| failed(reason(&error)))
    }
}

/// A function that creates credentials from scratch.
pub(crate) type MakeCredentials = Box<dyn Fn() -> Result<Credentials, PubsubError> + Send + Sync>;

/// The headers of every request: the fixed ones, and those of the credentials.
///
/// The library renews a token minutes before it expires. It does not notice if the service refuses
/// a token earlier, because of a slow clock or a replaced key. It also never retries after an error
/// that it considers permanent. In both cases, the credentials are created again.
pub(crate) struct RequestHeaders {
    make: Option<MakeCredentials>,
    fixed: HeaderMap,
    kept: Mutex<Kept>,
}

/// The number of the token that a request was sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenNumber(u64);

/// Whether a request that was refused because of its token may now succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The next token is a different one.
    Renewed,
    /// The credentials were created a moment ago.
    TooSoon,
}

struct Kept {
    /// `None` if no credentials are needed.
    credentials: Option<Credentials>,
    renewed_at: Option<Instant>,
    number: u64,
    headers: Option<HeaderMap>,
    tag: Option<EntityTag>,
    asked_at: Instant,
}

impl RequestHeaders {
    /// Creates the first credentials at once, so that missing ones are reported early.
    pub(crate) fn new(
        make: Option<MakeCredentials>,
        fixed: HeaderMap,
    ) -> Result<Self, PubsubError> {
        let kept = Kept {
            credentials: make.as_ref().map(|make| make()).transpose()?,
            renewed_at: None,
            number: 0,
            headers: None,
            tag: None,
            asked_at: Instant::now(),
        };
        Ok(Self { make, fixed, kept: Mutex::new(kept) })
    }

    /// Returns a copy of the headers, with a valid token.
    pub(crate) async fn get(&self) -> Result<(HeaderMap, TokenNumber), PublishFailure> {
        loop {
            let (credentials, tag) = match self.look() {
                Look::Fresh(headers, number) => return Ok((headers, number)),
                Look::Stale(credentials, tag) => (credentials, tag),
            };
            let mut extensions = Extensions::new();
            if let Some(tag) = tag {
                extensions.insert(tag);
            }
            let asked = timeout(TOKEN_TIMEOUT, credentials.headers(extensions)).await;
            let answer = asked.map_err(|_| too_late())?;
            let headers = match answer.map_err(|error| self.token_failure(&error))? {
                // The cache is empty if the service refused the token meanwhile.
                CacheableResource::NotModified => self.kept().copy(),
                CacheableResource::New { entity_tag, data } => Some(self.keep(entity_tag, &data)),
            };
            if let Some(headers) = headers {
                return Ok(headers);
            }
        }
    }

    /// Recreates the credentials after a permanent error, because the library never retries then.
    fn token_failure(&self, error: &CredentialsError) -> PublishFailure {
        if !error.is_transient() {
            self.renew(None);
        }
        refused(error)
    }

    /// Recreates the credentials after the service refused the token with this number, or any token
    /// if `None`. If the refused token is not the newest, the request only has to be sent again.
    pub(crate) fn renew(&self, number: Option<TokenNumber>) -> Renewal {
        let Some(make) = &self.make else { return Renewal::TooSoon };
        let mut kept = self.kept();
        if number.is_some_and(|TokenNumber(number)| number != kept.number) {
            return Renewal::Renewed;
        }
        kept.headers = None;
        if kept.renewed_at.is_some_and(|at| at.elapsed() < RENEWAL_PAUSE) {
            return Renewal::TooSoon;
        }
        kept.renewed_at = Some(Instant::now());
        match make() {
            Ok(credentials) => {
                tracing::debug!("credentials are made again");
                kept.credentials = Some(credentials);
                kept.number += 1;
                Renewal::Renewed
            }
            Err(error) => {
                tracing::debug!(%error, "credentials cannot be made again");
                Renewal::TooSoon
            }
        }
    }

    fn look(&self) -> Look {
        let mut kept = self.kept();
        let Some(credentials) = kept.credentials.clone() else {
            return Look::Fresh(self.fixed.clone(), TokenNumber(kept.number));
        };
        match &kept.headers {
            Some(headers) if kept.asked_at.elapsed() < KEPT_FOR => {
                Look::Fresh(headers.clone(), TokenNumber(kept.number))
            }
            Some(_) => {
                // Only this request asks the library. The others continue with the cached headers.
                kept.asked_at = Instant::now();
                Look::Stale(credentials, kept.tag.clone())
            }
            None => Look::Stale(credentials, None),
        }
    }

    fn keep(&self, tag: EntityTag, credentials: &HeaderMap) -> (HeaderMap, TokenNumber) {
        let mut headers = self.fixed.clone();
        for (name, value) in credentials {
            // The operator's setting (the quota project) overrides that of the credentials.
            headers.entry(name).or_insert_with(|| value.clone());
        }
        let mut kept = self.kept();
        kept.number += u64::from(kept.tag.as_ref() != Some(&tag));
        kept.headers = Some(headers.clone());
        kept.tag = Some(tag);
        kept.asked_at = Instant::now();
        (headers, TokenNumber(kept.number))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn copy(&self) -> Option<(HeaderMap, TokenNumber)> {
        Some((self.headers.clone()?, TokenNumber(self.number)))
    }
}

enum Look {
    Fresh(HeaderMap, TokenNumber),
    Stale(Credentials, Option<EntityTag>),
}

fn too_late() -> PublishFailure {
    let waited = TOKEN_TIMEOUT.as_secs();
    classify(Code::Unavailable, format!("{NO_TOKEN} within {waited} s"))
}

fn refused(error: &CredentialsError) -> PublishFailure {
    let code = if error.is_transient() { Code::Unavailable } else { Code::Unauthenticated };
    classify(code, format!("{NO_TOKEN}: {}", reason(error)))
}

/// Shows only the library's own text, because its sources may quote the token endpoint's answer. One of
/// its texts says nothing but that nobody answers.
fn reason(error: &CredentialsError) -> String {
    let text = error.to_string();
    match text.starts_with("Fetching the token resulted in transient errors") {
        true => "the source of tokens does not answer; without a credentials file that is the metadata server"
            .to_owned(),
        false => text,
    }
}

/// Describes where the application default credentials were looked for.
pub(crate) fn searched() -> String {
    let variable = |name| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let of_gcloud = variable("HOME")
        .map(|home| home.join(".config/gcloud/application_default_credentials.json"))
        .map(|path| (path.exists(), path));
    describe_search(variable("GOOGLE_APPLICATION_CREDENTIALS"), of_gcloud)
}

/// The file that a variable names, and whether gcloud's own file exists.
fn describe_search(named: Option<PathBuf>, of_gcloud: Option<(bool, PathBuf)>) -> String {
    match (named, of_gcloud) {
        (Some(path), _) => {
            format!("GOOGLE_APPLICATION_CREDENTIALS names {}", path.display())
        }
        (None, Some((true, path))) => format!("they are in {}", path.display()),
        (None, of_gcloud) => {
            let file = of_gcloud.map_or_else(
                || "HOME is not set".to_owned(),
                |(_, path)| format!("{} does not exist", path.display()),
            );
            format!(
                "GOOGLE_APPLICATION_CREDENTIALS is not set, {file}, and no metadata server of \
                 Google Cloud answers"
            )
        }
    }
}

impl fmt::Debug for RequestHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHeaders").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_credentials_were_looked_for() {
        let path = PathBuf::from;
        let cases = [
            (Some(path("/k.json")), None, "GOOGLE_APPLICATION_CREDENTIALS names /k.json"),
            (None, Some((true, path("/h/adc.json"))), "they are in /h/adc.json"),
            (
                None,
                Some((false, path("/h/adc.json"))),
                "GOOGLE_APPLICATION_CREDENTIALS is not set, /h/adc.json does not exist, and no \
                 metadata server of Google Cloud answers",
            ),
            (
                None,
                None,
                "GOOGLE_APPLICATION_CREDENTIALS is not set, HOME is not set, and no metadata \
                 server of Google Cloud answers",
            ),
        ];
        for (named, of_gcloud, expected) in cases {
            assert_eq!(describe_search(named, of_gcloud), expected);
        }
    }
}
