//! The call of Cloud Monitoring that reads a subscription's backlog: two gauges, without history.
//!
//! The service measures them once a minute. The emulator answers with the current values.

use std::time::SystemTime;

use tonic::Status;

use crate::store::broker::Broker;
use crate::store::message::StoredMessage;

const BACKLOG: &str = "pubsub.googleapis.com/subscription/num_undelivered_messages";
const OLDEST: &str = "pubsub.googleapis.com/subscription/oldest_unacked_message_age";

/// `google.monitoring.v3.ListTimeSeriesRequest`, as far as the emulator reads it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListTimeSeriesRequest {
    #[prost(string, tag = "10")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) filter: String,
}

/// `google.monitoring.v3.ListTimeSeriesResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListTimeSeriesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) time_series: Vec<TimeSeries>,
}

/// `google.monitoring.v3.TimeSeries`, without labels.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TimeSeries {
    #[prost(message, repeated, tag = "5")]
    pub(crate) points: Vec<Point>,
}

/// `google.monitoring.v3.Point`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Point {
    #[prost(message, optional, tag = "1")]
    pub(crate) interval: Option<TimeInterval>,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<TypedValue>,
}

/// `google.monitoring.v3.TimeInterval`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TimeInterval {
    #[prost(message, optional, tag = "2")]
    pub(crate) end_time: Option<prost_types::Timestamp>,
}

/// `google.monitoring.v3.TypedValue`, as far as gauges of whole numbers use it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TypedValue {
    #[prost(int64, optional, tag = "2")]
    pub(crate) int64_value: Option<i64>,
}

/// Answers with the gauge that the filter names, or with nothing for an unknown subscription.
pub(crate) fn list_time_series(
    broker: &mut Broker,
    request: &ListTimeSeriesRequest,
) -> Result<ListTimeSeriesResponse, Status> {
    let malformed = || {
        Status::invalid_argument(format!(
            "the emulator reads metric.type and resource.labels.subscription_id, not {:?}",
            request.filter
        ))
    };
    let metric = equal(&request.filter, "metric.type").ok_or_else(malformed)?;
    let id = equal(&request.filter, "resource.labels.subscription_id").ok_or_else(malformed)?;
    let name = format!("{}/subscriptions/{id}", request.name);
    let Some(subscription) = broker.subscriptions.get(&name) else {
        return Ok(ListTimeSeriesResponse::default());
    };
    let now = SystemTime::now();
    let queued = || subscription.queue.unacknowledged();
    let value = match metric {
        BACKLOG => queued().count() as u64,
        OLDEST => {
            let oldest = queued().map(StoredMessage::publish_time).min();
            let age = oldest.and_then(|at| now.duration_since(at).ok());
            age.unwrap_or_default().as_secs()
        }
        _ => return Ok(ListTimeSeriesResponse::default()),
    };
    let int64_value = Some(i64::try_from(value).unwrap_or(i64::MAX));
    let point = Point {
        interval: Some(TimeInterval { end_time: Some(now.into()) }),
        value: Some(TypedValue { int64_value }),
    };
    Ok(ListTimeSeriesResponse { time_series: vec![TimeSeries { points: vec![point] }] })
}

/// Returns the value in `name = "value"`.
fn equal<'a>(filter: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = filter.split_once(name)?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_with_and_without_spaces() {
        let filter = "metric.type = \"a/b\" AND resource.labels.subscription_id=\"s\"";
        assert_eq!(equal(filter, "metric.type"), Some("a/b"));
        assert_eq!(equal(filter, "resource.labels.subscription_id"), Some("s"));
        assert_eq!(equal(filter, "resource.labels.topic_id"), None);
    }
}
