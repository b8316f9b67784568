//! The foreign keys that keep a rebuild in another schema from moving the rows of its tables.
//!
//! The rows of the live tables are replaced by DELETE and INSERT. A key that references them can
//! then change rows of other tables, or refuse. The tables of the schema are emptied by TRUNCATE,
//! which refuses if a table outside the schema references one.

use tokio_postgres::{GenericClient, Row};
use walrelay_pg_client::sql;

use crate::side_by_side_rebuild::StagedTable;
use walrelay_inbox::InboxError;
use walrelay_inbox::access::failed;

/// A foreign key that references a live table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LiveForeignKey {
    name: String,
    table: String,
    referenced: String,
    /// The place of the table among the rebuilt tables. `None` if the table is not rebuilt.
    place: Option<i64>,
    referenced_place: i64,
    /// The action `ON DELETE`.
    action: DeleteAction,
    is_deferrable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeleteAction {
    NoAction,
    Restrict,
    Cascade,
    SetNull,
    SetDefault,
}

impl DeleteAction {
    /// Reads `pg_constraint.confdeltype`.
    fn of(letter: &str) -> Self {
        match letter {
            "a" => Self::NoAction,
            "c" => Self::Cascade,
            "n" => Self::SetNull,
            "d" => Self::SetDefault,
            _ => Self::Restrict,
        }
    }
}

impl LiveForeignKey {
    /// Returns the reason why the rows cannot be replaced. Rows are deleted from the last table to
    /// the first, and inserted from the first to the last.
    fn conflict(&self) -> Option<ForeignKeyConflict> {
        let is_harmless = match self.place {
            None => self.action == DeleteAction::NoAction && self.is_deferrable,
            Some(place) if self.referenced_place <= place => true,
            Some(_) => {
                self.is_deferrable
                    && matches!(self.action, DeleteAction::NoAction | DeleteAction::Cascade)
            }
        };
        (!is_harmless).then(|| ForeignKeyConflict {
            name: self.name.clone(),
            table: self.table.clone(),
            referenced: self.referenced.clone(),
            is_to_staged: false,
            effect: match (self.place, self.action) {
                (None, DeleteAction::Cascade) => "ON DELETE CASCADE would delete its rows",
                (None, DeleteAction::SetNull) => "ON DELETE SET NULL would clear its references",
                (None, DeleteAction::SetDefault) => {
                    "ON DELETE SET DEFAULT would change its references"
                }
                (_, DeleteAction::NoAction | DeleteAction::Cascade) => "it is not deferrable",
                (_, _) => "its ON DELETE action would refuse",
            },
        })
    }

    /// Returns the reason why a table of the schema cannot be emptied. The tables of the schema are
    /// emptied together, so that keys among them do not matter.
    fn staged_conflict(&self) -> Option<ForeignKeyConflict> {
        self.place.is_none().then(|| ForeignKeyConflict {
            name: self.name.clone(),
            table: self.table.clone(),
            referenced: self.referenced.clone(),
            is_to_staged: true,
            effect: "TRUNCATE would refuse",
        })
    }
}

/// A foreign key that does not allow to replace the rows of a live table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKeyConflict {
    pub name: String,
    pub table: String,
    /// The live table, or the table of the schema, that the key references.
    pub referenced: String,
    /// Whether a table of the schema is referenced.
    pub is_to_staged: bool,
    pub effect: &'static str,
}

/// Returns the foreign keys that do not allow to replace the rows of the live tables, in this
/// order of the tables. Also returns those that do not allow to empty the tables of the schema.
/// Partitions count as their tables.
pub(crate) async fn conflicting_foreign_keys(
    client: &impl GenericClient,
    tables: &[StagedTable],
) -> Result<Vec<ForeignKeyConflict>, InboxError> {
    let live = tables.iter().filter_map(StagedTable::live_name).collect();
    let live = referencing(client, live).await?;
    let staged = tables.iter().map(|table| table.staged.clone()).collect();
    let staged = referencing(client, staged).await?;
    let conflicts = live.iter().filter_map(LiveForeignKey::conflict);
    Ok(conflicts.chain(staged.iter().filter_map(LiveForeignKey::staged_conflict)).collect())
}

/// Returns the foreign keys that reference these tables.
async fn referencing(
    client: &impl GenericClient,
    tables: Vec<String>,
) -> Result<Vec<LiveForeignKey>, InboxError> {
    let rows = client.query(sql!("live_foreign_keys.sql", "referencing"), &[&tables]).await;
    let rows = rows.map_err(failed("find foreign keys to the rebuilt tables"))?;
    let key = |row: &Row| LiveForeignKey {
        name: row.get(0),
        table: row.get(1),
        referenced: row.get(2),
        place: row.get(3),
        referenced_place: row.get(4),
        action: DeleteAction::of(row.get(5)),
        is_deferrable: row.get(6),
    };
    Ok(rows.iter().map(key).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(place: Option<i64>, referenced_place: i64, action: DeleteAction) -> LiveForeignKey {
        LiveForeignKey {
            name: "k".to_owned(),
            table: "s.child".to_owned(),
            referenced: "s.parent".to_owned(),
            place,
            referenced_place,
            action,
            is_deferrable: false,
        }
    }

    fn deferrable(key: LiveForeignKey) -> LiveForeignKey {
        LiveForeignKey { is_deferrable: true, ..key }
    }

    #[test]
    fn a_key_of_a_table_that_is_not_rebuilt_must_check_at_commit_and_change_nothing() {
        assert_eq!(deferrable(key(None, 1, DeleteAction::NoAction)).conflict(), None);
        for (action, effect) in [
            (DeleteAction::NoAction, "it is not deferrable"),
            (DeleteAction::Restrict, "its ON DELETE action would refuse"),
            (DeleteAction::Cascade, "ON DELETE CASCADE would delete its rows"),
            (DeleteAction::SetNull, "ON DELETE SET NULL would clear its references"),
            (DeleteAction::SetDefault, "ON DELETE SET DEFAULT would change its references"),
        ] {
            let conflict = key(None, 1, action).conflict();
            assert_eq!(conflict.map(|found| found.effect), Some(effect));
        }
    }

    #[test]
    fn a_table_of_the_schema_may_be_referenced_only_from_the_schema() {
        let outside = key(None, 1, DeleteAction::NoAction).staged_conflict();
        assert_eq!(outside.map(|found| found.effect), Some("TRUNCATE would refuse"));
        assert_eq!(key(Some(1), 2, DeleteAction::Restrict).staged_conflict(), None);
    }

    #[test]
    fn rebuilt_tables_need_deferrable_keys_unless_the_parent_comes_first() {
        for action in [DeleteAction::NoAction, DeleteAction::Restrict, DeleteAction::SetNull] {
            assert_eq!(key(Some(2), 1, action).conflict(), None, "parent first");
            assert_eq!(key(Some(1), 1, action).conflict(), None, "the same table");
            assert!(key(Some(1), 2, action).conflict().is_some(), "child first");
        }
        for action in [DeleteAction::NoAction, DeleteAction::Cascade] {
            assert_eq!(deferrable(key(Some(1), 2, action)).conflict(), None);
        }
        assert!(deferrable(key(Some(1), 2, DeleteAction::Restrict)).conflict().is_some());
    }
}
