//! Separates the rows of outbox tables from the rows of other tables.
//!
//! A publication may have listed another table for a while. Its rows are in the WAL for good,
//! because pgoutput decodes each row with the publication of that time. A session starts only if the
//! publication lists no other table, so somebody has removed such a table on purpose. The session
//! therefore ignores the rows of other tables that were committed before its check. It stops at
//! later ones, because they may be events of an outbox table that is missing in the configuration.

use pgoutput_parser::{Lsn, Relation};
use walrelay_pg_client::QualifiedName;

/// The outbox tables, as of the check of the publication.
#[derive(Debug, Clone)]
pub struct OutboxTables {
    pub names: Vec<QualifiedName>,
    /// The object ids of the tables and of their partitions. A renamed table keeps its id.
    pub ids: Vec<u32>,
    pub publication: String,
    /// The end of WAL before the check found no other table in the publication.
    pub checked_from: Lsn,
}

/// Recognises rows of other tables in a stream.
#[derive(Debug)]
pub struct TableSelection {
    /// `None` if the source has rows of outbox tables only.
    outbox: Option<OutboxTables>,
    /// The commit position of the open transaction.
    commit_lsn: Lsn,
    /// Other tables that the server has described. A description alone is no row: the server also
    /// describes the partitions of an outbox table.
    others: Vec<DescribedTable>,
}

/// A table that is not an outbox table.
#[derive(Debug)]
struct DescribedTable {
    id: u32,
    name: QualifiedName,
    has_rows: bool,
}

/// A row of a table that is not an outbox table, committed after the check of the publication.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the transaction at {commit_lsn} has rows of table {table}, which is not an outbox table")]
pub struct OtherTable {
    /// The commit position of the row's transaction.
    pub commit_lsn: Lsn,
    pub table: QualifiedName,
    /// The publication that lists the table.
    pub publication: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowKind {
    Event,
    Ignored {
        /// Whether it is the first row of this table in the session.
        is_first: bool,
    },
}

impl TableSelection {
    /// Starts a stream. Without tables, each row is an event.
    #[must_use]
    pub const fn new(outbox: Option<OutboxTables>) -> Self {
        Self { outbox, commit_lsn: Lsn::ZERO, others: Vec::new() }
    }

    pub const fn begin(&mut self, commit_lsn: Lsn) {
        self.commit_lsn = commit_lsn;
    }

    /// Records a table that the server describes. Returns whether it is an outbox table.
    pub fn describe(&mut self, relation: &Relation) -> bool {
        let id = relation.id;
        let Some(outbox) = &self.outbox else { return true };
        let named = |name: &QualifiedName| {
            name.schema() == relation.namespace && name.table() == relation.name
        };
        if outbox.ids.contains(&id) || outbox.names.iter().any(named) {
            return true;
        }
        if !self.others.iter().any(|other| other.id == id) {
            let name = QualifiedName::new(&relation.namespace, &relation.name);
            self.others.push(DescribedTable { id, name, has_rows: false });
        }
        false
    }

    /// Decides about a row of a described table.
    ///
    /// # Errors
    ///
    /// The table is not an outbox table, and the row was committed after the check.
    pub fn row(&mut self, id: u32) -> Result<RowKind, OtherTable> {
        let Some(outbox) = &self.outbox else { return Ok(RowKind::Event) };
        let Some(other) = self.others.iter_mut().find(|other| other.id == id) else {
            return Ok(RowKind::Event);
        };
        if self.commit_lsn >= outbox.checked_from {
            return Err(OtherTable {
                commit_lsn: self.commit_lsn,
                table: other.name.clone(),
                publication: outbox.publication.clone(),
            });
        }
        let is_first = !std::mem::replace(&mut other.has_rows, true);
        Ok(RowKind::Ignored { is_first })
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Change, Decoder, ReplicaIdentity, encode};

    use super::*;

    fn selection() -> TableSelection {
        TableSelection::new(Some(OutboxTables {
            names: vec![QualifiedName::new("public", "app_outbox")],
            ids: vec![1, 2],
            publication: "walrelay".to_owned(),
            checked_from: Lsn::new(100),
        }))
    }

    /// Describes a table, and returns the treatment of its row.
    fn row(
        tables: &mut TableSelection,
        (committed, id, name): (u64, u32, &str),
    ) -> Result<RowKind, OtherTable> {
        describe(tables, (committed, id, name));
        tables.row(id)
    }

    fn describe(tables: &mut TableSelection, (committed, id, name): (u64, u32, &str)) {
        let message = encode::relation(id, "public", name, ReplicaIdentity::Default, &[]);
        tables.begin(Lsn::new(committed));
        match Decoder::new().decode(&message) {
            Ok(Change::Relation(relation)) => _ = tables.describe(relation),
            other => panic!("no description: {other:?}"),
        }
    }

    #[test]
    fn an_outbox_table_is_recognised_by_its_name_and_by_the_id_that_a_renamed_table_keeps() {
        for (id, name) in [(9, "app_outbox"), (1, "app_outbox_old"), (2, "app_outbox_p1")] {
            for committed in [10, 200] {
                assert_eq!(
                    row(&mut selection(), (committed, id, name)),
                    Ok(RowKind::Event),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn rows_of_another_table_are_ignored_up_to_the_check_and_refused_after_it() {
        let mut tables = selection();
        let ignored = |is_first| Ok(RowKind::Ignored { is_first });
        assert_eq!(row(&mut tables, (10, 7, "orders")), ignored(true));
        assert_eq!(row(&mut tables, (20, 7, "orders")), ignored(false));
        assert_eq!(tables.row(1), Ok(RowKind::Event));
        let refused = row(&mut tables, (100, 7, "orders")).expect_err("it was added later");
        let text =
            "the transaction at 0/64 has rows of table public.orders, which is not an outbox table";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn a_new_partition_is_described_and_its_rows_come_under_the_name_of_the_outbox() {
        let mut tables = selection();
        describe(&mut tables, (200, 1, "app_outbox"));
        describe(&mut tables, (200, 7, "app_outbox_p2"));
        assert_eq!(tables.row(1), Ok(RowKind::Event));
    }

    #[test]
    fn a_source_without_a_publication_has_rows_of_outbox_tables_only() {
        let mut tables = TableSelection::new(None);
        assert_eq!(row(&mut tables, (200, 7, "orders")), Ok(RowKind::Event));
    }
}
