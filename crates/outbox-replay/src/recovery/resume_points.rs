//! Records the last aggregate of each transaction in a stream of the table. A backfill resumes
//! there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pgoutput_parser::Lsn;

use crate::rows::unsettled_rows::AggregateKey;

/// The point at which a backfill resumes: everything before this aggregate of this table is
/// published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResumePoint {
    /// The table, as an index into the list of `--outbox-table`.
    pub table: usize,
    pub key: AggregateKey,
}

/// The last aggregate of each transaction, until that transaction is settled. Clones share the
/// state.
#[derive(Debug, Clone, Default)]
pub struct ResumePoints(Arc<Mutex<Marked>>);

#[derive(Debug, Default)]
struct Marked {
    settled: Option<ResumePoint>,
    later: BTreeMap<Lsn, ResumePoint>,
}

impl ResumePoints {
    #[must_use]
    pub fn from(resumption: Option<ResumePoint>) -> Self {
        let marked = Marked { settled: resumption, later: BTreeMap::new() };
        Self(Arc::new(Mutex::new(marked)))
    }

    /// Starts a stream, and returns where it resumes. Marks of an earlier stream are discarded.
    pub(crate) fn begin(&self) -> Option<ResumePoint> {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marked.later.clear();
        marked.settled.clone()
    }

    /// Records the last aggregate of the transaction that ends at `end_lsn`.
    pub(crate) fn ends_with(&self, end_lsn: Lsn, resumption: ResumePoint) {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marked.later.insert(end_lsn, resumption);
    }

    /// Returns the point to resume at once everything before `settled` is settled, if that point
    /// has moved.
    pub(crate) fn settled_to(&self, settled: Lsn) -> Option<ResumePoint> {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = marked.later.split_off(&Lsn::new(settled.as_u64() + 1));
        let passed = std::mem::replace(&mut marked.later, later);
        let last = passed.into_values().next_back()?;
        marked.settled = Some(last.clone());
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backfill_goes_on_with_the_last_aggregate_of_what_is_settled() {
        let marks = ResumePoints::default();
        let at = |id: &str| ResumePoint {
            table: 0,
            key: AggregateKey { aggregate_type: "t".into(), aggregate_id: id.into() },
        };
        marks.ends_with(Lsn::new(3), at("a"));
        marks.ends_with(Lsn::new(5), at("b"));
        marks.ends_with(Lsn::new(7), at("c"));
        assert_eq!(marks.settled_to(Lsn::new(2)), None);
        assert_eq!(marks.settled_to(Lsn::new(6)), Some(at("b")));
        assert_eq!(marks.settled_to(Lsn::new(6)), None);
        assert_eq!(marks.settled_to(Lsn::new(7)), Some(at("c")));
    }
}
