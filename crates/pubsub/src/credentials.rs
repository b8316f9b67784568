//! The headers that say who we are, kept so that a request pays only for a copy.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use google_cloud_auth::credentials::{Builder, CacheableResource, Credentials, EntityTag};
use google_cloud_auth::errors::CredentialsError;
use http::{Extensions, HeaderMap};
use rustls_native_certs::load_native_certs;
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::classify::classify;
use crate::error::PubsubError;
use walrelay_core::PublishFailure;

/// The widest scope; what the account may do is decided by its roles.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// How old a copied token may be before the library is asked again. The library renews tokens
/// minutes before they expire, so a second changes nothing, and asking costs more than a request
/// with one message has to spare.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// How long a request waits for a token. The library tries again in the background, so the next request
/// may find one.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(15);

/// How often credentials are made from scratch at most, while the service refuses their tokens.
const RENEWAL_PAUSE: Duration = Duration::from_secs(30);

/// The application default credentials.
pub(crate) fn application_default() -> Result<Credentials, PubsubError> {
    // Where there are none the library's client panics.
    if load_native_certs().certs.is_empty() {
        return Err(PubsubError::NoAuthorities);
    }
    Builder::default()
        .with_scopes([SCOPE])
        .build()
        .map_err(|error| PubsubError::Credentials(Box::new(error)))
}

/// Makes credentials, with nothing kept of those before.
pub(crate) type MakeCredentials = Box<dyn Fn() -> Result<Credentials, PubsubError> + Send + Sync>;

/// Every request's headers: the fixed ones, and those of the credentials.
///
/// The library renews a token minutes before it expires. It does not learn that the service refuses a
/// token before that (a clock that is behind, a key that was replaced), and after an error that it takes
/// for permanent it never asks again. In both cases the credentials are made again.
pub(crate) struct RequestHeaders {
    make: Option<MakeCredentials>,
    fixed: HeaderMap,
    kept: Mutex<Kept>,
}

/// Which token a request was sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenNumber(u64);

/// Whether a request may succeed that was refused because of its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The next token is another one.
    Renewed,
    /// Credentials were made again only just now.
    TooSoon,
}

struct Kept {
    /// None where no credentials are needed.
    credentials: Option<Credentials>,
    renewed_at: Option<Instant>,
    number: u64,
    headers: Option<HeaderMap>,
    tag: Option<EntityTag>,
    asked_at: Instant,
}

impl RequestHeaders {
    /// The first credentials are made at once, so that missing ones are known.
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

    /// A copy of the headers, with a valid token.
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
            let headers = match answer.map_err(|error| self.not_obtained(&error))? {
                // Nothing is kept where the service has refused the token meanwhile.
                CacheableResource::NotModified => self.kept().copy(),
                CacheableResource::New { entity_tag, data } => Some(self.keep(entity_tag, &data)),
            };
            if let Some(headers) = headers {
                return Ok(headers);
            }
        }
    }

    /// After a permanent error the library never asks again, so the credentials are made again.
    fn not_obtained(&self, error: &CredentialsError) -> PublishFailure {
        if !error.is_transient() {
            self.renew(None);
        }
        refused(error)
    }

    /// Makes the credentials again: the service refused this token, or whatever is kept. A request that
    /// was sent with an older token than the newest only has to be sent again.
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
                // Only this request asks; the others go on with what is kept.
                kept.asked_at = Instant::now();
                Look::Stale(credentials, kept.tag.clone())
            }
            None => Look::Stale(credentials, None),
        }
    }

    fn keep(&self, tag: EntityTag, credentials: &HeaderMap) -> (HeaderMap, TokenNumber) {
        let mut headers = self.fixed.clone();
        for (name, value) in credentials {
            // What the operator set (the quota project) beats what the credentials bring along.
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
    classify(Code::Unavailable, format!("no access token within {waited} s"))
}

/// Only the library's own words: its sources may quote the token endpoint's answer.
fn refused(error: &CredentialsError) -> PublishFailure {
    let code = if error.is_transient() { Code::Unavailable } else { Code::Unauthenticated };
    classify(code, format!("no access token: {error}"))
}

impl fmt::Debug for RequestHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHeaders").finish_non_exhaustive()
    }
}
