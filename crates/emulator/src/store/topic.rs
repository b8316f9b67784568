//! A topic: who gets its messages, and which requests to it are not answered yet.

use std::collections::HashMap;
use std::sync::Arc;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;

use crate::store::message::StoredMessage;

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) config: proto::Topic,
    pub(crate) name: Arc<str>,
    pub(crate) subscriptions: Vec<String>,
    pub(crate) log: Vec<StoredMessage>,
    /// Requests not answered yet, per ordering key.
    in_flight: HashMap<Arc<str>, u32>,
}

impl Topic {
    pub(crate) fn new(config: proto::Topic) -> Self {
        Self {
            name: config.name.as_str().into(),
            config,
            subscriptions: Vec::new(),
            log: Vec::new(),
            in_flight: HashMap::new(),
        }
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
