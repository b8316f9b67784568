//! The record of each replay, in `app_outbox_replay`, from which it resumes.

use std::num::NonZeroU32;
use std::time::SystemTime;

use pgoutput_parser::{Lsn, PgTimestamp};
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};
use walrelay_core::ColumnFilter;
use walrelay_pg_client::{SqlError, sql};

use super::request::{DeadRows, Destination, ReplayRequest, ReplaySource, TableRows, WalRows};
use crate::admin_error::AdminError;
use crate::recovery::ResumePoint;
use crate::rows::unsettled_rows::AggregateKey;

/// One replay: its request, its progress and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayJob {
    /// Name of the replay, and the attribute of its messages.
    pub id: String,
    /// The slot whose rows are replayed.
    pub slot: String,
    /// System identifier of the server that the positions belong to.
    pub system_identifier: String,
    pub request: ReplayRequest,
    pub progress: ReplayProgress,
    /// How the replay ended. None if it may be resumed.
    pub end: Option<ReplayEnd>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Position before which every row is published.
    pub settled: Lsn,
    /// Number of published rows. After a crash, rows published since the last note are not counted.
    pub rows: u64,
    /// The aggregate at which a replay of the table resumes, once it has moved.
    pub resume_at: Option<ResumePoint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// Every row is published.
    Done,
    Cancelled,
}

