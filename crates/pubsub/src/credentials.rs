//! The headers that say who we are, kept so that a request pays only for a copy.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use google_cloud_auth::credentials::{Builder, CacheableResource, Credentials, EntityTag};
use google_cloud_auth::errors::CredentialsError;
use http::{Extensions, HeaderMap};
use rustls_native_certs::load_native_certs;
use tokio::time::Instant;
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

/// Every request's headers: the fixed ones, and those of the credentials.
pub(crate) struct RequestHeaders {
    credentials: Option<Credentials>,
    fixed: HeaderMap,
    kept: Mutex<Kept>,
}

struct Kept {
    headers: Option<HeaderMap>,
    tag: Option<EntityTag>,
    asked_at: Instant,
}

impl RequestHeaders {
    pub(crate) fn new(credentials: Option<Credentials>, fixed: HeaderMap) -> Self {
        let kept = Kept { headers: None, tag: None, asked_at: Instant::now() };
        Self { credentials, fixed, kept: Mutex::new(kept) }
    }

    /// A copy of the headers, with a valid token.
    pub(crate) async fn get(&self) -> Result<HeaderMap, PublishFailure> {
        let Some(credentials) = &self.credentials else { return Ok(self.fixed.clone()) };
        let tag = match self.look() {
            Look::Fresh(headers) => return Ok(headers),
            Look::Stale(tag) => tag,
        };
        let mut extensions = Extensions::new();
        if let Some(tag) = tag {
            extensions.insert(tag);
        }
        match credentials.headers(extensions).await.map_err(|error| refused(&error))? {
            CacheableResource::NotModified => Ok(self.kept().headers.clone().unwrap_or_default()),
            CacheableResource::New { entity_tag, data } => Ok(self.keep(entity_tag, data)),
        }
    }

    fn look(&self) -> Look {
        let mut kept = self.kept();
        match &kept.headers {
            Some(headers) if kept.asked_at.elapsed() < KEPT_FOR => Look::Fresh(headers.clone()),
            Some(_) => {
                // Only this request asks; the others go on with what is kept.
                kept.asked_at = Instant::now();
                Look::Stale(kept.tag.clone())
            }
            None => Look::Stale(None),
        }
    }

    fn keep(&self, tag: EntityTag, credentials: HeaderMap) -> HeaderMap {
        let mut headers = self.fixed.clone();
        for (name, value) in &credentials {
            // What the operator set (the quota project) beats what the credentials bring along.
            headers.entry(name).or_insert_with(|| value.clone());
        }
        let mut kept = self.kept();
        kept.headers = Some(headers.clone());
        kept.tag = Some(tag);
        kept.asked_at = Instant::now();
        headers
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Look {
    Fresh(HeaderMap),
    Stale(Option<EntityTag>),
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
