//! The database: what has taken effect, and in which order.

use std::collections::{BTreeMap, BTreeSet};

use walrelay_core::Random;
use walrelay_testkit::inbox::{self, Code, Due, Inbox, Rules, Status};

use crate::pubsub::Message;

pub(crate) struct Store {
    inbox: Inbox,
    /// Events that were applied although a version is missing before them: a person wanted it.
    pub(crate) released: BTreeSet<u64>,
    /// Events that were given up, and how many had been applied by then.
    pub(crate) discarded: BTreeMap<u64, usize>,
    /// The same of released ones that the handler has failed on: what was missing before them is given up.
    pub(crate) tried: BTreeMap<u64, usize>,
}

fn stored(message: &Message) -> inbox::Message {
    inbox::Message {
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

    /// Commits these messages: the inbox finds copies.
    pub(crate) fn commit<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Message>,
        fails: impl FnMut() -> bool,
    ) {
        let batch: Vec<inbox::Message> = messages.map(stored).collect();
        let mut fails = fails;
        self.inbox.apply(&batch, |_| fails());
    }

    /// Applies what waits and is due.
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

    /// Whether the database has this event, whatever became of it.
    pub(crate) fn knows(&self, event: u64) -> bool {
        self.inbox.rows.contains_key(&u32::try_from(event).unwrap())
    }

    /// Whether something waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.inbox.rows.values().any(|row| matches!(row.status, Status::Retrying | Status::Dead))
    }

    /// How many were overtaken.
    pub(crate) fn late(&self) -> usize {
        self.inbox.rows.values().filter(|row| row.status == Status::Late).count()
    }

    /// Events that have taken effect: key, version and number, in the order of effect.
    pub(crate) fn applied(&self) -> Vec<(usize, i64, u64)> {
        let applied = self.inbox.applied.iter();
        let told =
            applied.map(|it| (it.key.parse().unwrap(), it.version.unwrap(), u64::from(it.event)));
        told.collect()
    }

    /// Forgets an effect: what a judge has to notice.
    pub(crate) fn lose_an_effect(&mut self) {
        self.inbox.applied.pop();
    }

    /// A person looks at what holds a key or waits for a version, and has one of it tried again or given up.
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
