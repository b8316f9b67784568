//! One step of a snapshot: the rows of one transaction.

use clap::Args;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::Type;
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{SqlClient, sql};

use crate::error::Error;
use crate::options::ARGUMENTS;
use crate::options::values::count;

/// The rows of a snapshot, and the events that are written for them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(super) struct SnapshotRequest {
    /// Table, with or without its schema.
    #[arg(value_name = "TABLE")]
    pub(super) table: String,
    /// Aggregate type of the events, as in `customer`.
    #[arg(long, value_name = "TYPE", required = true)]
    pub(super) aggregate_type: String,
    /// Column of the aggregate id. It needs NOT NULL and a unique index of its own.
    #[arg(long, value_name = "COLUMN", required = true)]
    pub(super) aggregate_id: String,
    /// Event type of the events.
    #[arg(long, value_name = "TYPE", default_value = "snapshot")]
    pub(super) event_type: String,
    /// Other columns to publish, with commas. Without them, all columns are published.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(super) columns: Vec<String>,
    /// SQL condition on the rows, as in `status <> 'deleted'`.
    #[arg(long = "where", value_name = "CONDITION", default_value = "true")]
    pub(super) condition: String,
    /// Events a second, at most; 1 to 1000000.
    #[arg(long, value_name = "EVENTS", value_parser = count(1_u32, 1_000_000))]
    pub(super) rate: Option<u32>,
    /// Write an event also if the aggregate has events already.
    #[arg(long)]
    pub(super) include_versioned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotStart {
    /// After the last row of an interrupted run of the same snapshot.
    Resumed,
    FirstRow,
}

/// The progress after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Events that the snapshot has written so far.
    pub(super) events: u64,
    /// Events of this step.
    pub(super) written: u64,
    pub(super) skipped: u64,
    /// Id of the last row that it has read.
    pub(super) last_id: Option<String>,
    /// Whether no row is left.
    pub(super) is_done: bool,
}

/// Writes the events of the next rows, in one transaction.
pub(super) async fn step(
    client: &SqlClient,
    request: &SnapshotRequest,
    batch_rows: i32,
    start: SnapshotStart,
) -> Result<Step, Error> {
    let row = client
        .query_typed_one(
            sql!("snapshot.sql", "step"),
            &[
                (&request.table, Type::TEXT),
                (&request.aggregate_type, Type::TEXT),
                (&request.aggregate_id, Type::TEXT),
                (&request.event_type, Type::TEXT),
                (&request.columns, Type::TEXT_ARRAY),
                (&request.condition, Type::TEXT),
                (&request.include_versioned, Type::BOOL),
                (&batch_rows, Type::INT4),
                (&(start == SnapshotStart::FirstRow), Type::BOOL),
            ],
        )
        .await
        .map_err(|error| refused(error, request, "write events for rows"))?;
    let number = |column| row.get::<_, i64>(column).unsigned_abs();
    Ok(Step {
        events: number("events"),
        written: number("written"),
        skipped: number("skipped"),
        last_id: row.get("last_id"),
        is_done: row.get("is_done"),
    })
}

/// Returns the error of a snapshot that Postgres refuses. The names and the condition come from the
/// command line, and their errors need a fix there.
pub(super) fn refused(
    error: tokio_postgres::Error,
    request: &SnapshotRequest,
    action: &str,
) -> Error {
    let hint = match error.code() {
        Some(code) if *code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
            "name columns of the table: the --aggregate-id must be NOT NULL and have a unique index of its own"
        }
        Some(code) if is_about_arguments(code) => {
            "compare --aggregate-id, --columns and --where with the columns of the table"
        }
        _ => return AdminError::sql(format!("{action} of {}", request.table))(error).into(),
    };
    let message = error.as_db_error().map(DbError::message).unwrap_or_default();
    Error::unfit(format!("the snapshot of {} is refused: {message}", request.table), hint)
}

/// Returns whether the server could not interpret a column, an operator or a literal.
fn is_about_arguments(code: &SqlState) -> bool {
    [
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::AMBIGUOUS_COLUMN,
        SqlState::DATATYPE_MISMATCH,
        SqlState::SYNTAX_ERROR,
        SqlState::INVALID_TEXT_REPRESENTATION,
        SqlState::INVALID_PARAMETER_VALUE,
    ]
    .contains(code)
}
