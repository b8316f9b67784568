//! Checks whether the publication still publishes the outbox tables, and up to which position.
//!
//! The server silently skips rows that are not published, and its keepalives pass them. A confirmed
//! position must therefore lie before [`Watch::Intact`], unless the rows themselves prove it.

use std::sync::{Arc, OnceLock};

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};

use crate::store_error::StoreError;
use walrelay_pg_client::{QualifiedName, SqlText, quote_identifier, sql};

/// The result of a check of the publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicationCheck {
    /// No change of the publication was committed before this position.
    Intact {
        /// The position.
        up_to: Lsn,
    },
    /// A transaction is changing it, and has not committed yet.
    Changing,
    /// It has changed since the first check.
    Changed {
        /// Description of the change.
        what: String,
    },
}

/// A publication and its tables, as of the first check. Clones share that check, so a second
/// session notices a change between two sessions.
#[derive(Debug, Clone)]
pub struct PublicationWatch {
    publication: String,
    tables: Vec<QualifiedName>,
    first: Arc<OnceLock<Vec<String>>>,
}

impl PublicationWatch {
    /// Creates a watch that has not checked yet.
    #[must_use]
    pub fn new(publication: String, tables: Vec<QualifiedName>) -> Self {
        Self { publication, tables, first: Arc::default() }
    }

    /// Returns the outbox tables.
    pub(crate) fn tables(&self) -> &[QualifiedName] {
        &self.tables
    }

    /// Checks the publication and its tables.
    ///
    /// # Errors
    ///
    /// The server refused the statement, or the connection ended.
    pub async fn look(&self, client: &Client) -> Result<PublicationCheck, StoreError> {
        // The position is read first. A transaction that commits a change before it has already
        // marked the catalog's rows. We then see either the change or the mark. Only the mark is
        // visible while the commit waits for a standby after it is in the WAL.
        let row = client
            .query_typed_one("SELECT pg_current_wal_insert_lsn() AS wal_end", &[])
            .await
            .map_err(StoreError::sql("read the end of the WAL"))?;
        let up_to = Lsn::new(row.get::<_, PgLsn>("wal_end").into());
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
                    Ok(()) => PublicationCheck::Intact { up_to },
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

    fn compare(&self, rows: &[Row]) -> Result<(), String> {
        let found: Vec<String> =
            rows.iter().map(|row| self.identity(row)).collect::<Result<_, _>>()?;
        let publication = &self.publication;
        let others: Vec<String> = rows.first().map_or_else(Vec::new, |row| row.get("others"));
        if !others.is_empty() {
            let others = others.join(", ");
            return Err(format!(
                "publication {publication} also publishes tables that are not outbox tables: {others} (fix: ALTER PUBLICATION {} DROP \
                 TABLE {others})",
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

    /// Returns a text that differs once an object was recreated or changed, even if it was changed
    /// back.
    fn identity(&self, row: &Row) -> Result<String, String> {
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
        Ok(row.get("identity"))
    }
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
static LOOK: SqlText = SqlText::new(|| sql!("publication_watch.sql", "look"));
