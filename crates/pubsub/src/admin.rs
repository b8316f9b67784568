//! Checks and creates topics. For `init` and `check`, never in the data path (I9).

use std::fmt;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::{GetTopicRequest, MessageStoragePolicy, Topic};
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status};

use crate::channel::AuthorisedChannel;
use crate::classify::call_code;
use crate::config::Endpoint;
use crate::error::{Answer, PubsubError};

/// The time limit of a call. It outlasts a brief failure of the service, and an operator can wait
/// for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a wait is reported.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// The pause between two attempts while the service does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// The settings of a topic that is created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicSettings {
    /// How long messages are retained, acknowledged ones included. `None`: not at all.
    pub retention: Option<Duration>,
    /// The regions that may store messages. Empty: every region.
    pub regions: Vec<String>,
}

impl TopicSettings {
    fn of_topic(&self, topic: &str) -> Topic {
        let is_pinned = !self.regions.is_empty();
        let pinned = || MessageStoragePolicy {
            allowed_persistence_regions: self.regions.clone(),
            ..MessageStoragePolicy::default()
        };
        Topic {
            name: topic.to_owned(),
            message_retention_duration: self.retention.and_then(|it| it.try_into().ok()),
            message_storage_policy: is_pinned.then(pinned),
            ..Topic::default()
        }
    }
}

/// A client that reads and creates topics.
#[derive(Clone)]
pub struct Admin {
    authorised: AuthorisedChannel,
    endpoint: String,
}

impl Admin {
    /// Creates a client for `endpoint`, with the application default credentials or none for an
    /// emulator. Connects on first use.
    ///
    /// # Errors
    ///
    /// No credentials were found, or TLS cannot be set up.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, PubsubError> {
        let authorised = AuthorisedChannel::open(endpoint)?;
        Ok(Self { authorised, endpoint: endpoint.to_string() })
    }

    /// Whether `topic` (`projects/P/topics/T`) exists.
    pub async fn topic_exists(&self, topic: &str) -> Result<bool, PubsubError> {
        Ok(self.topic(topic).await?.is_some())
    }

    /// The settings of `topic` (`projects/P/topics/T`), or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// The account lacks roles/pubsub.viewer.
    pub async fn topic(&self, topic: &str) -> Result<Option<Box<Topic>>, PubsubError> {
        let call = async || {
            let message = GetTopicRequest { topic: topic.to_owned() };
            let request = self.authorised.request("topic", topic, message).await?;
            self.client().get_topic(request).await
        };
        self.answer("look up", topic, Code::NotFound, call).await
    }

    /// Creates `topic`. An existing topic stays unchanged.
    pub async fn create_topic(
        &self,
        topic: &str,
        settings: &TopicSettings,
    ) -> Result<(), PubsubError> {
        let call = async || {
            let message = settings.of_topic(topic);
            let request = self.authorised.request("name", topic, message).await?;
            self.client().create_topic(request).await
        };
        self.answer("create", topic, Code::AlreadyExists, call).await.map(drop)
    }

    fn client(&self) -> PublisherClient<tonic::transport::Channel> {
        PublisherClient::new(self.authorised.channel())
    }

    /// Calls until the service answers. Returns the topic, or `None` if the answer has the code
    /// `otherwise`. For idempotent calls only.
    async fn answer(
        &self,
        action: &'static str,
        topic: &str,
        otherwise: Code,
        call: impl AsyncFn() -> Result<Response<Topic>, Status>,
    ) -> Result<Option<Box<Topic>>, PubsubError> {
        let mut last = None;
        // Boxed, because a topic has many fields and the future of every caller would contain them.
        let mut calls = Box::pin(until_answered(call, &mut last));
        let answered = timeout(ANSWER_TIMEOUT, async {
            if let Ok(done) = timeout(SILENT_FOR, &mut calls).await {
                return done;
            }
            let patience = ANSWER_TIMEOUT;
            let endpoint = &self.endpoint;
            tracing::warn!(
                action,
                topic,
                endpoint,
                ?patience,
                "Pub/Sub does not answer yet; trying again"
            );
            calls.await
        });
        let answered = answered.await;
        let topic = topic.to_owned();
        match answered {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(status)) if status.code() == otherwise => Ok(None),
            Ok(Err(status)) => Err(PubsubError::Topic {
                action,
                topic,
                code: call_code(status.code()),
                source: Box::new(Answer::of(&status)),
            }),
            Err(_) => {
                let endpoint = self.endpoint.clone();
                Err(PubsubError::NoAnswer {
                    endpoint,
                    action,
                    topic,
                    waited: ANSWER_TIMEOUT,
                    source: last,
                })
            }
        }
    }
}

/// Calls until the service answers. Stores the latest failure without an answer in `last`.
async fn until_answered(
    call: impl AsyncFn() -> Result<Response<Topic>, Status>,
    last: &mut Option<Box<Answer>>,
) -> Result<Box<Topic>, Status> {
    loop {
        let status = match call().await {
            Ok(found) => return Ok(Box::new(found.into_inner())),
            Err(status) => status,
        };
        let is_answer =
            !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Internal);
        if is_answer {
            return Err(status);
        }
        *last = Some(Box::new(Answer::of(&status)));
        sleep(PAUSE).await;
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
