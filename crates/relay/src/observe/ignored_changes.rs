//! Changes that carry no event: changes other than inserts, and rows of other tables. The relay
//! ignores them.
//!
//! The publication should publish the inserts of outbox tables only. If it publishes more, each
//! such change costs time and shows that somebody changed the publication. They are counted, and
//! each kind is logged once per session.

use pgoutput_parser::{Lsn, Relation};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use walrelay_pg_client::{QualifiedName, quote_identifier};

/// A change other than the insert of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherChange {
    Update,
    Delete,
    Truncate,
    /// A row was inserted into a table that is not an outbox table.
    InsertElsewhere,
}

impl OtherChange {
    pub const ALL: [Self; 4] = [Self::Update, Self::Delete, Self::Truncate, Self::InsertElsewhere];

    /// Returns the value of the label `operation`, as in the publication's parameter `publish`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Truncate => "truncate",
            Self::InsertElsewhere => "insert",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OperationLabel {
    /// The name of one of [`OtherChange::ALL`].
    pub operation: &'static str,
}

#[derive(Debug)]
pub(super) struct IgnoredChanges([(Counter, Logged); 4]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logged {
    No,
    Yes,
}

impl IgnoredChanges {
    pub(super) fn new(family: &Family<OperationLabel, Counter>) -> Self {
        Self(OtherChange::ALL.map(|change| {
            let label = OperationLabel { operation: change.name() };
            (family.get_or_create_owned(&label), Logged::No)
        }))
    }

    /// Counts one change, and logs the first of its kind.
    pub(super) fn record(&mut self, change: OtherChange, at: Lsn, publication: &str) {
        // Each other table is logged by itself.
        if self.count(change) && change != OtherChange::InsertElsewhere {
            tracing::warn!(
                operation = change.name(),
                %at,
                fix = %format!("ALTER PUBLICATION {} SET (publish = 'insert')", quote_identifier(publication)),
                "the publication sends changes that are no inserts: they publish nothing, and the relay ignores them"
            );
        }
    }

    /// Counts one change. Returns whether it is the first of its kind.
    fn count(&mut self, change: OtherChange) -> bool {
        let (counter, logged) = &mut self.0[change as usize];
        counter.inc();
        std::mem::replace(logged, Logged::Yes) == Logged::No
    }
}

/// Logs a table whose rows are ignored.
pub(crate) fn log_ignored_table(relation: &Relation) {
    let table = QualifiedName::new(&relation.namespace, &relation.name);
    tracing::warn!(
        %table,
        "the relay ignores rows of a table that is not an outbox table and was in the publication earlier"
    );
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
        assert_eq!(counted, [0, 2, 1, 0]);
        assert!(IgnoredChanges::new(&family).count(OtherChange::Delete), "a new session");
    }
}
