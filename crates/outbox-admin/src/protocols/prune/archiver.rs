//! Rows that are written to the archive before they are deleted.
//!
//! An object has at most [`OBJECT_ROWS_MAX`] rows. It is written, read back and compared,
//! and only then are its rows deleted by their ids. Exporting by a condition and deleting by the
//! same condition would lose rows that fulfil it in between. After a crash, some rows are in two
//! objects: the archive contains each deleted row at least once.

use std::time::SystemTime;

use walrelay_pg_client::{PgError, SCHEMA, SqlClient, quote_identifier, quote_literal, sql};

use super::condition::{Condition, refusal};
use crate::archive::{ArchiveStore, ObjectName, ObjectRows};
use crate::protocols::protocol_error::ProtocolError;

/// Most rows of one object: their ids fit into one DELETE.
const OBJECT_ROWS_MAX: usize = 10_000;

/// Most bytes of one object before compression. Limits memory.
const OBJECT_BYTES_MAX: usize = 32 << 20;

/// Rows that are fetched at once. A message of Pub/Sub has at most 10 MB, so these fit in memory.
const FETCH_ROWS: usize = 64;

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
    /// Ids of its rows.
    pub(super) ids: Vec<String>,
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
}

impl<'a> Archiver<'a> {
    pub(super) async fn new(
        client: &'a SqlClient,
        archive: &'a ArchiveStore,
        condition: &'a Condition,
    ) -> Result<Self, ProtocolError> {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [&condition.table.to_string(), &condition.id];
        let row = client.query_one(sql!("archiver.sql", "column_type"), &parameters).await;
        let id_type = row.map_err(PgError::from)?.get(0);
        Ok(Self { client, archive, condition, id_type })
    }

    /// Archives rows that may be deleted, in one object. Returns None if there is none.
    pub(super) async fn archive_some(
        &self,
        excluded: &str,
    ) -> Result<Option<ArchivedObject>, ProtocolError> {
        let Condition { text, seconds, .. } = self.condition;
        let text = text.replace("$1", &seconds.to_string());
        let name = ObjectName::Time(SystemTime::now());
        self.archive_selection(&format!("({text}) AND {excluded}"), name).await
    }

    /// Deletes the rows of an object, if they may still be deleted.
    pub(super) async fn delete(&self, object: &ArchivedObject) -> Result<u64, ProtocolError> {
        let Condition { table, text, seconds, id, .. } = self.condition;
        // spliced: the table, its column and the condition on its rows.
        let statement = format!(
            "DELETE FROM {table} c WHERE c.{} = ANY ($2::text[]::{}[]) AND ({text})",
            quote_identifier(id),
            self.id_type
        );
        let deleted = self.client.execute(&statement, &[seconds, &object.ids]).await;
        deleted.map_err(|error| refusal(table, error))
    }

    /// Archives all rows of a partition, in the order of their ids.
    pub(super) async fn archive_partition(
        &self,
        partition: &ArchivedPartition<'_>,
    ) -> Result<ArchivedRows, ProtocolError> {
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
            let ordered = format!("{selection}{after} ORDER BY c.{id}");
            let name = ObjectName::Partition { name: partition.name, part };
            let Some(object) = self.archive_selection(&ordered, name).await? else { break };
            all.add(object.rows);
            let Some(last) = object.ids.last().filter(|_| object.has_more) else { break };
            after = format!(" AND c.{id} > {}::{}", quote_literal(last), self.id_type);
        }
        Ok(all)
    }

    /// Reads rows in a short transaction, then writes and verifies their object. No transaction is
    /// open meanwhile.
    async fn archive_selection(
        &self,
        selection: &str,
        name: ObjectName<'_>,
    ) -> Result<Option<ArchivedObject>, ProtocolError> {
        let opened = format!("BEGIN READ ONLY; {}", self.cursor_sql(selection));
        let read = match self.client.batch_execute(&opened).await {
            Ok(()) => self.fetch().await,
            Err(error) => Err(error),
        };
        let end = if read.is_ok() { "COMMIT" } else { "ROLLBACK" };
        self.client.batch_execute(end).await.map_err(PgError::from)?;
        let Fetched { ids, lines, checksum, has_more } =
            read.map_err(|error| refusal(&self.condition.table, error))?;
        if ids.is_empty() {
            return Ok(None);
        }
        let rows = ids.len() as u64;
        let table = self.condition.table.to_string();
        self.archive.write(&table, name, ObjectRows { lines, checksum }).await?;
        let rows = ArchivedRows { rows, checksum, objects: 1 };
        Ok(Some(ArchivedObject { ids, rows, has_more }))
    }

    fn cursor_sql(&self, selection: &str) -> String {
        let Condition { table, id, .. } = self.condition;
        let (id, name) = (quote_identifier(id), quote_literal(&table.to_string()));
        // A line break of a json column is outside its strings, so a space has the same meaning.
        // spliced: the table, its column and the selection of rows.
        format!(
            "DECLARE walrelay_archive NO SCROLL CURSOR FOR
             SELECT c.{id}::text AS id, hashtextextended(c.{id}::text, 0) AS hash,
                    translate(json_build_object(
                      'table', {name}, 'event_id', c.{id}::text, 'xmin', c.xmin::text, 'dispatch_status', (
                        SELECT d.status FROM {SCHEMA}.app_outbox_dispatch d
                         WHERE d.event_id = c.{id}::text AND d.replay_id = '' ORDER BY d.updated_at DESC LIMIT 1),
                      'row', row_to_json(c))::text, E'\\n\\r', '  ') AS line
               FROM {table} c WHERE {selection}"
        )
    }

    async fn fetch(&self) -> Result<Fetched, tokio_postgres::Error> {
        let mut fetched = Fetched::default();
        loop {
            let fetch = format!("FETCH {FETCH_ROWS} FROM walrelay_archive");
            let rows = self.client.query(&fetch, &[]).await?;
            for row in &rows {
                fetched.ids.push(row.get("id"));
                fetched.checksum += i128::from(row.get::<_, i64>("hash"));
                fetched.lines.push_str(row.get("line"));
                fetched.lines.push('\n');
            }
            if rows.len() < FETCH_ROWS {
                return Ok(fetched);
            }
            if fetched.ids.len() >= OBJECT_ROWS_MAX || fetched.lines.len() >= OBJECT_BYTES_MAX {
                return Ok(Fetched { has_more: true, ..fetched });
            }
        }
    }
}

#[derive(Default)]
struct Fetched {
    ids: Vec<String>,
    lines: String,
    checksum: i128,
    has_more: bool,
}
