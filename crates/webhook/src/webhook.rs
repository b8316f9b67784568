//! One request per event.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::{Client, Response, redirect};
use tokio::sync::OnceCell;
use walrelay_errors::{Chain, in_a_line};
use walrelay_inbox::{Deliver, Event, Fault, Undelivered};
use walrelay_pubsub::{GoogleTokens, PubsubError, client_tls};

use crate::answer::{fault_of, retry_after};
use crate::headers::describe;
use crate::secrets::Secrets;
use crate::target::{Target, encoded};

const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The bytes of an answer that are read. The rest says nothing more, and costs memory and time.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The time for which an idle connection is used again. Many servers close theirs after five seconds, and a request
/// that meets this moment has no answer.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// The characters of a refusal that the inbox stores.
const DETAIL_CHARACTERS_MAX: usize = 300;

/// How the service knows who sends a request, beside the signature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Auth {
    /// By the signature alone.
    #[default]
    None,
    /// By an identity token of Google's credentials, whose audience is the service.
    GoogleIdToken,
}

/// The settings of a webhook.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// The service.
    pub target: Target,
    /// The token of each request.
    pub auth: Auth,
    /// The secrets that sign each request, if any.
    pub secrets: Option<Secrets>,
    /// The authorities in PEM form instead of the public ones.
    pub authorities: Option<Vec<u8>>,
    /// The time in which the service must answer.
    pub timeout: Duration,
}

/// A service that receives events.
#[derive(Debug)]
pub struct Webhook {
    target: Target,
    client: Client,
    secrets: Option<Secrets>,
    /// Looked for at the first request, if tokens are wanted.
    tokens: Option<OnceCell<GoogleTokens>>,
}

impl Webhook {
    /// Prepares requests. Sends nothing.
    ///
    /// # Errors
    ///
    /// An authority cannot be read.
    pub fn new(settings: WebhookSettings) -> Result<Self, PubsubError> {
        let WebhookSettings { target, auth, secrets, authorities, timeout } = settings;
        let client = Client::builder()
            .tls_backend_preconfigured(client_tls(authorities.as_deref())?)
            .redirect(redirect::Policy::none())
            .http1_only()
            .no_proxy()
            .pool_idle_timeout(IDLE_MAX)
            // Half of the time, so that an address that swallows packets is known as not reached.
            .connect_timeout(timeout / 2)
            .user_agent(concat!("walrelay/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| PubsubError::Channel(Box::new(error)))?;
        let tokens = (auth == Auth::GoogleIdToken).then(OnceCell::new);
        Ok(Self { target, client, secrets, tokens })
    }

    /// Asks the service for an answer of any kind, with the method HEAD, which changes nothing.
    ///
    /// # Errors
    ///
    /// The service was not reached.
    pub async fn probe(&self) -> Result<StatusCode, Undelivered> {
        let sent = self.client.head(self.target.url()).send().await;
        sent.map(|answer| answer.status()).map_err(|error| self.unanswered(error))
    }

    /// Returns whether a request proves who sent it.
    #[must_use]
    pub fn proves_sender(&self) -> bool {
        self.secrets.is_some() || self.tokens.is_some() || self.target.has_user()
    }

    async fn post(&self, event: &Event) -> Result<Response, Undelivered> {
        let mut headers = describe(event);
        let id = encoded(&event.event_id, ".");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if let Some(secrets) = &self.secrets {
            let keys = secrets.keys().map_err(|error| self.failed(Fault::Operator, &error))?;
            let signed = keys.sign(id.to_str().unwrap_or_default(), now.as_secs(), &event.data);
            headers.extend(HeaderValue::try_from(signed).map(|it| (SIGNATURE, it)).ok());
        }
        headers.insert("webhook-id", id);
        headers.insert("webhook-timestamp", HeaderValue::from(now.as_secs()));
        let mut request = self.client.post(self.target.url()).headers(headers);
        if let Some(tokens) = &self.tokens {
            let find = async || GoogleTokens::of_identity(&self.target.origin());
            let unavailable = |error: PubsubError| self.failed(Fault::Unreachable, &error);
            let tokens = tokens.get_or_try_init(find).await.map_err(unavailable)?;
            request = request.bearer_auth(tokens.get().await.map_err(unavailable)?);
        }
        let sent = request.body(event.data.clone()).send().await;
        sent.map_err(|error| self.unanswered(error))
    }

    /// Reads an answer to its end, or to the limit. Half an answer is none.
    async fn read(&self, answer: &mut Response) -> Result<Vec<u8>, Undelivered> {
        let mut read = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.unanswered(error))? {
            let room = ANSWER_BYTES_MAX.saturating_sub(read.len());
            read.extend(chunk.iter().take(room));
            if read.len() >= ANSWER_BYTES_MAX {
                break;
            }
        }
        Ok(read)
    }

    fn unanswered(&self, error: reqwest::Error) -> Undelivered {
        let fault = if error.is_connect() { Fault::Unreachable } else { Fault::Attempt };
        // The library's error prints the whole URL.
        self.failed(fault, &error.without_url())
    }

    fn failed(&self, fault: Fault, error: &(dyn std::error::Error + 'static)) -> Undelivered {
        Undelivered {
            fault,
            code: "HTTP_NO_ANSWER".to_owned(),
            text: format!("{self}: {}", Chain(error)),
            detail: None,
            retry_after: None,
        }
    }
}

impl Deliver for Webhook {
    async fn deliver(&self, event: &Event) -> Result<(), Undelivered> {
        let mut answer = self.post(event).await?;
        let status = answer.status();
        let retry_after = retry_after(answer.headers(), SystemTime::now());
        let read = self.read(&mut answer).await;
        let Some(fault) = fault_of(status) else { return read.map(drop) };
        // The status of a refusal counts, also if the rest of the answer is missing.
        let text = String::from_utf8_lossy(&read.unwrap_or_default()).trim().to_owned();
        // The inbox stores no zero byte.
        let detail: String = in_a_line(&text).chars().take(DETAIL_CHARACTERS_MAX).collect();
        Err(Undelivered {
            fault,
            code: format!("HTTP_{}", status.as_u16()),
            text: format!("{self}: {status}"),
            detail: Some(detail).filter(|it| !it.is_empty()),
            retry_after,
        })
    }
}

impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "POST {}", self.target)
    }
}
