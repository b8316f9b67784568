//! A topic: who gets its messages, and which requests to it are not answered yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::store::message::StoredMessage;
use crate::store::retained::Retained;
use crate::wire::limits;

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) config: proto::Topic,
    pub(crate) name: Arc<str>,
    pub(crate) subscriptions: Vec<String>,
    pub(crate) snapshots: Vec<String>,
    /// Everything, for tests to look at; see [`Log`](crate::Log).
    pub(crate) log: Vec<StoredMessage>,
    /// What any subscription can be sought back to.
    pub(crate) retained: Retained,
    /// Requests not answered yet, per ordering key.
    in_flight: HashMap<Arc<str>, u32>,
}

impl Topic {
    pub(crate) fn new(config: proto::Topic) -> Result<Self, Status> {
        Ok(Self {
            name: config.name.as_str().into(),
            subscriptions: Vec::new(),
            snapshots: Vec::new(),
            log: Vec::new(),
            retained: Retained::new(retention_of(&config)?),
            in_flight: HashMap::new(),
            config,
        })
    }

    /// Changes what can be changed of a topic.
    pub(crate) fn configure(&mut self, config: proto::Topic) -> Result<(), Status> {
        self.retained.set_period(retention_of(&config)?);
        self.config = config;
        Ok(())
    }

    /// Counts a request with this ordering key as outstanding. Returns the key as it is kept here.
    pub(crate) fn enter(&mut self, key: &str) -> Arc<str> {
        let known = self.in_flight.get_key_value(key);
        let key = known.map_or_else(|| Arc::from(key), |(key, _)| Arc::clone(key));
        *self.in_flight.entry(Arc::clone(&key)).or_default() += 1;
        key
    }

    /// Requests with this ordering key that are outstanding.
    pub(crate) fn in_flight(&self, key: &str) -> u32 {
        self.in_flight.get(key).copied().unwrap_or_default()
    }

    /// A request with this ordering key has been answered.
    pub(crate) fn leave(&mut self, key: &str) {
        if let Some(requests) = self.in_flight.get_mut(key) {
            *requests -= 1;
            if *requests == 0 {
                self.in_flight.remove(key);
            }
        }
    }
}

fn retention_of(config: &proto::Topic) -> Result<Option<Duration>, Status> {
    config.message_retention_duration.map(limits::retention).transpose()
}
