//! With which aggregate each transaction of a stream of the table ends: where it is resumed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pgoutput_parser::Lsn;
use walrelay_outbox_admin::AggregateKey;

/// Where a backfill goes on: everything before this aggregate of this table is published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resumption {
    /// The table, by its number among those of `--outbox-table`.
    pub table: usize,
    /// The aggregate.
    pub key: AggregateKey,
}

/// Which aggregate each transaction ended with, until that is settled. A copy shares them.
#[derive(Debug, Clone, Default)]
pub struct Marks(Arc<Mutex<Marked>>);

#[derive(Debug, Default)]
struct Marked {
    settled: Option<Resumption>,
    later: BTreeMap<Lsn, Resumption>,
}

impl Marks {
    /// Of a backfill that goes on there.
    #[must_use]
    pub fn from(resumption: Option<Resumption>) -> Self {
        let marked = Marked { settled: resumption, later: BTreeMap::new() };
        Self(Arc::new(Mutex::new(marked)))
    }

    /// A stream begins: where. What an earlier one marked means nothing in it.
    pub(crate) fn begin(&self) -> Option<Resumption> {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marked.later.clear();
        marked.settled.clone()
    }

    /// The transaction that ends here ended with this aggregate.
    pub(crate) fn ends_with(&self, end_lsn: Lsn, resumption: Resumption) {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marked.later.insert(end_lsn, resumption);
    }

    /// Where to go on once everything before is settled, if that is another place than before.
    pub(crate) fn settled_to(&self, settled: Lsn) -> Option<Resumption> {
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
        let marks = Marks::default();
        let at = |id: &str| Resumption {
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
