//! Rows that are written to the archive before they are deleted.
//!
//! An object has at most [`OBJECT_ROWS_MAX`] rows. It is written, read back and compared, and only
//! then are exactly its rows deleted. Exporting by a condition and deleting by the same condition
//! would lose rows that fulfil it in between. After a crash, some rows are in two objects: the
//! archive contains each deleted row at least once.
//!
//! An id is neither unique nor present in every table. A row is identified by its place in a file of
//! the server and by the transaction that wrote it. A rewrite of the table creates another file.

use std::pin::pin;
use std::time::SystemTime;

use futures_util::TryStreamExt as _;
use walrelay_errors::Code;
use walrelay_pg_client::{
    PgError, SCHEMA, SqlClient, local_value_formats_sql, nullable_text_form_sql, quote_identifier,
    quote_literal, sql, text_form_sql,
};

use super::condition::{Condition, refusal};
use crate::archive::{ArchiveStore, ObjectName, ObjectRows};
use crate::protocols::protocol_error::ProtocolError;

/// Most rows of one object: their places fit into one DELETE.
const OBJECT_ROWS_MAX: usize = 10_000;

/// Most bytes of the rows of one object, as the server estimates them. Limits memory.
const OBJECT_BYTES_MAX: i64 = 32 << 20;

/// Most bytes of one row. Pub/Sub accepts at most 10 MB, so only discarded rows are larger.
const ROW_BYTES_MAX: i64 = OBJECT_BYTES_MAX;

/// Places and sizes that are fetched at once.
const FETCH_ROWS: usize = 64;

/// Most ids of rows that a warning lists.
const NAMED_ROWS_MAX: usize = 10;

/// The session that deletes rows, and where they are written before.
pub(super) struct PruneSession<'a> {
    pub(super) client: &'a SqlClient,
    pub(super) archive: Option<&'a ArchiveStore>,
}

/// The rows of one or more objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ArchivedRows {
    pub(super) rows: u64,
    /// Sum of the hashes of all ids, as Postgres calculates them.
    pub(super) checksum: i128,
    pub(super) objects: u64,
}

impl ArchivedRows {
    pub(super) const fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.checksum += other.checksum;
        self.objects += other.objects;
    }
}

/// An object that was written and verified.
pub(super) struct ArchivedObject {
    /// Its rows, in their order.
    rows_found: Vec<FoundRow>,
    pub(super) rows: ArchivedRows,
    /// Whether more rows may be left.
    pub(super) has_more: bool,
}

/// A partition whose rows are archived before it is dropped.
pub(super) struct ArchivedPartition<'a> {
    /// Name, as SQL.
    pub(super) name: &'a str,
    /// Bounds, as Postgres prints times. None if the partition is not a range of times.
    pub(super) bounds: Option<&'a (String, String)>,
}

/// Writes the rows of one table.
pub(super) struct Archiver<'a> {
    client: &'a SqlClient,
    archive: &'a ArchiveStore,
    condition: &'a Condition,
    id_type: String,
    /// SQL that estimates the bytes of a row.
    size: String,
}

impl<'a> Archiver<'a> {
    pub(super) async fn new(
        client: &'a SqlClient,
        archive: &'a ArchiveStore,
        condition: &'a Condition,
    ) -> Result<Self, ProtocolError> {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [&condition.table.to_string(), &condition.id];
        let row = client.query_one(sql!("archiver.sql", "columns"), &parameters).await;
        let row = row.map_err(PgError::from)?;
        let (id_type, size) = (row.get("id_type"), row.get("size"));
        Ok(Self { client, archive, condition, id_type, size })
    }

    /// Archives rows that may be deleted, in one object. Returns None if there is none.
    pub(super) async fn archive_some(
        &self,
        excluded: &str,
    ) -> Result<Option<ArchivedObject>, ProtocolError> {
        let text = self.condition.text(&self.condition.seconds.to_string());
        let name = ObjectName::Time(SystemTime::now());
        let selection = format!("({text}) AND {excluded}");
        let Selection { object, too_large } = self.archive_selection(&selection, name).await?;
        // The last pass finds all rows that are too large, so each run names them once.
        if !object.as_ref().is_some_and(|object| object.has_more) {
            self.warn_of_large_rows(&too_large);
        }
        Ok(object)
    }

    /// Deletes the rows of an object, if they may still be deleted.
    pub(super) async fn delete(&self, object: &ArchivedObject) -> Result<u64, ProtocolError> {
        let (Condition { table, seconds, .. }, text) = (self.condition, self.condition.text("$1"));
        let (places, identities) = places_of(&object.rows_found);
        // spliced: the table and the condition on its rows.
        let statement = format!(
            "DELETE FROM {table} c WHERE c.ctid = ANY ($2::text[]::tid[])
                AND {IDENTITY} IN (SELECT unnest($3::text[])) AND ({text})"
        );
        let deleted = self.client.execute(&statement, &[seconds, &places, &identities]).await;
        deleted.map_err(|error| refusal(table, error))
    }

