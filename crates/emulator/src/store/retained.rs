//! Acknowledged messages that are retained, so that a subscription can seek back.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::store::message::StoredMessage;

/// Messages by id, retained for a limited time. This module reads no clock, and takes the time as
/// an argument.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    /// The time for which a message is retained after its publication. `None` retains no message.
    period: Option<Duration>,
    messages: BTreeMap<u64, StoredMessage>,
    bytes: usize,
}

impl Retained {
    pub(crate) fn new(period: Option<Duration>) -> Self {
        Self { period, ..Self::default() }
    }

    /// Changes the retention time. Messages not retained until now stay lost.
    pub(crate) fn set_period(&mut self, period: Option<Duration>) {
        self.period = period;
        if period.is_none() {
            *self = Self::default();
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.period.is_some()
    }

    pub(crate) fn keep(&mut self, message: StoredMessage) {
        if self.is_on() {
            self.bytes += message.cost();
            self.messages.insert(message.id(), message);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) {
        if let Some(message) = self.messages.remove(&id) {
            self.bytes -= message.cost();
        }
    }

    /// Removes messages that are too old.
    pub(crate) fn trim(&mut self, now: SystemTime) {
        let Some(oldest) = self.period.and_then(|period| now.checked_sub(period)) else { return };
        while let Some(first) = self.messages.first_entry()
            && first.get().publish_time() < oldest
        {
            self.bytes -= first.remove().cost();
        }
    }

    /// Returns the messages published at this time or later.
    pub(crate) fn since(&self, time: SystemTime) -> impl Iterator<Item = &StoredMessage> {
        self.messages.values().filter(move |message| message.publish_time() >= time)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn message(id: u64) -> StoredMessage {
        StoredMessage::new(id, at(id), Bytes::new(), Bytes::from_static(b"x"))
    }

    fn since(retained: &Retained, time: u64) -> Vec<u64> {
        retained.since(at(time)).map(StoredMessage::id).collect()
    }

    #[test]
    fn messages_are_kept_for_the_period_and_no_longer() {
        let mut retained = Retained::new(Some(Duration::from_secs(10)));
        for id in 1..=4 {
            retained.keep(message(id));
        }
        assert_eq!(since(&retained, 3), [3, 4]);
        retained.trim(at(12));
        assert_eq!(since(&retained, 0), [2, 3, 4]);
        retained.remove(3);
        retained.remove(3);
        assert_eq!(since(&retained, 0), [2, 4]);
        assert_eq!(retained.bytes(), 2 * message(1).cost());
        retained.set_period(None);
        retained.keep(message(5));
        assert_eq!((since(&retained, 0).len(), retained.bytes()), (0, 0));
    }
}
