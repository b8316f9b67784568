//! What a replay was asked for, as it stands in `app_outbox_replay`: resuming needs nothing else.

use std::num::NonZeroU32;

use pgoutput_parser::{Lsn, PgTimestamp};
use serde_json::{Value, json};
use walrelay_core::{Matching, Selection};

use super::store::DeadRows;

/// Rows a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(NonZeroU32);

impl Rate {
    /// None of zero.
    #[must_use]
    pub const fn new(per_second: u32) -> Option<Self> {
        match NonZeroU32::new(per_second) {
            Some(rate) => Some(Self(rate)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn per_second(self) -> u32 {
        self.0.get()
    }
}

/// Where a replay publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// To the topic of this template, where no live row goes.
    Topic(String),
    /// To the topics that the rows went to, through dispatch state.
    InPlace,
}

impl Destination {
    /// The value of `to_topic`, which a replay in place does not have.
    pub(super) fn topic(&self) -> Option<&str> {
        match self {
            Self::Topic(topic) => Some(topic),
            Self::InPlace => None,
        }
    }

    /// Of a replay or a backfill on record.
    ///
    /// # Errors
    ///
    /// It is not what this version writes.
    pub fn from_json(text: &str) -> Result<Self, UnreadableRequest> {
        let value = serde_json::from_str(text).map_err(|_| UnreadableRequest("JSON"))?;
        Self::of(&value)
    }

    /// What is stored.
    pub(super) fn of(value: &Value) -> Result<Self, UnreadableRequest> {
        let is_in_place = value.get("in_place").and_then(Value::as_bool).unwrap_or_default();
        match (is_in_place, value.get("to_topic").and_then(Value::as_str)) {
            (true, _) => Ok(Self::InPlace),
            (false, Some(topic)) => Ok(Self::Topic(topic.to_owned())),
            (false, None) => Err(UnreadableRequest("to_topic")),
        }
    }
}

/// What was asked for beside the stretch of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where it publishes.
    pub destination: Destination,
    /// Commits of this moment or later.
    pub since: Option<PgTimestamp>,
    /// Commits of this moment or earlier.
    pub until: Option<PgTimestamp>,
    /// Rows with these values.
    pub matching: Matching,
    /// How fast.
    pub rate: Option<Rate>,
    /// What becomes of rows that Pub/Sub would never take.
    pub dead_rows: DeadRows,
}

/// The row was written by another version, or by hand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("app_outbox_replay.request has no usable {0}")]
pub struct UnreadableRequest(&'static str);

impl UnreadableRequest {
    pub(super) const fn of(part: &'static str) -> Self {
        Self(part)
    }
}

impl Request {
    /// The rows it selects between two positions.
    #[must_use]
    pub fn selection(&self, from: Lsn, to: Lsn) -> Selection {
        let Self { since, until, matching, .. } = self;
        Selection { from, to, since: *since, until: *until, matching: matching.clone() }
    }

    /// As it is stored.
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

    /// What is stored.
    ///
    /// # Errors
    ///
    /// It is not what this version writes.
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
            matching: Matching {
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
            matching: Matching {
                aggregate_ids: vec!["a\"b".into(), "c".into()],
                ..Matching::default()
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