    /// Archives all rows of a partition, in the order of their ids. Returns None if a row is too
    /// large.
    pub(super) async fn archive_partition(
        &self,
        partition: &ArchivedPartition<'_>,
    ) -> Result<Option<ArchivedRows>, ProtocolError> {
        let Condition { id, occurred_at, .. } = self.condition;
        let (id, occurred_at) = (quote_identifier(id), quote_identifier(occurred_at));
        let mut selection = format!("c.tableoid = {}::regclass", quote_literal(partition.name));
        // With the bounds, the server does not read other partitions.
        if let Some((lower, upper)) = partition.bounds {
            let (lower, upper) = (quote_literal(lower), quote_literal(upper));
            selection += &format!(" AND c.{occurred_at} >= {lower} AND c.{occurred_at} < {upper}");
        }
        let mut all = ArchivedRows::default();
        let mut after = String::new();
        for part in 1.. {
            let ordered = format!("{selection}{after} ORDER BY c.{id}, c.ctid");
            let name = ObjectName::Partition { name: partition.name, part };
            let Selection { object, too_large } = self.archive_selection(&ordered, name).await?;
            if !too_large.is_empty() {
                return Ok(None);
            }
            let Some(object) = object else { break };
            all.add(object.rows);
            let Some(last) = object.rows_found.last().filter(|_| object.has_more) else { break };
            after = self.after(last);
        }
        Ok(Some(all))
    }

    /// Returns a condition on the rows that follow this row in the order of the ids. Nulls are last.
    fn after(&self, FoundRow { id, place, .. }: &FoundRow) -> String {
        let (column, place) = (quote_identifier(&self.condition.id), quote_literal(place));
        match id {
            None => format!(" AND c.{column} IS NULL AND c.ctid > {place}::tid"),
            Some(id) => {
                let id = format!("{}::{}", quote_literal(id), self.id_type);
                format!(
                    " AND (c.{column} >= {id} AND (c.{column}, c.ctid) > ({id}, {place}::tid)
                           OR c.{column} IS NULL)"
                )
            }
        }
    }

    /// Reads rows in a short transaction, then writes and verifies their object. No transaction is
    /// open meanwhile.
    async fn archive_selection(
        &self,
        selection: &str,
        name: ObjectName<'_>,
    ) -> Result<Selection, ProtocolError> {
        let opened = format!(
            "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ; {}{}",
            local_value_formats_sql(),
            self.cursor_sql(selection)
        );
        let read = match self.client.batch_execute(&opened).await {
            Ok(()) => self.read().await,
            Err(error) => Err(error),
        };
        let end = if read.is_ok() { "COMMIT" } else { "ROLLBACK" };
        self.client.batch_execute(end).await.map_err(PgError::from)?;
        let (Found { rows: rows_found, too_large, has_more, .. }, lines) =
            read.map_err(|error| refusal(&self.condition.table, error))?;
        if rows_found.is_empty() {
            return Ok(Selection { object: None, too_large });
        }
        let checksum = rows_found.iter().map(|row| i128::from(row.hash)).sum();
        let rows = ArchivedRows { rows: rows_found.len() as u64, checksum, objects: 1 };
        let table = self.condition.table.to_string();
        self.archive.write(&table, name, ObjectRows { lines, checksum }).await?;
        let object = Some(ArchivedObject { rows_found, rows, has_more });
        Ok(Selection { object, too_large })
    }

    /// Finds the rows of an object, and then reads them one by one.
    async fn read(&self) -> Result<(Found, String), tokio_postgres::Error> {
        let found = self.find().await?;
        let mut lines = String::new();
        if found.rows.is_empty() {
            return Ok((found, lines));
        }
        let (places, identities) = places_of(&found.rows);
        let streamed = self.client.query_raw(&self.lines_sql(), [&places, &identities]).await?;
        let mut streamed = pin!(streamed);
        while let Some(row) = streamed.try_next().await? {
            lines.push_str(row.get("line"));
            lines.push('\n');
        }
        Ok((found, lines))
    }

    async fn find(&self) -> Result<Found, tokio_postgres::Error> {
        let mut found = Found::default();
        loop {
            let fetch = format!("FETCH {FETCH_ROWS} FROM walrelay_archive");
            let rows = self.client.query(&fetch, &[]).await?;
            if !rows.iter().all(|row| found.add(FoundRow::of(row), row.get("size"))) {
                return Ok(Found { has_more: true, ..found });
            }
            if rows.len() < FETCH_ROWS {
                return Ok(found);
            }
        }
    }

    fn cursor_sql(&self, selection: &str) -> String {
        let (Condition { table, id, .. }, size) = (self.condition, &self.size);
        let id = format!("c.{}", quote_identifier(id));
        let (event_id, text) = (nullable_text_form_sql(&id), text_form_sql(&id));
        // spliced: the table, its columns and the selection of rows.
        format!(
            "DECLARE walrelay_archive NO SCROLL CURSOR FOR
             SELECT {event_id} AS id, c.ctid::text AS place, {IDENTITY} AS identity,
                    hashtextextended({text}, 0) AS hash, ({size}) AS size
               FROM {table} c WHERE {selection}"
        )
    }

    fn lines_sql(&self) -> String {
        let Condition { table, id, .. } = self.condition;
        let (id, name) = (format!("c.{}", quote_identifier(id)), quote_literal(&table.to_string()));
        let (event_id, text) = (nullable_text_form_sql(&id), text_form_sql(&id));
        // A line break of a json column is outside its strings, so a space has the same meaning.
        // spliced: the table and its column.
        format!(
            "SELECT translate(json_build_object(
                      'table', {name}, 'event_id', {event_id}, 'xmin', c.xmin::text, 'dispatch_status', (
                        SELECT d.status FROM {SCHEMA}.app_outbox_dispatch d
                         WHERE d.event_id = {text} AND d.replay_id = '' ORDER BY d.updated_at DESC LIMIT 1),
                      'row', row_to_json(c.*))::text, E'\\n\\r', '  ') AS line
               FROM {table} c
              WHERE c.ctid = ANY ($1::text[]::tid[]) AND {IDENTITY} IN (SELECT unnest($2::text[]))
              ORDER BY {id}, c.ctid"
        )
    }

    /// Warns about the rows that are too large for the archive and stay in the table.
    fn warn_of_large_rows(&self, too_large: &[String]) {
        if too_large.is_empty() {
            return;
        }
        let error_code = Code::ArchiveFailed.name();
        let (table, rows) = (self.condition.table.to_string(), too_large.len());
        let ids = too_large[..rows.min(NAMED_ROWS_MAX)].join(", ");
        tracing::warn!(
            error_code,
            table,
            rows,
            ids,
            "rows are too large for the archive and stay in the outbox"
        );
    }
}

