//! Topics: does it exist, create it. For `init` and `check`, never in the data path (I9).

use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::Error;
use google_cloud_pubsub::client::TopicAdmin;
use tokio::time::timeout;

use crate::config::Endpoint;
use crate::credentials::application_default;
use crate::error::PubsubError;

/// Longer than the client's own retries need over a hiccup; a person waits for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Looks topics up and creates them.
#[derive(Debug, Clone)]
pub struct Admin {
    client: TopicAdmin,
    patience: Duration,
}

impl Admin {
    /// A client for `endpoint`, with the application default credentials or none for an emulator.
    ///
    /// # Errors
    ///
    /// No credentials were found, or the client cannot be made.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self, PubsubError> {
        let credentials = if endpoint.is_emulator() {
            anonymous::Builder::new().build()
        } else {
            application_default()?
        };
        let client = TopicAdmin::builder()
            .with_endpoint(endpoint.to_string())
            .with_credentials(credentials)
            .build()
            .await
            .map_err(|error| PubsubError::AdminClient(Box::new(error)))?;
        Ok(Self { client, patience: ANSWER_TIMEOUT })
    }

    /// The same, for somebody who waits this long for an answer.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whether `topic` (`projects/P/topics/T`) exists.
    ///
    /// # Errors
    ///
    /// The service did not answer, or does not let us look: roles/pubsub.viewer is needed.
    pub async fn topic_exists(&self, topic: &str) -> Result<bool, PubsubError> {
        const ACTION: &str = "look up";
        let call = self.client.get_topic().set_topic(topic).send();
        match timeout(self.patience, call).await {
            Err(_) => Err(self.no_answer(ACTION, topic)),
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if code(&error) == Some("NOT_FOUND") => Ok(false),
            Ok(Err(error)) => Err(refused(ACTION, topic, error)),
        }
    }

    /// Creates `topic`; one that is there already stays as it is.
    ///
    /// # Errors
    ///
    /// The service did not answer, or refuses.
    pub async fn create_topic(&self, topic: &str) -> Result<(), PubsubError> {
        const ACTION: &str = "create";
        let call = self.client.create_topic().set_name(topic).send();
        match timeout(self.patience, call).await {
            Err(_) => Err(self.no_answer(ACTION, topic)),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if code(&error) == Some("ALREADY_EXISTS") => Ok(()),
            Ok(Err(error)) => Err(refused(ACTION, topic, error)),
        }
    }

    fn no_answer(&self, action: &'static str, topic: &str) -> PubsubError {
        PubsubError::NoAnswer { action, topic: topic.to_owned(), waited: self.patience }
    }
}

fn code(error: &Error) -> Option<&'static str> {
    error.status().map(|status| status.code.name())
}

fn refused(action: &'static str, topic: &str, error: Error) -> PubsubError {
    let code = code(&error);
    PubsubError::Topic { action, topic: topic.to_owned(), code, source: Box::new(error) }
}
