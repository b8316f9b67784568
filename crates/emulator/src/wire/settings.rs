//! Production's limits on the settings of topics, subscriptions and snapshots.
//!
//! Sources: the comments of google/pubsub/v1/pubsub.proto, and "Requirements for labels" of Google
//! Cloud.

use std::collections::BTreeMap;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

const RETENTION_MIN: Duration = Duration::from_mins(10);
const RETENTION_MAX: Duration = Duration::from_hours(31 * 24);
/// The shortest time after which an inactive subscription can expire.
const EXPIRY_MIN: Duration = Duration::from_hours(24);
/// The longest delay of a redelivery, which is also the default of the maximum.
const BACKOFF_MAX: Duration = Duration::from_mins(10);
/// The default of the shortest delay of a redelivery.
const BACKOFF_MIN_DEFAULT: Duration = Duration::from_secs(10);
const LABELS_MAX: usize = 64;
const LABEL_CHARACTERS_MAX: usize = 63;

/// Checks the settings of a topic. Returns the time for which the topic retains its messages.
pub(crate) fn check_topic(config: &proto::Topic) -> Result<Option<Duration>, Status> {
    check_labels(&config.labels)?;
    let regions = config.message_storage_policy.as_ref();
    if regions.is_some_and(|policy| policy.allowed_persistence_regions.is_empty()) {
        return Err(Status::invalid_argument(
            "message_storage_policy: allowed_persistence_regions is empty; give at least one region",
        ));
    }
    config.message_retention_duration.map(retention).transpose()
}

/// Checks the settings of a subscription, except its deadline, filter and dead-letter policy.
pub(crate) fn check_subscription(config: &proto::Subscription) -> Result<(), Status> {
    check_labels(&config.labels)?;
    if let Some(ttl) = config.expiration_policy.and_then(|policy| policy.ttl)
        && Duration::try_from(ttl).map_or(true, |ttl| ttl < EXPIRY_MIN)
    {
        return Err(Status::invalid_argument(format!(
            "an expiration_policy.ttl of {ttl} is out of range: at least 86400s is allowed"
        )));
    }
    config.retry_policy.as_ref().map_or(Ok(()), check_retry_policy)
}

/// Checks a `message_retention_duration`.
pub(crate) fn retention(duration: prost_types::Duration) -> Result<Duration, Status> {
    let refused = || {
        Status::invalid_argument(format!(
            "a message_retention_duration of {duration} is out of range: 600s to 2678400s are allowed"
        ))
    };
    let period = Duration::try_from(duration).map_err(|_| refused())?;
    match (RETENTION_MIN..=RETENTION_MAX).contains(&period) {
        true => Ok(period),
        false => Err(refused()),
    }
}

pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Status> {
    if labels.len() > LABELS_MAX {
        return Err(Status::invalid_argument(format!(
            "a resource has {} labels; at most {LABELS_MAX} are allowed",
            labels.len()
        )));
    }
    let malformed = labels.iter().find(|(key, value)| {
        !key.starts_with(is_label_letter) || !is_label_text(key) || !is_label_text(value)
    });
    match malformed {
        Some((key, value)) => Err(Status::invalid_argument(format!(
            "malformed label {key:?}: {value:?}: keys begin with a lowercase letter; keys and values \
             have at most {LABEL_CHARACTERS_MAX} lowercase letters, digits, - and _"
        ))),
        None => Ok(()),
    }
}

fn is_label_text(text: &str) -> bool {
    text.chars().count() <= LABEL_CHARACTERS_MAX
        && text.chars().all(|c| is_label_letter(c) || c.is_numeric() || "-_".contains(c))
}

/// International letters are allowed as well.
fn is_label_letter(c: char) -> bool {
    c.is_alphabetic() && !c.is_uppercase()
}

