//! Whether a transaction's rows show that the server passed over none since the transaction before.
//!
//! pgoutput describes a table before the first row that follows any change of the table or of a
//! publication. So a row without a new description in front of it was decoded under the same
//! publication as the row before it, and every row of its table in between was published. With
//! several tables a row speaks for its own only.
//!
//! ```text
//! Broken ── commit with rows, itself without evidence ──▶ Unbroken
//!    ▲────────────────────── a description ───────────────────┘
//! ```

use walrelay_core::Evidence;

/// What the stream has shown since the last commit with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continuity {
    tables: Tables,
    has_rows: bool,
    evidence: Evidence,
}

/// The tables whose rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tables {
    /// One, which has this id once it is described.
    One(Option<u32>),
    Several,
}

impl Continuity {
    /// A stream that begins, of so many outbox tables.
    #[must_use]
    pub const fn new(tables: usize) -> Self {
        let tables = if tables > 1 { Tables::Several } else { Tables::One(None) };
        Self { tables, has_rows: false, evidence: Evidence::None }
    }

    /// The server described the table with this id.
    pub fn relation(&mut self, id: u32) {
        self.evidence = Evidence::None;
        self.tables = match self.tables {
            Tables::One(None) => Tables::One(Some(id)),
            Tables::One(Some(known)) if known == id => self.tables,
            Tables::One(Some(_)) | Tables::Several => Tables::Several,
        };
    }

    /// The server sent a row.
    pub fn row(&mut self) {
        self.has_rows = true;
    }

    /// The open transaction committed.
    pub fn commit(&mut self) -> Evidence {
        if self.tables == Tables::Several || !std::mem::take(&mut self.has_rows) {
            return Evidence::None;
        }
        std::mem::replace(&mut self.evidence, Evidence::Unbroken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(continuity: &mut Continuity) -> Evidence {
        continuity.row();
        continuity.commit()
    }

    #[test]
    fn only_a_row_without_a_new_description_shows_that_none_was_passed_over() {
        let mut continuity = Continuity::new(1);
        continuity.relation(1);
        assert_eq!(transaction(&mut continuity), Evidence::None);
        assert_eq!(transaction(&mut continuity), Evidence::Unbroken);
        // No row, no evidence; and what follows goes on from the row before.
        assert_eq!(continuity.commit(), Evidence::None);
        assert_eq!(transaction(&mut continuity), Evidence::Unbroken);
        continuity.row();
        continuity.relation(1);
        assert_eq!(transaction(&mut continuity), Evidence::None);
        assert_eq!(transaction(&mut continuity), Evidence::Unbroken);
    }

    #[test]
    fn a_description_without_rows_is_remembered() {
        let mut continuity = Continuity::new(1);
        transaction(&mut continuity);
        continuity.relation(1);
        assert_eq!(continuity.commit(), Evidence::None);
        assert_eq!(transaction(&mut continuity), Evidence::None);
    }

    #[test]
    fn with_several_tables_a_row_speaks_for_its_own_only() {
        let mut configured = Continuity::new(2);
        transaction(&mut configured);
        assert_eq!(transaction(&mut configured), Evidence::None);
        let mut added = Continuity::new(1);
        added.relation(1);
        transaction(&mut added);
        added.relation(2);
        transaction(&mut added);
        assert_eq!(transaction(&mut added), Evidence::None);
    }
}
