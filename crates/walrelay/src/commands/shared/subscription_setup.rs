//! The subscription of a new consumer: creates it, or checks an existing one.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{DeadLetterPolicy, Subscription};
use tokio::time::timeout;
use walrelay_core::CallCode;
use walrelay_errors::{Chain, Code};
use walrelay_inbox::{DELIVERY_ATTEMPTS_MAX, InboxError, SubscriptionWarning};
use walrelay_outbox_admin::protocols::ProtocolError;
use walrelay_pubsub::{Admin, Endpoint, PubsubError, Subscriber};

use super::answer_timeout::ANSWER_TIMEOUT;
use super::dead_letters;
use super::dead_letters::NewDeadLetters;
use super::ordered_subscription::ordered;
use super::set_up_report::SetUpReport;
use crate::error::Error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct NewSubscription {
    /// Full name of its topic.
    pub(in crate::commands) topic: String,
    /// Full name of the dead-letter topic.
    pub(in crate::commands) dead_letter_topic: Option<String>,
    pub(in crate::commands) dead_letters: Option<NewDeadLetters>,
    pub(in crate::commands) exactly_once: bool,
    /// Filter in Pub/Sub's syntax. Empty accepts every message.
    pub(in crate::commands) filter: String,
}

/// Creates the subscription. An existing subscription must have the same topic, ordering and
/// filter.
///
/// # Errors
///
/// An existing subscription differs, or a topic is missing.
pub(in crate::commands) async fn create(
    endpoint: &Endpoint,
    name: &str,
    new: &NewSubscription,
    report: &mut SetUpReport<'_>,
) -> Result<(), Error> {
    let subscriber = Subscriber::connect(endpoint)?;
    let wanted = wanted(name, new);
    if let (Some(letters), Some(topic)) = (&new.dead_letters, &new.dead_letter_topic) {
        // A subscription that is refused leaves no dead-letter topic behind.
        if let Some(found) = subscriber.subscription(name).await? {
            refuse_other(&found, &wanted)?;
        }
        dead_letters::create(endpoint, topic, letters, report).await?;
    }
    let is_new = match subscriber.create_subscription(wanted.clone()).await {
        Ok(is_new) => is_new,
        Err(error) => {
            let topics = [Some(&new.topic), new.dead_letter_topic.as_ref()];
            return Err(or_topic_missing(
                error,
                endpoint,
                topics.into_iter().flatten().map(String::as_str),
            )
            .await);
        }
    };
    if !is_new && let Some(found) = subscriber.subscription(name).await? {
        refuse_other(&found, &wanted)?;
        if new.dead_letters.is_none() {
            remark(&subscriber, &found).await;
        }
    }
    report.add(is_new, format!("subscription {name}"))?;
    match (&new.dead_letters, &new.dead_letter_topic) {
        (Some(letters), Some(topic)) => {
            dead_letters::grant(endpoint, name, topic, letters, report).await
        }
        _ => Ok(()),
    }
}

/// Returns whether the subscription exists. If Pub/Sub cannot be asked, logs a warning and returns
/// `None`.
pub(in crate::commands) async fn exists(endpoint: &Endpoint, name: &str) -> Option<bool> {
    let asked = timeout(ANSWER_TIMEOUT, async {
        let subscriber = Subscriber::connect(endpoint)?;
        let found = subscriber.subscription(name).await?;
        if let Some(found) = &found {
            remark(&subscriber, found).await;
        }
        Ok::<_, PubsubError>(found.is_some())
    });
    let problem = match asked.await {
        Ok(Ok(exists)) => return Some(exists),
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()),
    };
    tracing::warn!(subscription = name, problem, "it is unknown whether the subscription exists");
    None
}

/// Logs warnings about settings that harm its consumer.
async fn remark(subscriber: &Subscriber, subscription: &Subscription) {
    for it in SubscriptionWarning::read(subscriber, subscription).await {
        let name = &subscription.name;
        tracing::warn!(subscription = name, "the subscription {}; {}", it.told(), it.fix());
    }
}

/// Returns a subscription that is ordered, retains acknowledged messages and never expires.
fn wanted(name: &str, new: &NewSubscription) -> Subscription {
    Subscription {
        filter: new.filter.clone(),
        dead_letter_policy: new.dead_letter_topic.clone().map(|topic| DeadLetterPolicy {
            dead_letter_topic: topic,
            max_delivery_attempts: DELIVERY_ATTEMPTS_MAX,
        }),
        enable_exactly_once_delivery: new.exactly_once,
        ..ordered(name, &new.topic)
    }
}

