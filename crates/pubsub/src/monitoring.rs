//! The backlog of a subscription, from Cloud Monitoring or from the emulator.
//!
//! Cloud Monitoring measures once a minute, and shows a value up to four minutes later.

use std::time::{Duration, SystemTime};

use tonic::Status;

use crate::channel::AuthorisedChannel;
use crate::classify::call_code;
use crate::config::Endpoint;
use crate::error::{Answer, PubsubError};
use crate::google_call::Method;

const HOST: &str = "monitoring.googleapis.com";

/// The oldest value to read. A value is taken once a minute and shown up to four minutes later.
const WINDOW: Duration = Duration::from_mins(10);

const LIST_TIME_SERIES: Method =
    Method { path: "/google.monitoring.v3.MetricService/ListTimeSeries", field: "name" };

/// The number of messages that are not acknowledged.
pub const BACKLOG_METRIC: &str = "pubsub.googleapis.com/subscription/num_undelivered_messages";

/// The age of the oldest of them in seconds.
pub const OLDEST_METRIC: &str = "pubsub.googleapis.com/subscription/oldest_unacked_message_age";

/// The backlog of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionBacklog {
    /// Messages that are not acknowledged, delivered ones included.
    pub messages: u64,
    /// Age of the oldest of them in seconds. 0 without any.
    pub oldest_seconds: u64,
}

impl SubscriptionBacklog {
    /// Reads the backlog of a subscription (`projects/P/subscriptions/S`). `None` without a recent
    /// value: the subscription is new, or does not exist.
    ///
    /// # Errors
    ///
    /// The account lacks roles/monitoring.viewer.
    pub async fn read(
        endpoint: &Endpoint,
        subscription: &str,
    ) -> Result<Option<Self>, PubsubError> {
        let authorised = match endpoint.is_emulator() {
            true => AuthorisedChannel::open(endpoint)?,
            false => AuthorisedChannel::open(&Endpoint::regional(HOST)?)?,
        };
        let newest = async |metric: &str| {
            let answer = newest(&authorised, subscription, metric).await;
            answer.map_err(|status| refused(subscription, &status))
        };
        let Some(messages) = newest(BACKLOG_METRIC).await? else { return Ok(None) };
        let oldest_seconds = newest(OLDEST_METRIC).await?.unwrap_or_default();
        Ok(Some(Self { messages, oldest_seconds }))
    }
}

/// Returns the newest value of a gauge.
async fn newest(
    authorised: &AuthorisedChannel,
    subscription: &str,
    metric: &str,
) -> Result<Option<u64>, Status> {
    let (project, id) = subscription.split_once("/subscriptions/").unwrap_or((subscription, ""));
    let now = SystemTime::now();
    let request = ListTimeSeriesRequest {
        name: project.to_owned(),
        filter: format!("metric.type=\"{metric}\" AND resource.labels.subscription_id=\"{id}\""),
        interval: Some(TimeInterval {
            start_time: Some((now - WINDOW).into()),
            end_time: Some(now.into()),
        }),
    };
    let answer: ListTimeSeriesResponse =
        LIST_TIME_SERIES.call(authorised, project, request).await?;
    // The points of a series are listed from the newest to the oldest.
    let newest = answer.time_series.into_iter().find_map(|series| series.points.into_iter().next());
    let value = newest.and_then(|point| point.value?.int64_value);
    Ok(value.map(|value| u64::try_from(value).unwrap_or_default()))
}

fn refused(subscription: &str, status: &Status) -> PubsubError {
    PubsubError::Subscription {
        action: "read the backlog of",
        subscription: subscription.to_owned(),
        code: call_code(status.code()),
        source: Box::new(Answer::of(status)),
    }
}

/// `google.monitoring.v3.ListTimeSeriesRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct ListTimeSeriesRequest {
    #[prost(string, tag = "10")]
    name: String,
    #[prost(string, tag = "2")]
    filter: String,
    #[prost(message, optional, tag = "4")]
    interval: Option<TimeInterval>,
}

/// `google.monitoring.v3.TimeInterval`.
#[derive(Clone, PartialEq, prost::Message)]
struct TimeInterval {
    #[prost(message, optional, tag = "1")]
    start_time: Option<prost_types::Timestamp>,
    #[prost(message, optional, tag = "2")]
    end_time: Option<prost_types::Timestamp>,
}

/// `google.monitoring.v3.ListTimeSeriesResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct ListTimeSeriesResponse {
    #[prost(message, repeated, tag = "1")]
    time_series: Vec<TimeSeries>,
}

/// `google.monitoring.v3.TimeSeries`, without the fields that the request names.
#[derive(Clone, PartialEq, prost::Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "5")]
    points: Vec<Point>,
}

/// `google.monitoring.v3.Point`.
#[derive(Clone, PartialEq, prost::Message)]
struct Point {
    #[prost(message, optional, tag = "2")]
    value: Option<TypedValue>,
}

/// `google.monitoring.v3.TypedValue`, for gauges of whole numbers.
#[derive(Clone, PartialEq, prost::Message)]
struct TypedValue {
    #[prost(int64, optional, tag = "2")]
    int64_value: Option<i64>,
}
