//! A topic: its subscriptions and snapshots, and its unanswered requests.

use std::collections::HashMap;
use std::sync::Arc;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::store::message::StoredMessage;
use crate::store::retained::Retained;
use crate::wire::settings;

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) config: proto::Topic,
    pub(crate) name: Arc<str>,
    pub(crate) subscriptions: Vec<String>,
    pub(crate) snapshots: Vec<String>,
    /// Every published message, for tests to read (see [`Log`](crate::Log)).
    pub(crate) log: Vec<StoredMessage>,
    /// The retained messages to which every subscription can seek back.
    pub(crate) retained: Retained,
    /// The number of unanswered requests per ordering key.
    in_flight: HashMap<Arc<str>, u32>,
}

impl Topic {
    pub(crate) fn new(config: proto::Topic) -> Result<Self, Status> {
        Ok(Self {
            name: config.name.as_str().into(),
            subscriptions: Vec::new(),
            snapshots: Vec::new(),
            log: Vec::new(),
            retained: Retained::new(settings::check_topic(&config)?),
            in_flight: HashMap::new(),
            config,
        })
    }

    /// Changes the mutable settings of a topic.
    pub(crate) fn configure(&mut self, config: proto::Topic) -> Result<(), Status> {
        self.retained.set_period(settings::check_topic(&config)?);
        self.config = config;
        Ok(())
    }

    /// Counts a request with this ordering key as outstanding. Returns the shared copy of the key.
    pub(crate) fn enter(&mut self, key: &str) -> Arc<str> {
        let known = self.in_flight.get_key_value(key);
        let key = known.map_or_else(|| Arc::from(key), |(key, _)| Arc::clone(key));
        *self.in_flight.entry(Arc::clone(&key)).or_default() += 1;
        key
    }

    pub(crate) fn in_flight(&self, key: &str) -> u32 {
        self.in_flight.get(key).copied().unwrap_or_default()
    }

    /// Counts a request with this ordering key as answered.
    pub(crate) fn leave(&mut self, key: &str) {
        if let Some(requests) = self.in_flight.get_mut(key) {
            *requests -= 1;
            if *requests == 0 {
                self.in_flight.remove(key);
            }
        }
    }
}