/// Replaces Pub/Sub's NOT_FOUND by an error that names the missing topic. Pub/Sub returns the same
/// code for a missing topic and a wrong project.
pub(in crate::commands) async fn or_topic_missing(
    error: PubsubError,
    endpoint: &Endpoint,
    topics: impl IntoIterator<Item = &str>,
) -> Error {
    if !matches!(error, PubsubError::Subscription { code: CallCode::NotFound, .. }) {
        return error.into();
    }
    let Ok(admin) = Admin::connect(endpoint) else { return error.into() };
    for topic in topics {
        if matches!(admin.topic_exists(topic).await, Ok(false)) {
            return ProtocolError::TopicMissing { topic: topic.to_owned() }.into();
        }
    }
    error.into()
}

/// Refuses an existing subscription unless it delivers the same messages in the same order.
fn refuse_other(found: &Subscription, wanted: &Subscription) -> Result<(), Error> {
    let mut differs = Vec::new();
    if found.topic != wanted.topic {
        differs.push(format!("its topic is {}, not {}", found.topic, wanted.topic));
    }
    if !found.enable_message_ordering {
        differs.push("it does not deliver in order".to_owned());
    }
    if found.filter != wanted.filter {
        differs.push(match found.filter.as_str() {
            "" => "it has no filter".to_owned(),
            filter => format!("its filter is {filter:?}"),
        });
    }
    let letters = |of: &Subscription| {
        of.dead_letter_policy.as_ref().map(|policy| policy.dead_letter_topic.clone())
    };
    if let Some(topic) = letters(wanted).filter(|topic| letters(found).as_ref() != Some(topic)) {
        // The only setting that can be changed later.
        if differs.is_empty() {
            return Err(without_dead_letters(&wanted.name, &topic));
        }
        differs.push("it does not send dead letters to that topic".to_owned());
    }
    match differs.is_empty() {
        true => Ok(()),
        false => Err(Error::Inbox(InboxError::OtherKind {
            subscription: wanted.name.clone(),
            differs: differs.join("; "),
        })),
    }
}

/// Returns the error for an existing subscription that lacks only the dead-letter topic.
fn without_dead_letters(subscription: &str, topic: &str) -> Error {
    Error::Refused {
        code: Code::SubscriptionDiffers,
        what: format!(
            "subscription {subscription} exists, and does not send dead letters to {topic}"
        ),
        fix: Some(format!(
            "if the topic does not exist, `walrelay init --create-topics={topic}`; then `gcloud pubsub subscriptions \
             update {subscription} --dead-letter-topic={topic} --max-delivery-attempts={DELIVERY_ATTEMPTS_MAX}`, and run \
             this command again"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_what_would_have_been_created_is_named() {
        let new = NewSubscription {
            topic: "projects/p/topics/order.events".to_owned(),
            dead_letter_topic: None,
            dead_letters: None,
            exactly_once: false,
            filter: String::new(),
        };
        let asked = wanted("s", &new);
        assert!(refuse_other(&asked, &asked).is_ok());
        let other = Subscription {
            topic: "_deleted-topic_".to_owned(),
            enable_message_ordering: false,
            filter: "attributes:x".to_owned(),
            ..asked.clone()
        };
        let letters = Some("projects/p/topics/dead".to_owned());
        let with_letters = wanted("s", &NewSubscription { dead_letter_topic: letters, ..new });
        let lacking = refuse_other(&asked, &with_letters).expect_err("it has no dead letters");
        let update = "gcloud pubsub subscriptions update s --dead-letter-topic=projects/p/topics/dead \
                      --max-delivery-attempts=100";
        assert!(lacking.report().contains(update), "{}", lacking.report());
        assert_eq!(lacking.exit().code(), 3);
        assert!(refuse_other(&with_letters, &asked).is_ok());
        assert!(asked.retain_acked_messages, "a seek to an earlier time finds messages");
        let error = refuse_other(&other, &asked).expect_err("it is another one");
        assert_eq!(error.exit().code(), 3);
        let text = error.report();
        for part in [
            "its topic is _deleted-topic_, not",
            "not deliver in order",
            "its filter is \"attributes:x\"",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