fn check_retry_policy(policy: &proto::RetryPolicy) -> Result<(), Status> {
    let minimum = backoff("minimum_backoff", policy.minimum_backoff, BACKOFF_MIN_DEFAULT)?;
    let maximum = backoff("maximum_backoff", policy.maximum_backoff, BACKOFF_MAX)?;
    match minimum > maximum {
        true => Err(Status::invalid_argument(format!(
            "retry_policy: minimum_backoff is {minimum:?}, above maximum_backoff of {maximum:?}"
        ))),
        false => Ok(()),
    }
}

fn backoff(
    name: &str,
    given: Option<prost_types::Duration>,
    default: Duration,
) -> Result<Duration, Status> {
    let Some(given) = given else { return Ok(default) };
    let delay = Duration::try_from(given).ok().filter(|delay| *delay <= BACKOFF_MAX);
    delay.ok_or_else(|| {
        Status::invalid_argument(format!(
            "retry_policy: a {name} of {given} is out of range: 0s to 600s are allowed"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(key: &str, value: &str) -> Result<(), Status> {
        check_labels(&[(key.to_owned(), value.to_owned())].into())
    }

    #[test]
    fn labels_are_short_and_lowercase() {
        let longest = "x".repeat(63);
        for (key, value) in [("team", "a-1_"), ("größe", ""), (&longest, &longest)] {
            assert!(labelled(key, value).is_ok(), "{key}: {value}");
        }
        let too_long = "x".repeat(64);
        for (key, value) in
            [("Team", "a"), ("team", "A"), ("", "a"), ("1a", "a"), ("a.b", "a"), (&too_long, "")]
        {
            assert!(labelled(key, value).is_err(), "{key}: {value}");
        }
        let many = |count| (0..count).map(|n| (format!("k{n}"), String::new())).collect();
        assert!(check_labels(&many(64)).is_ok());
        assert!(check_labels(&many(65)).is_err());
    }

    fn retrying(minimum: Option<i64>, maximum: Option<i64>) -> Result<(), Status> {
        let seconds = |seconds| prost_types::Duration { seconds, nanos: 0 };
        let (minimum_backoff, maximum_backoff) = (minimum.map(seconds), maximum.map(seconds));
        check_subscription(&proto::Subscription {
            retry_policy: Some(proto::RetryPolicy { minimum_backoff, maximum_backoff }),
            ..Default::default()
        })
    }

    #[test]
    fn a_minimum_backoff_above_the_maximum_is_refused() {
        assert!(retrying(None, None).is_ok());
        assert!(retrying(Some(600), None).is_ok());
        assert!(retrying(Some(5), Some(5)).is_ok());
        assert!(retrying(Some(6), Some(5)).is_err());
        assert!(retrying(None, Some(9)).is_err(), "the default of the minimum is 10s");
        assert!(retrying(Some(1), Some(601)).is_err());
        assert!(retrying(Some(-1), None).is_err());
    }

    #[test]
    fn a_subscription_expires_after_a_day_at_the_earliest() {
        let expiring = |ttl| {
            let expiration_policy = Some(proto::ExpirationPolicy { ttl });
            check_subscription(&proto::Subscription { expiration_policy, ..Default::default() })
        };
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        assert!(expiring(None).is_ok(), "never");
        assert!(expiring(seconds(86_400)).is_ok());
        assert!(expiring(seconds(86_399)).is_err());
        assert!(expiring(seconds(-1)).is_err());
    }

    #[test]
    fn a_storage_policy_names_a_region() {
        let stored_in = |regions: &[&str]| {
            check_topic(&proto::Topic {
                message_storage_policy: Some(proto::MessageStoragePolicy {
                    allowed_persistence_regions: regions
                        .iter()
                        .map(|it| (*it).to_owned())
                        .collect(),
                    ..Default::default()
                }),
                ..Default::default()
            })
        };
        assert!(stored_in(&["europe-west1"]).is_ok());
        assert!(stored_in(&[]).is_err());
    }
}
