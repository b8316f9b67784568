//! Changes of an outbox table that carry no event. The relay ignores them.
//!
//! The publication should publish inserts only. If it publishes more, each such change costs time
//! and shows that somebody changed the publication. They are counted, and each kind is logged once
//! per session.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// A change other than an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherChange {
    /// A row was updated.
    Update,
    /// A row was deleted.
    Delete,
    /// The table was truncated.
    Truncate,
}

impl OtherChange {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Update, Self::Delete, Self::Truncate];

    /// Returns the value of the label `operation`, as in the publication's parameter `publish`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Truncate => "truncate",
        }
    }
}

/// The label of the metric.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OperationLabel {
    /// The name of one of [`OtherChange::ALL`].
    pub operation: &'static str,
}

/// The counter of each kind of change, and whether this session has logged that kind.
#[derive(Debug)]
pub(super) struct IgnoredChanges([(Counter, Logged); 3]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logged {
    No,
    Yes,
}

impl IgnoredChanges {
    /// Creates the counters for a new session.
    pub(super) fn new(family: &Family<OperationLabel, Counter>) -> Self {
        Self(OtherChange::ALL.map(|change| {
            let label = OperationLabel { operation: change.name() };
            (family.get_or_create_owned(&label), Logged::No)
        }))
    }

    /// Counts one change. Returns whether it is the first of its kind.
    pub(super) fn count(&mut self, change: OtherChange) -> bool {
        let (counter, logged) = &mut self.0[change as usize];
        counter.inc();
        std::mem::replace(logged, Logged::Yes) == Logged::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_counted_and_the_first_of_each_kind_is_to_be_logged() {
        let family = Family::default();
        let mut changes = IgnoredChanges::new(&family);
        assert!(changes.count(OtherChange::Delete));
        assert!(!changes.count(OtherChange::Delete));
        assert!(changes.count(OtherChange::Truncate));
        let counted = OtherChange::ALL
            .map(|change| family.get_or_create(&OperationLabel { operation: change.name() }).get());
        assert_eq!(counted, [0, 2, 1]);
        assert!(IgnoredChanges::new(&family).count(OtherChange::Delete), "a new session");
    }
}
