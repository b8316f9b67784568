//! Checks whether the publication still publishes the outbox tables, and up to which position.
//!
//! The server silently skips rows that are not published, and its keepalives pass them. A confirmed
//! position must therefore lie before [`PublicationCheck::Intact`], unless the rows themselves prove it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, OnceLock};

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, ToSql, Type};
use tokio_postgres::{Client, Row};

use walrelay_errors::Code;

use crate::migrations::{RELAY_TABLES, UNLOGGED};
use crate::relay_condition::{Reason, ReasonKind};
use crate::store_error::StoreError;
use crate::unstreamed::{UNSTREAMED_SQL, Unstreamed};
use walrelay_pg_client::{QualifiedName, is_unsettled_sql, own_rows_sql, quote_identifier, sql};

/// The result of a check of the publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicationCheck {
    /// No change of the publication was committed before this position.
    Intact {
        up_to: Lsn,
        /// Why an outbox table has rows that the publication cannot publish, or why rows of dispatch
        /// state may be lost.
        unpublished: Option<Reason>,
    },
    /// A transaction is changing it, and has not committed yet.
    Changing,
    /// It has changed since the first check.
    Changed { what: String },
}

/// A table of a publication, as one state of the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TableIdentity {
    /// Name of the table, quoted.
    table: String,
    /// A text that differs once an object was recreated or changed, even if it was changed back.
    identity: String,
}

/// A publication and its tables, as of the first check of a session. Clones share that check. The
/// slot's record shows a change between two sessions, see [`read_publication_gap`].
#[derive(Debug, Clone)]
pub struct PublicationWatch {
    publication: String,
    tables: Vec<QualifiedName>,
    first: Arc<OnceLock<Vec<TableIdentity>>>,
}

impl PublicationWatch {
    #[must_use]
    pub fn new(publication: String, tables: Vec<QualifiedName>) -> Self {
        Self { publication, tables, first: Arc::default() }
    }

    pub(crate) fn tables(&self) -> &[QualifiedName] {
        &self.tables
    }

    /// Makes this the first check, if none was made. An incomplete publication is no first check.
    pub async fn begin(&self, client: &Client) -> Result<(), StoreError> {
        let rows = self.read(client).await?;
        if let Ok(found) = self.identities(&rows) {
            self.first.get_or_init(|| found);
        }
        Ok(())
    }

    /// Records the publication of the first check in the slot's row. A later process compares the
    /// catalog with this record, see [`read_publication_gap`].
    pub async fn note(&self, client: &Client, slot: &str) -> Result<(), StoreError> {
        let Some(first) = self.first.get() else { return Ok(()) };
        let tables: BTreeMap<&str, &str> =
            first.iter().map(|of| (of.table.as_str(), of.identity.as_str())).collect();
        let tables = serde_json::json!(tables).to_string();
        client
            .execute_typed(
                sql!("publication_watch.sql", "note"),
                &[(&slot, Type::TEXT), (&self.publication, Type::TEXT), (&tables, Type::TEXT)],
            )
            .await
            .map(drop)
            .map_err(StoreError::sql("record the publication in app_outbox_relay"))
    }

    /// Checks the publication and its tables.
    pub async fn look(&self, client: &Client) -> Result<PublicationCheck, StoreError> {
        // The position is read first. A transaction that commits a change before it has already
        // marked the catalog's rows. We then see either the change or the mark. Only the mark is
        // visible while the commit waits for a standby after it is in the WAL.
        let row = client
            .query_typed_one(
                sql!("publication_watch.sql", "wal_end"),
                &[(&RELAY_TABLES.as_slice(), Type::TEXT_ARRAY)],
            )
            .await
            .map_err(StoreError::sql("read the end of the WAL"))?;
        let up_to = Lsn::new(row.get::<_, PgLsn>("wal_end").into());
        let unlogged = row.get::<_, Option<&str>>("unlogged").map(unlogged_reason);
        let mut finished: Vec<String> = Vec::new();
        loop {
            let rows = self.read(client).await?;
            let marks: Vec<Mark> = rows.iter().flat_map(marks).collect();
            if marks.iter().any(|mark| mark.is_in_progress) {
                return Ok(PublicationCheck::Changing);
            }
            // The transaction ended after we had read the row, so the next check sees its change. A
            // mark that is seen twice only locked the row.
            if marks.iter().all(|mark| finished.contains(&mark.of)) {
                return Ok(match self.compare(&rows) {
                    Ok(()) => PublicationCheck::Intact {
                        up_to,
                        unpublished: rows.iter().find_map(unpublished_reason).or(unlogged),
                    },
                    Err(what) => PublicationCheck::Changed { what },
                });
            }
            if !finished.is_empty() {
                return Ok(PublicationCheck::Changing);
            }
            finished = marks.into_iter().map(|mark| mark.of).collect();
        }
    }

