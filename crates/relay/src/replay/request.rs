//! The request of a replay as stored in `app_outbox_replay`. A resumed replay needs no other input.

use std::num::NonZeroU32;

use pgoutput_parser::{Lsn, PgTimestamp};
use serde_json::{Value, json};
use walrelay_core::{ColumnFilter, ReplaySelection};

use super::store::DeadRows;

/// A rate in rows per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(NonZeroU32);

impl Rate {
    /// Returns `None` for zero.
    #[must_use]
    pub const fn new(per_second: u32) -> Option<Self> {
        match NonZeroU32::new(per_second) {
            Some(rate) => Some(Self(rate)),
            None => None,
        }
    }

    /// Returns rows per second.
    #[must_use]
    pub const fn per_second(self) -> u32 {
        self.0.get()
    }
}

/// The destination of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The topic of this template. No live row goes there.
    Topic(String),
    /// The original topics of the rows, through dispatch state.
    InPlace,
}

impl Destination {
    /// Returns the value of `to_topic`. A replay in place has none.
    pub(super) fn topic(&self) -> Option<&str> {
        match self {
            Self::Topic(topic) => Some(topic),
            Self::InPlace => None,
        }
    }

    /// Parses the destination of a recorded replay or backfill.
    ///
    /// # Errors
    ///
    /// This version does not write such text.
    pub fn from_json(text: &str) -> Result<Self, UnreadableRequest> {
        let value = serde_json::from_str(text).map_err(|_| UnreadableRequest("JSON"))?;
        Self::of(&value)
    }

    /// Parses the destination of a stored request.
    pub(super) fn of(value: &Value) -> Result<Self, UnreadableRequest> {
        let is_in_place = value.get("in_place").and_then(Value::as_bool);
        let is_in_place = is_in_place.ok_or(UnreadableRequest("in_place"))?;
        match (is_in_place, value.get("to_topic").and_then(Value::as_str)) {
            (true, _) => Ok(Self::InPlace),
            (false, Some(topic)) => Ok(Self::Topic(topic.to_owned())),
            (false, None) => Err(UnreadableRequest("to_topic")),
        }
    }
}

/// The request of a replay without its range of WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The destination.
    pub destination: Destination,
    /// Only commits at this time or later.
    pub since: Option<PgTimestamp>,
    /// Only commits at this time or earlier.
    pub until: Option<PgTimestamp>,
    /// Only rows with these values.
    pub matching: ColumnFilter,
    /// The rate limit.
    pub rate: Option<Rate>,
    /// The treatment of rows that Pub/Sub never accepts.
    pub dead_rows: DeadRows,
}

/// The stored request was not written by this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("app_outbox_replay.request has no usable {0}")]
pub struct UnreadableRequest(&'static str);

impl UnreadableRequest {
    pub(super) const fn of(part: &'static str) -> Self {
        Self(part)
    }
}

impl Request {
    /// Returns the selection of the requested rows between two positions.
    #[must_use]
    pub fn selection(&self, from: Lsn, to: Lsn) -> ReplaySelection {
        let Self { since, until, matching, .. } = self;
        ReplaySelection { from, to, since: *since, until: *until, matching: matching.clone() }
    }

    /// Returns the stored form.
    #[must_use]
    pub fn to_json(&self) -> String {
        json!({
            "to_topic": self.destination.topic(),
            "in_place": self.destination == Destination::InPlace,
            "since": self.since.map(PgTimestamp::as_micros),
            "until": self.until.map(PgTimestamp::as_micros),
            "aggregate_types": self.matching.aggregate_types,
            "aggregate_ids": self.matching.aggregate_ids,
            "event_types": self.matching.event_types,
            "rate": self.rate.map(Rate::per_second),
            "skip_dead": self.dead_rows == DeadRows::LeaveOut,
        })
        .to_string()
    }

    /// Parses the stored form.
    ///
    /// # Errors
    ///
    /// This version does not write such text.
    pub fn from_json(text: &str) -> Result<Self, UnreadableRequest> {
        let value: Value = serde_json::from_str(text).map_err(|_| UnreadableRequest("JSON"))?;
        let words = |name: &'static str| {
            let words = value.get(name).and_then(Value::as_array).ok_or(UnreadableRequest(name))?;
            let word = |word: &Value| word.as_str().map(str::to_owned);
            words.iter().map(word).collect::<Option<Vec<_>>>().ok_or(UnreadableRequest(name))
        };
        let time = |name| value.get(name).and_then(Value::as_i64).map(PgTimestamp::from_micros);
        let rate = value.get("rate").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let leaves_out = value.get("skip_dead").and_then(Value::as_bool);
        Ok(Self {
            destination: Destination::of(&value)?,
            since: time("since"),
            until: time("until"),
            matching: ColumnFilter {
                aggregate_types: words("aggregate_types")?,
                aggregate_ids: words("aggregate_ids")?,
                event_types: words("event_types")?,
            },
            rate: rate.and_then(Rate::new),
            dead_rows: match leaves_out.ok_or(UnreadableRequest("skip_dead"))? {
                true => DeadRows::LeaveOut,
                false => DeadRows::Stop,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_read_back_as_it_was() {
        let request = Request {
            destination: Destination::Topic("{aggregatetype}.again".into()),
            since: Some(PgTimestamp::from_micros(-5)),
            until: None,
            matching: ColumnFilter {
                aggregate_ids: vec!["a\"b".into(), "c".into()],
                ..ColumnFilter::default()
            },
            rate: Rate::new(250),
            dead_rows: DeadRows::LeaveOut,
        };
        assert_eq!(Request::from_json(&request.to_json()), Ok(request.clone()));
        let in_place = Request { destination: Destination::InPlace, ..request };
        assert_eq!(Request::from_json(&in_place.to_json()), Ok(in_place));
        assert!(Request::from_json("{}").is_err());
        assert!(Request::from_json("no").is_err());
    }
}