/// SQL that identifies a row of `c`, until it is deleted.
const IDENTITY: &str =
    "concat_ws(' ', c.tableoid, pg_relation_filenode(c.tableoid), c.ctid, c.xmin)";

/// A row of an object.
struct FoundRow {
    id: Option<String>,
    place: String,
    identity: String,
    hash: i64,
}

impl FoundRow {
    fn of(row: &tokio_postgres::Row) -> Self {
        Self {
            id: row.get("id"),
            place: row.get("place"),
            identity: row.get("identity"),
            hash: row.get("hash"),
        }
    }
}

fn places_of(rows: &[FoundRow]) -> (Vec<&str>, Vec<&str>) {
    rows.iter().map(|row| (row.place.as_str(), row.identity.as_str())).unzip()
}

/// The rows of the next object.
#[derive(Default)]
struct Found {
    rows: Vec<FoundRow>,
    /// Estimated bytes of the rows.
    bytes: i64,
    /// Ids of rows that are larger than an object may be.
    too_large: Vec<String>,
    has_more: bool,
}

impl Found {
    /// Adds a row. Returns false if it belongs to the next object.
    fn add(&mut self, row: FoundRow, size: i64) -> bool {
        if size > ROW_BYTES_MAX {
            self.too_large.push(row.id.unwrap_or_else(|| "null".to_owned()));
            return true;
        }
        let is_full = self.rows.len() >= OBJECT_ROWS_MAX || self.bytes + size > OBJECT_BYTES_MAX;
        if !is_full {
            self.bytes += size;
            self.rows.push(row);
        }
        !is_full
    }
}

/// The rows that one pass has found.
struct Selection {
    /// None without rows to archive.
    object: Option<ArchivedObject>,
    too_large: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: Option<&str>) -> FoundRow {
        let text = String::new();
        FoundRow { id: id.map(str::to_owned), place: text.clone(), identity: text, hash: 0 }
    }

    #[test]
    fn an_object_ends_before_the_row_that_exceeds_its_bytes() {
        let mut found = Found::default();
        assert!(found.add(row(Some("a")), 1));
        assert!(found.add(row(None), ROW_BYTES_MAX + 1), "a row that is too large is passed over");
        assert!(found.add(row(Some("b")), OBJECT_BYTES_MAX - 1));
        assert!(!found.add(row(Some("c")), 1));
        assert_eq!((found.rows.len(), found.too_large), (2, vec!["null".to_owned()]));
    }

    #[test]
    fn an_object_ends_after_its_last_row() {
        let mut found = Found::default();
        let added = (0..=OBJECT_ROWS_MAX).filter(|_| found.add(row(None), 1)).count();
        assert_eq!(added, OBJECT_ROWS_MAX);
    }
}