impl ReplayEnd {
    /// Returns the value of the column `ended`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Records a replay. Deletes replays that ended more than a month ago.
pub(super) async fn begin_replay(client: &Client, replay: &ReplayJob) -> Result<(), AdminError> {
    let lsn = |lsn: Lsn| PgLsn::from(lsn.as_u64());
    let ReplayRequest { source, destination, matching, dead_rows } = &replay.request;
    let (wal, table) = match source {
        ReplaySource::Wal(rows) => (Some(rows), None),
        ReplaySource::Table(rows) => (None, Some(rows)),
    };
    let (destination, topic, rate) = match destination {
        Destination::Topic { template, rate } => {
            ("topic", Some(template), rate.map(|rate| i64::from(rate.get())))
        }
        Destination::InPlace => ("in place", None, None),
    };
    let none: Vec<String> = Vec::new();
    let time = |time: Option<PgTimestamp>| time.map(PgTimestamp::to_system_time);
    let since = time(wal.and_then(|rows| rows.since).or(table.and_then(|rows| rows.since)));
    client
        .execute_typed(
            sql!("record.sql", "begin_replay"),
            &[
                (&replay.id, Type::TEXT),
                (&replay.slot, Type::TEXT),
                (&replay.system_identifier, Type::TEXT),
                (&source.name(), Type::TEXT),
                (&wal.map(|rows| &rows.anchor), Type::TEXT),
                (&wal.map(|rows| lsn(rows.from)), Type::PG_LSN),
                (&wal.map(|rows| lsn(rows.to)), Type::PG_LSN),
                (&table.map(|rows| &rows.snapshot), Type::TEXT),
                (&destination, Type::TEXT),
                (&topic, Type::TEXT),
                (&rate, Type::INT8),
                (&since, Type::TIMESTAMPTZ),
                (&time(wal.and_then(|rows| rows.until)), Type::TIMESTAMPTZ),
                (&matching.aggregate_types, Type::TEXT_ARRAY),
                (&matching.aggregate_ids, Type::TEXT_ARRAY),
                (&matching.event_types, Type::TEXT_ARRAY),
                (table.map_or(&none, |rows| &rows.event_ids), Type::TEXT_ARRAY),
                (table.map_or(&none, |rows| &rows.order_by), Type::TEXT_ARRAY),
                (&(*dead_rows == DeadRows::LeaveOut), Type::BOOL),
                (&lsn(replay.progress.settled), Type::PG_LSN),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Returns whether this session now owns this replay, until the session ends.
pub(super) async fn take_replay(client: &Client, id: &str) -> Result<bool, AdminError> {
    let row = client
        .query_typed_one(sql!("record.sql", "take_replay"), &[(&id, Type::TEXT)])
        .await
        .map_err(AdminError::sql("take the replay"))?;
    Ok(row.get(0))
}

pub async fn read_replay(client: &Client, id: &str) -> Result<Option<ReplayJob>, AdminError> {
    let row = client
        .query_typed_opt(sql!("record.sql", "read_replay"), &[(&id, Type::TEXT)])
        .await
        .map_err(AdminError::sql("read app_outbox_replay"))?;
    row.as_ref().map(replay_of).transpose()
}

/// Reads the replays of these slots, newest first.
pub async fn read_replays(client: &Client, slots: &[String]) -> Result<Vec<ReplayJob>, AdminError> {
    let rows = client
        .query_typed(sql!("record.sql", "read_replays"), &[(&slots, Type::TEXT_ARRAY)])
        .await
        .map_err(AdminError::sql("read app_outbox_replay"))?;
    rows.iter().map(replay_of).collect()
}

fn replay_of(row: &Row) -> Result<ReplayJob, AdminError> {
    Ok(ReplayJob {
        id: row.get("id"),
        slot: row.get("slot"),
        system_identifier: row.get("system_identifier"),
        request: request_of(row)?,
        progress: progress_of(row),
        end: match row.get("ended") {
            None => None,
            Some("done") => Some(ReplayEnd::Done),
            Some("cancelled") => Some(ReplayEnd::Cancelled),
            Some(other) => return Err(unexpected("app_outbox_replay.ended", other)),
        },
    })
}

fn request_of(row: &Row) -> Result<ReplayRequest, AdminError> {
    let lsn = |column| Lsn::new(row.get::<_, PgLsn>(column).into());
    let time = |column| row.get::<_, Option<SystemTime>>(column).map(PgTimestamp::from_system_time);
    let rate = |rate: i64| u32::try_from(rate).ok().and_then(NonZeroU32::new);
    let source = match row.get("source") {
        "wal" => ReplaySource::Wal(WalRows {
            anchor: row.get("anchor"),
            from: lsn("from_lsn"),
            to: lsn("to_lsn"),
            since: time("since"),
            until: time("until"),
        }),
        "table" => ReplaySource::Table(TableRows {
            snapshot: row.get("snapshot"),
            since: time("since"),
            event_ids: row.get("event_ids"),
            order_by: row.get("order_by"),
        }),
        other => return Err(unexpected("app_outbox_replay.source", other)),
    };
    Ok(ReplayRequest {
        source,
        destination: match row.get("to_topic") {
            Some(template) => {
                let rate = row.get::<_, Option<i64>>("rate").and_then(rate);
                Destination::Topic { template, rate }
            }
            None => Destination::InPlace,
        },
        matching: ColumnFilter {
            aggregate_types: row.get("aggregate_types"),
            aggregate_ids: row.get("aggregate_ids"),
            event_types: row.get("event_types"),
        },
        dead_rows: if row.get("skip_dead") { DeadRows::LeaveOut } else { DeadRows::Stop },
    })
}

fn progress_of(row: &Row) -> ReplayProgress {
    let resume_at = row.get::<_, Option<i32>>("resume_table").map(|table| ResumePoint {
        table: usize::try_from(table).unwrap_or_default(),
        key: AggregateKey {
            aggregate_type: row.get("resume_type"),
            aggregate_id: row.get("resume_id"),
        },
    });
    ReplayProgress {
        settled: Lsn::new(row.get::<_, PgLsn>("settled_lsn").into()),
        rows: u64::try_from(row.get::<_, i64>("rows_published")).unwrap_or_default(),
        resume_at,
    }
}

fn unexpected(column: &'static str, value: &str) -> AdminError {
    let expected = "a value of this version";
    SqlError::UnexpectedValue { column, value: value.to_owned(), expected }.into()
}

/// Records the progress of a replay. Neither the position nor the aggregate moves back.
pub(super) async fn advance_replay(
    client: &Client,
    id: &str,
    progress: &ReplayProgress,
) -> Result<(), AdminError> {
    let ReplayProgress { settled, rows, resume_at } = progress;
    let resume_at = resume_at.as_ref();
    let table = resume_at.map(|at| i32::try_from(at.table).unwrap_or(i32::MAX));
    client
        .execute_typed(
            sql!("record.sql", "advance_replay"),
            &[
                (&id, Type::TEXT),
                (&PgLsn::from(settled.as_u64()), Type::PG_LSN),
                (&i64::try_from(*rows).unwrap_or(i64::MAX), Type::INT8),
                (&table, Type::INT4),
                (&resume_at.map(|at| &at.key.aggregate_type), Type::TEXT),
                (&resume_at.map(|at| &at.key.aggregate_id), Type::TEXT),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Records that a replay leaves out rows that can never be published.
pub(super) async fn note_skip_dead(client: &Client, id: &str) -> Result<(), AdminError> {
    client
        .execute_typed(sql!("record.sql", "note_skip_dead"), &[(&id, Type::TEXT)])
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Records how a replay ended, and its number of published rows.
pub(super) async fn end_replay(
    client: &Client,
    id: &str,
    end: ReplayEnd,
    rows: u64,
) -> Result<(), AdminError> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    client
        .execute_typed(
            sql!("record.sql", "end_replay"),
            &[(&id, Type::TEXT), (&end.name(), Type::TEXT), (&rows, Type::INT8)],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}
