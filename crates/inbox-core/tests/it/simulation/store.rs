//! A model of the database: the applied events, in their order.

use std::collections::{BTreeMap, BTreeSet};

use walrelay_core::Random;
use walrelay_testkit::inbox_model::{self, Code, Due, Inbox, Rules, Status};

use super::pubsub::Message;

pub(crate) struct Store {
    inbox: Inbox,
    /// Events that were applied although an earlier version is missing, because a person released
    /// them.
    pub(crate) released: BTreeSet<u64>,
    /// Discarded events, each with the number of events applied by then.
    pub(crate) discarded: BTreeMap<u64, usize>,
    /// Released events that the handler failed on, each with the number of events applied by then.
    /// The versions missing before them are given up.
    pub(crate) tried: BTreeMap<u64, usize>,
}

fn stored(message: &Message) -> inbox_model::Message {
    inbox_model::Message {
        event: u32::try_from(message.event).unwrap(),
        key: message.key.to_string(),
        version: Some(message.version),
        position: message.event,
    }
}

impl Store {
    pub(crate) fn new(rules: Rules) -> Self {
        let (released, discarded, tried) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { inbox: Inbox::new(rules), released, discarded, tried }
    }

    /// Commits these messages. The inbox finds duplicates.
    pub(crate) fn commit<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Message>,
        fails: impl FnMut() -> bool,
    ) {
        let batch: Vec<inbox_model::Message> = messages.map(stored).collect();
        let mut fails = fails;
        self.inbox.apply(&batch, |_| fails());
    }

    /// Applies pending rows that are due.
    pub(crate) fn redeliver(&mut self, mut fails: impl FnMut() -> bool) {
        self.inbox.redeliver(|_| fails());
        let by_now = self.inbox.applied.len();
        for event in &self.released {
            let code = self.inbox.rows[&u32::try_from(*event).unwrap()].code;
            assert_ne!(code, Some(Code::VersionGap), "{event} was released and waits again");
            if code == Some(Code::Failed) {
                self.tried.entry(*event).or_insert(by_now);
            }
        }
    }

    /// Returns whether the database has a row of this event, in any status.
    pub(crate) fn knows(&self, event: u64) -> bool {
        self.inbox.rows.contains_key(&u32::try_from(event).unwrap())
    }

    /// Returns whether any row is pending or dead.
    pub(crate) fn is_waiting(&self) -> bool {
        self.inbox.rows.values().any(|row| matches!(row.status, Status::Retrying | Status::Dead))
    }

    pub(crate) fn late(&self) -> usize {
        self.inbox.rows.values().filter(|row| row.status == Status::Late).count()
    }

    /// Returns the applied events as key, version and number, in the order of application.
    pub(crate) fn applied(&self) -> Vec<(usize, i64, u64)> {
        let applied = self.inbox.applied.iter();
        let told =
            applied.map(|it| (it.key.parse().unwrap(), it.version.unwrap(), u64::from(it.event)));
        told.collect()
    }

    /// Forgets an effect, which the judge must notice.
    pub(crate) fn lose_an_effect(&mut self) {
        self.inbox.applied.pop();
    }

    /// Acts as an operator: picks an event that holds a key or waits for a version, and retries or
    /// discards that event.
    pub(crate) fn operate(&mut self, random: &mut Random) {
        let rows = self.inbox.rows.values();
        let stuck = rows.filter(|row| {
            let waits = row.status == Status::Retrying && row.code == Some(Code::VersionGap);
            row.due == Due::Infinity || waits
        });
        let stuck: Vec<(u32, Option<Code>)> =
            stuck.map(|row| (row.message.event, row.code)).collect();
        if stuck.is_empty() {
            return;
        }
        let (event, code) = stuck[random.next_u32() as usize % stuck.len()];
        if random.next_u32().is_multiple_of(4) {
            self.discarded.insert(event.into(), self.inbox.applied.len());
            self.inbox.discard(event);
        } else {
            if code == Some(Code::VersionGap) {
                self.released.insert(event.into());
            }
            self.inbox.retry(event);
        }
    }
}