    async fn read(&self, client: &Client) -> Result<Vec<Row>, StoreError> {
        let schemas: Vec<&str> = self.tables.iter().map(QualifiedName::schema).collect();
        let names: Vec<&str> = self.tables.iter().map(QualifiedName::table).collect();
        client
            .query_typed(
                &LOOK,
                &[
                    (&self.publication, Type::TEXT),
                    (&schemas, Type::TEXT_ARRAY),
                    (&names, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(StoreError::sql("check the publication"))
    }

    fn identities(&self, rows: &[Row]) -> Result<Vec<TableIdentity>, String> {
        rows.iter().map(|row| self.identity(row)).collect()
    }

    fn compare(&self, rows: &[Row]) -> Result<(), String> {
        let found = self.identities(rows)?;
        let publication = &self.publication;
        let others: Vec<String> = rows.first().map_or_else(Vec::new, |row| row.get("others"));
        if !others.is_empty() {
            let others = others.join(", ");
            return Err(format!(
                "publication {publication} also publishes tables that this relay does not read: {others} (fix: if they are \
                 outbox tables, name all in `init`; if not: ALTER PUBLICATION {} DROP TABLE {others})",
                quote_identifier(publication)
            ));
        }
        if *self.first.get_or_init(|| found.clone()) == found {
            return Ok(());
        }
        let surplus: &str = rows.first().map_or("", |row| row.get("surplus"));
        Err(match surplus {
            "" => left_out(&format!(
                "publication {publication} was changed, or a table of it was taken out and put back"
            )),
            operations => format!(
                "publication {publication} was changed and publishes {operations} in addition to inserts (fix: ALTER PUBLICATION \
                 {} SET (publish = 'insert'))",
                quote_identifier(publication)
            ),
        })
    }

    /// Returns the table of a row, or why it is not published.
    fn identity(&self, row: &Row) -> Result<TableIdentity, String> {
        let publication = &self.publication;
        let table: &str = row.get("name");
        if !row.get::<_, bool>("has_publication") {
            return Err(left_out(&format!("publication {publication} was dropped or renamed")));
        }
        if !row.get::<_, bool>("has_table") {
            return Err(left_out(&format!("table {table} was dropped or renamed")));
        }
        if !row.get::<_, bool>("has_entry") {
            return Err(left_out(&format!(
                "publication {publication} no longer publishes table {table}"
            )));
        }
        if !row.get::<_, bool>("publishes_inserts") {
            return Err(left_out(&format!(
                "publication {publication} no longer publishes inserts"
            )));
        }
        Ok(TableIdentity { table: row.get("quoted"), identity: row.get("identity") })
    }
}

/// Returns why a running relay is not ready although the publication is intact.
fn unlogged_reason(table: &str) -> Reason {
    Reason::new(ReasonKind::DispatchFailure, format!("table {table} {UNLOGGED}"))
        .with_fix(format!("ALTER TABLE {table} SET LOGGED"))
        .with_code(Code::DispatchTableUnlogged.name())
}

fn unpublished_reason(row: &Row) -> Option<Reason> {
    let (table, found): (&str, _) = (row.get("quoted"), Unstreamed::of_row(row)?);
    let text = format!("table {table} {}", found.problem());
    let reason = Reason::new(ReasonKind::UnpublishedRows, text);
    Some(reason.with_fix(found.fix(table)).with_code(Code::OutboxTableUnsuitable.name()))
}

/// Returns why rows may be missing from the stream of this slot: the publication or a table of it
/// was changed after a relay last checked it, and the outbox has rows that are not settled. None if
/// no row can be missing, or if nothing is on record.
///
/// Postgres looks a publication up as it was at the position that it decodes. Putting a table back
/// therefore does not bring the rows back that were inserted meanwhile.
pub async fn read_publication_gap(
    client: &Client,
    slot: &str,
) -> Result<Option<String>, StoreError> {
    let changed = client
        .query_typed(sql!("publication_watch.sql", "gaps"), &[(&slot, Type::TEXT)])
        .await
        .map_err(StoreError::sql("compare the publication with its record"))?;
    for row in &changed {
        let publication: &str = row.get("publication");
        if !row.get::<_, bool>("has_publication") {
            return Ok(Some(format!("exists, but its publication {publication} was dropped")));
        }
        if !row.get::<_, bool>("is_same_publication") {
            let text = "was dropped and created again: the slot cannot use it for older rows";
            return Ok(Some(format!("exists, but its publication {publication} {text}")));
        }
        let table: &str = row.get("name");
        if row.get("has_table") && may_lack_rows(client, (table, row)).await? {
            return Ok(Some(format!(
                "exists, but publication {publication} or its table {table} was changed: rows inserted since may be missing from the stream"
            )));
        }
    }
    Ok(None)
}

/// Returns the row filters that the publication had when it was last recorded for this slot, by the
/// quoted name of the table.
pub async fn read_recorded_row_filters(
    client: &Client,
    slot: &str,
    publication: &str,
) -> Result<BTreeMap<String, String>, StoreError> {
    let sql = sql!("publication_watch.sql", "row_filters");
    let of = [(&slot as &(dyn ToSql + Sync), Type::TEXT), (&publication, Type::TEXT)];
    let rows = client.query_typed(sql, &of).await;
    let rows = rows.map_err(StoreError::sql("read the row filters on record"))?;
    Ok(rows.iter().map(|row| (row.get("name"), row.get("row_filter"))).collect())
}

/// Returns whether the table may have rows that are not settled.
async fn may_lack_rows(
    client: &Client,
    (table, changed): (&str, &Row),
) -> Result<bool, StoreError> {
    if !changed.get::<_, bool>("is_readable") {
        return Ok(true);
    }
    let settled: &str = changed.get("settled_xid");
    let is_own = own_rows_sql(table, "t");
    let is_unsettled = is_unsettled_sql("t.xmin", &format!("'{settled}'::xid8"));
    // spliced: the table, and a number that the server sent.
    let unsettled = format!(
        "SELECT EXISTS (SELECT FROM {table} t WHERE {is_unsettled} AND {is_own}) AS is_unsettled"
    );
    let row = client.query_typed_one(&unsettled, &[]).await;
    Ok(row.map_err(StoreError::sql("look for rows that are not settled"))?.get("is_unsettled"))
}

/// Adds to a change that rows may be missing, because inserts were left out.
fn left_out(change: &str) -> String {
    format!("{change}: rows inserted since may be missing from the stream")
}

/// A transaction that has marked a catalog row as deleted or replaced, or has locked it.
struct Mark {
    of: String,
    is_in_progress: bool,
}

fn marks(row: &Row) -> Vec<Mark> {
    let of = |column| row.get::<_, Vec<String>>(column).into_iter();
    let in_progress = of("in_progress").map(|of| Mark { of, is_in_progress: true });
    in_progress.chain(of("finished").map(|of| Mark { of, is_in_progress: false })).collect()
}

/// `xmax` is the transaction that marked a row, and is void after a rollback. Its missing high half
/// is that of the nearest transaction id. A transaction that is not before the snapshot cannot have
/// ended in it.
// spliced: a constant.
static LOOK: LazyLock<String> =
    LazyLock::new(|| sql!("publication_watch.sql", "look").replace("$unstreamed", &UNSTREAMED_SQL));
