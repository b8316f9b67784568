//! Detects from the rows of a transaction that the server skipped no row since the previous
//! transaction.
//!
//! pgoutput describes a table before its first row after any change of the table or of a
//! publication. A row without a new description was therefore decoded under the same publication as
//! the previous row. Every row of its table in between was published. With several tables, a row is
//! evidence for its own table only.
//!
//! ```text
//! Broken ── commit with rows, itself without evidence ──▶ Unbroken
//!    ▲────────────────────── a description ───────────────────┘
//! ```

use walrelay_core::ContinuityProof;

/// The evidence in the stream since the last commit with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continuity {
    tables: Tables,
    has_rows: bool,
    evidence: ContinuityProof,
}

/// The tables that rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tables {
    /// One table, with its id once it is described.
    One(Option<u32>),
    Several,
}

impl Continuity {
    /// Starts a stream with `tables` outbox tables.
    #[must_use]
    pub const fn new(tables: usize) -> Self {
        let tables = if tables > 1 { Tables::Several } else { Tables::One(None) };
        Self { tables, has_rows: false, evidence: ContinuityProof::None }
    }

    /// Records that the server described the table with this id.
    pub fn relation(&mut self, id: u32) {
        self.evidence = ContinuityProof::None;
        self.tables = match self.tables {
            Tables::One(None) => Tables::One(Some(id)),
            Tables::One(Some(known)) if known == id => self.tables,
            Tables::One(Some(_)) | Tables::Several => Tables::Several,
        };
    }

    /// Records that the server sent a row.
    pub fn row(&mut self) {
        self.has_rows = true;
    }

    /// Records that the open transaction committed. Returns its evidence.
    pub fn commit(&mut self) -> ContinuityProof {
        if self.tables == Tables::Several || !std::mem::take(&mut self.has_rows) {
            return ContinuityProof::None;
        }
        std::mem::replace(&mut self.evidence, ContinuityProof::Unbroken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(continuity: &mut Continuity) -> ContinuityProof {
        continuity.row();
        continuity.commit()
    }

    #[test]
    fn only_a_row_without_a_new_description_shows_that_none_was_passed_over() {
        let mut continuity = Continuity::new(1);
        continuity.relation(1);
        assert_eq!(transaction(&mut continuity), ContinuityProof::None);
        assert_eq!(transaction(&mut continuity), ContinuityProof::Unbroken);
        // A commit without rows has no evidence. The next row continues from the earlier row.
        assert_eq!(continuity.commit(), ContinuityProof::None);
        assert_eq!(transaction(&mut continuity), ContinuityProof::Unbroken);
        continuity.row();
        continuity.relation(1);
        assert_eq!(transaction(&mut continuity), ContinuityProof::None);
        assert_eq!(transaction(&mut continuity), ContinuityProof::Unbroken);
    }

    #[test]
    fn a_description_without_rows_is_remembered() {
        let mut continuity = Continuity::new(1);
        transaction(&mut continuity);
        continuity.relation(1);
        assert_eq!(continuity.commit(), ContinuityProof::None);
        assert_eq!(transaction(&mut continuity), ContinuityProof::None);
    }

    #[test]
    fn with_several_tables_a_row_speaks_for_its_own_only() {
        let mut configured = Continuity::new(2);
        transaction(&mut configured);
        assert_eq!(transaction(&mut configured), ContinuityProof::None);
        let mut added = Continuity::new(1);
        added.relation(1);
        transaction(&mut added);
        added.relation(2);
        transaction(&mut added);
        assert_eq!(transaction(&mut added), ContinuityProof::None);
    }
}
