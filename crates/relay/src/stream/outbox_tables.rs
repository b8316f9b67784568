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
    /// The names of the tables.
    pub names: Vec<QualifiedName>,
    /// The object ids of the tables and of their partitions. A renamed table keeps its id.
    pub ids: Vec<u32>,
    /// The name of the publication.
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
    /// The ids of other tables that the server has described.
    others: Vec<u32>,
}

/// A row of a table that is not an outbox table, committed after the check of the publication.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the transaction at {commit_lsn} has rows of table {table}, which is not an outbox table")]
pub struct OtherTable {
    /// The commit position of the row's transaction.
    pub commit_lsn: Lsn,
    /// The table.
    pub table: QualifiedName,
    /// The publication that lists the table.
    pub publication: String,
}

/// The treatment of a described table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableKind {
    /// Its rows are events.
    Outbox,
    /// Its rows are ignored.
    Ignored {
        /// Whether the session has not seen this table before.
        is_new: bool,
    },
}

impl TableSelection {
    /// Starts a stream. Without tables, each row is an event.
    #[must_use]
    pub const fn new(outbox: Option<OutboxTables>) -> Self {
        Self { outbox, commit_lsn: Lsn::ZERO, others: Vec::new() }
    }

    /// Records that a transaction begins.
    pub const fn begin(&mut self, commit_lsn: Lsn) {
        self.commit_lsn = commit_lsn;
    }

    /// Decides about the rows of a table that the server describes.
    ///
    /// # Errors
    ///
    /// The table is not an outbox table, and its rows were committed after the check.
    pub fn describe(&mut self, relation: &Relation) -> Result<TableKind, OtherTable> {
        let id = relation.id;
        let Some(outbox) = &self.outbox else { return Ok(TableKind::Outbox) };
        let named = |name: &QualifiedName| {
            name.schema() == relation.namespace && name.table() == relation.name
        };
        if outbox.ids.contains(&id) || outbox.names.iter().any(named) {
            return Ok(TableKind::Outbox);
        }
        if self.commit_lsn >= outbox.checked_from {
            return Err(OtherTable {
                commit_lsn: self.commit_lsn,
                table: QualifiedName::new(&relation.namespace, &relation.name),
                publication: outbox.publication.clone(),
            });
        }
        let is_new = !self.others.contains(&id);
        if is_new {
            self.others.push(id);
        }
        Ok(TableKind::Ignored { is_new })
    }

    /// Returns whether the rows of this table are ignored.
    #[must_use]
    pub fn ignores(&self, id: u32) -> bool {
        self.others.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Change, Decoder, ReplicaIdentity, encode};

    use super::*;

    fn described(committed: u64, id: u32, name: &str) -> Result<TableKind, OtherTable> {
        let mut tables = selection();
        describe(&mut tables, (committed, id, name))
    }

    fn selection() -> TableSelection {
        TableSelection::new(Some(OutboxTables {
            names: vec![QualifiedName::new("public", "app_outbox")],
            ids: vec![1, 2],
            publication: "walrelay".to_owned(),
            checked_from: Lsn::new(100),
        }))
    }

    fn describe(
        tables: &mut TableSelection,
        (committed, id, name): (u64, u32, &str),
    ) -> Result<TableKind, OtherTable> {
        let message = encode::relation(id, "public", name, ReplicaIdentity::Default, &[]);
        tables.begin(Lsn::new(committed));
        match Decoder::new().decode(&message) {
            Ok(Change::Relation(relation)) => tables.describe(relation),
            other => panic!("no description: {other:?}"),
        }
    }

    #[test]
    fn an_outbox_table_is_recognised_by_its_name_and_by_the_id_that_a_renamed_table_keeps() {
        for (id, name) in [(9, "app_outbox"), (1, "app_outbox_old"), (2, "app_outbox_p1")] {
            for committed in [10, 200] {
                assert_eq!(described(committed, id, name), Ok(TableKind::Outbox), "{name}");
            }
        }
    }

    #[test]
    fn rows_of_another_table_are_ignored_up_to_the_check_and_refused_after_it() {
        let mut tables = selection();
        let ignored = |is_new| Ok(TableKind::Ignored { is_new });
        assert_eq!(describe(&mut tables, (10, 7, "orders")), ignored(true));
        assert_eq!(describe(&mut tables, (20, 7, "orders")), ignored(false));
        assert!(tables.ignores(7) && !tables.ignores(1));
        let refused = describe(&mut tables, (100, 7, "orders")).expect_err("it was added later");
        let text =
            "the transaction at 0/64 has rows of table public.orders, which is not an outbox table";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn a_source_without_a_publication_has_rows_of_outbox_tables_only() {
        let mut tables = TableSelection::new(None);
        assert_eq!(describe(&mut tables, (200, 7, "orders")), Ok(TableKind::Outbox));
    }
}
