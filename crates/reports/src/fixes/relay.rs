//! The fix of a relay's error that names a row of the case. The relay returns data, and only this
//! program names commands.

use walrelay_core::{ColumnUse, Field, MissingColumn, RouteError};
use walrelay_errors::{Chain, Code, Coded as _};
use walrelay_outbox_store::{Reason, ReasonKind};
use walrelay_relay::error::RelayError;
use walrelay_relay::stream::pipeline_error::{PipelineError, SendFailurePosition};

use crate::explain;

/// Returns the fix of this case. `None` if the fix of the error's code is enough.
#[expect(clippy::wildcard_enum_match_arm, reason = "the code of the others has the fix")]
pub(crate) fn fix_of(error: &RelayError) -> Option<String> {
    match error {
        RelayError::AtFirst(error) => fix_of(error),
        RelayError::Unsendable(failure) => match failure.at {
            SendFailurePosition::Row { position, .. } => {
                Some(pass_unsendable(&position.to_string()))
            }
            SendFailurePosition::Behind(_) => None,
        },
        RelayError::Session(PipelineError::Row(RouteError::Value {
            table,
            event_id: Some(id),
            ..
        })) => Some(delete_row(table, id)),
        RelayError::Session(PipelineError::Columns(MissingColumn { used_by, .. })) => {
            let option = option_of(*used_by);
            Some(format!("name the right column with {option}, or add the column"))
        }
        _ => None,
    }
}

/// Returns the option that names a column.
const fn option_of(used_by: ColumnUse) -> &'static str {
    match used_by {
        ColumnUse::Field(Field::Id) => "--column-id",
        ColumnUse::Field(Field::Payload) => "--column-payload",
        ColumnUse::Field(Field::AggregateType) => "--column-aggregate-type",
        ColumnUse::Field(Field::AggregateId) => "--column-aggregate-id",
        ColumnUse::Field(Field::EventType) => "--column-event-type",
        ColumnUse::Field(Field::Version) => "--column-version",
        ColumnUse::Field(Field::SchemaVersion) => "--column-schema-version",
        ColumnUse::Field(Field::Headers) => "--column-headers",
        ColumnUse::Field(Field::OccurredAt) => "--column-occurred-at",
        ColumnUse::TopicTemplate => "--topic-template",
        ColumnUse::OrderingKey => "--ordering-key",
    }
}

/// Returns the commands that pass a row that the server cannot send.
pub(crate) fn pass_unsendable(position: &str) -> String {
    let command = format!("walrelay slot advance --to-lsn {position} --skip-events");
    format!(
        "{command} names the rows that it skips; then run it again with --discard-rows N --yes and their number N"
    )
}

/// Returns the commands that pass a row of the table that cannot be read. Updates are refused.
fn delete_row(table: &str, event_id: &str) -> String {
    let id = event_id.replace('\'', "''");
    format!(
        "pass the row: DELETE FROM {table} WHERE id = '{id}', then start the relay: walrelay run; write the event again \
         with valid values"
    )
}

/// Returns the record of a relay that stops at a row that it cannot read, for `status` and `check`.
pub fn unreadable_row(error: &RelayError) -> Option<Reason> {
    let fix = || fix_of(error).unwrap_or_else(|| explain::fix(Code::RowUnreadable).to_owned());
    (error.code() == Code::RowUnreadable).then(|| {
        let reason = Reason::new(ReasonKind::UnreadableRow, Chain(error).to_string());
        reason.with_fix(fix()).with_code(Code::RowUnreadable.name())
    })
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Lsn, Position};

    use super::*;

    fn unreadable(event_id: Option<&str>) -> RelayError {
        RelayError::Session(PipelineError::Row(RouteError::Value {
            position: Position { commit_lsn: Lsn::new(16), tx_index: 0 },
            table: "public.app_outbox".to_owned(),
            event_id: event_id.map(str::to_owned),
            column: "aggregateid".to_owned(),
            problem: "is not UTF-8",
        }))
    }

    #[test]
    fn a_row_that_cannot_be_read_is_recorded_with_the_statement_that_passes_it() {
        let reason = unreadable_row(&unreadable(Some("e'1"))).expect("it is recorded");
        assert!(reason.text.contains("which is event e'1"), "{}", reason.text);
        let fix = reason.fix.unwrap_or_default();
        let statement = "DELETE FROM public.app_outbox WHERE id = 'e''1', then";
        assert!(fix.contains(statement) && fix.contains("walrelay run"), "{fix}");
        let without_id = unreadable_row(&unreadable(None)).expect("it is recorded");
        assert_eq!(without_id.fix.as_deref(), Some(explain::fix(Code::RowUnreadable)));
        assert!(unreadable_row(&RelayError::InRecovery).is_none());
    }
}
