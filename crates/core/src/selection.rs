//! Which rows of a stream are published again: a stretch of the log, and of it those that match.

use pgoutput_parser::{Lsn, PgTimestamp};

/// What a replay is asked for. A row has to be within all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Commits at this position or behind it.
    pub from: Lsn,
    /// Commits at this position or before it.
    pub to: Lsn,
    /// Commits of this moment or later.
    pub since: Option<PgTimestamp>,
    /// Commits of this moment or earlier.
    pub until: Option<PgTimestamp>,
    /// Rows of these; of all where none is named.
    pub matching: Matching,
}

/// Values that columns of a row have to have; any, where none is named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matching {
    /// Types of aggregates.
    pub aggregate_types: Vec<String>,
    /// Ids of aggregates.
    pub aggregate_ids: Vec<String>,
    /// Types of events.
    pub event_types: Vec<String>,
}

impl Selection {
    /// Whether a transaction that was committed there and then is part of it.
    #[must_use]
    pub fn has_commit(&self, commit_lsn: Lsn, committed_at: PgTimestamp) -> bool {
        (self.from..=self.to).contains(&commit_lsn)
            && self.since.is_none_or(|since| committed_at >= since)
            && self.until.is_none_or(|until| committed_at <= until)
    }
}

impl Matching {
    /// Whether nothing is named, so that every row matches.
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
        let selection = Selection {
            from: Lsn::new(10),
            to: Lsn::new(20),
            since: Some(at(100)),
            until: Some(at(200)),
            matching: Matching::default(),
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
        let matching = Matching {
            aggregate_types: vec!["order".into(), "video".into()],
            aggregate_ids: Vec::new(),
            event_types: vec!["made".into()],
        };
        assert!(matching.has(Some("video"), None, Some("made")));
        assert!(!matching.has(Some("video"), None, Some("gone")));
        assert!(!matching.has(None, None, Some("made")));
        assert!(Matching::default().has(None, None, None));
    }
}
