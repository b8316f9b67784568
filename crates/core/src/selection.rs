//! The rows that a replay publishes again: a range of the WAL, filtered by column values.

use pgoutput_parser::{Lsn, PgTimestamp};

/// The conditions of a replay. A row has to meet all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaySelection {
    /// The earliest commit position, inclusive.
    pub from: Lsn,
    /// The latest commit position, inclusive.
    pub to: Lsn,
    /// The earliest commit time, inclusive.
    pub since: Option<PgTimestamp>,
    /// The latest commit time, inclusive.
    pub until: Option<PgTimestamp>,
    /// The column values that a row must have.
    pub matching: ColumnFilter,
}

/// The values that a row's columns must have. An empty list accepts any value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnFilter {
    /// Aggregate types.
    pub aggregate_types: Vec<String>,
    /// Aggregate ids.
    pub aggregate_ids: Vec<String>,
    /// Event types.
    pub event_types: Vec<String>,
}

impl ReplaySelection {
    /// Whether the selection contains a transaction with this commit position and time.
    #[must_use]
    pub fn has_commit(&self, commit_lsn: Lsn, committed_at: PgTimestamp) -> bool {
        (self.from..=self.to).contains(&commit_lsn)
            && self.since.is_none_or(|since| committed_at >= since)
            && self.until.is_none_or(|until| committed_at <= until)
    }
}

impl ColumnFilter {
    /// Whether every list is empty, so that every row matches.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.aggregate_types.is_empty()
            && self.aggregate_ids.is_empty()
            && self.event_types.is_empty()
    }

    /// Whether a row with these values matches.
    pub(crate) fn has(
        &self,
        aggregate_type: Option<&str>,
        aggregate_id: Option<&str>,
        event_type: Option<&str>,
    ) -> bool {
        let is_among = |wanted: &[String], value: Option<&str>| {
            wanted.is_empty() || wanted.iter().any(|one| Some(one.as_str()) == value)
        };
        is_among(&self.aggregate_types, aggregate_type)
            && is_among(&self.aggregate_ids, aggregate_id)
            && is_among(&self.event_types, event_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_stretch_belong_to_it() {
        let at = PgTimestamp::from_micros;
        let selection = ReplaySelection {
            from: Lsn::new(10),
            to: Lsn::new(20),
            since: Some(at(100)),
            until: Some(at(200)),
            matching: ColumnFilter::default(),
        };
        for (lsn, time, is_in) in [
            (10, 100, true),
            (20, 200, true),
            (9, 150, false),
            (21, 150, false),
            (15, 99, false),
            (15, 201, false),
        ] {
            assert_eq!(selection.has_commit(Lsn::new(lsn), at(time)), is_in, "{lsn} {time}");
        }
    }

    #[test]
    fn a_row_has_to_have_one_of_the_values_of_each_column_that_is_named() {
        let matching = ColumnFilter {
            aggregate_types: vec!["order".into(), "video".into()],
            aggregate_ids: Vec::new(),
            event_types: vec!["made".into()],
        };
        assert!(matching.has(Some("video"), None, Some("made")));
        assert!(!matching.has(Some("video"), None, Some("gone")));
        assert!(!matching.has(None, None, Some("made")));
        assert!(ColumnFilter::default().has(None, None, None));
    }
}
