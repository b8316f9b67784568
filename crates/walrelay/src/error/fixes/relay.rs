//! The fix of a relay's error that names a row of the case. The relay returns data, and only this
//! program names commands.

use walrelay_core::{ColumnUse, Field, MissingColumn, RouteError};
use walrelay_errors::{Chain, Code, Coded as _};
use walrelay_outbox_store::{Reason, ReasonKind};
use walrelay_pg_client::quote_identifier;
use walrelay_relay::error::RelayError;
use walrelay_relay::stream::outbox_tables::OtherTable;
use walrelay_relay::stream::pipeline_error::{PipelineError, SendFailurePosition};

use crate::error::explain;

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
        RelayError::Session(PipelineError::OtherTable(other)) => Some(remove_table(other)),
        _ => None,
    }
}

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
        ColumnUse::Attribute => "--attribute-columns",
    }
}

/// Returns the commands that pass a row that the server cannot send.
pub(crate) fn pass_unsendable(position: &str) -> String {
    let command = format!("walrelay slot advance --to-lsn {position}");
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

/// Returns the statement that removes a table from the publication.
fn remove_table(OtherTable { table, publication, .. }: &OtherTable) -> String {
    // spliced: the names, in a text for a person.
    format!(
        "ALTER PUBLICATION {} DROP TABLE {table}, then start the relay, which ignores the rows of this table: walrelay run; \
         if {table} is an outbox table, give it to walrelay init with all others instead, each with --outbox-table",
        quote_identifier(publication)
    )
}

/// Returns the record of a relay that stops at a row or at a change of the publication, for
/// `status` and `check`.
pub(crate) fn stop_reason(error: &RelayError) -> Option<Reason> {
    let code = error.code();
    let is_recorded = code == Code::RowUnreadable
        || matches!(
            error,
            RelayError::Session(
                PipelineError::OtherTable(_) | PipelineError::PublicationChanged { .. }
            )
        );
    is_recorded.then(|| {
        let fix = fix_of(error).unwrap_or_else(|| explain::fix(code).to_owned());
        let reason = Reason::new(ReasonKind::UnreadableRow, Chain(error).to_string());
        reason.with_fix(fix).with_code(code.name())
    })
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Lsn, Position};
    use walrelay_pg_client::QualifiedName;

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
        let reason = stop_reason(&unreadable(Some("e'1"))).expect("it is recorded");
        assert!(reason.text.contains("which is event e'1"), "{}", reason.text);
        let fix = reason.fix.unwrap_or_default();
        let statement = "DELETE FROM public.app_outbox WHERE id = 'e''1', then";
        assert!(fix.contains(statement) && fix.contains("walrelay run"), "{fix}");
        let without_id = stop_reason(&unreadable(None)).expect("it is recorded");
        assert_eq!(without_id.fix.as_deref(), Some(explain::fix(Code::RowUnreadable)));
        assert!(stop_reason(&RelayError::InRecovery).is_none());
    }

    #[test]
    fn a_table_that_is_no_outbox_table_is_recorded_with_the_statement_that_removes_it() {
        let other = RelayError::Session(PipelineError::OtherTable(OtherTable {
            commit_lsn: Lsn::new(16),
            table: QualifiedName::new("s2", "biz"),
            publication: "w-1".to_owned(),
        }));
        let reason = stop_reason(&other).expect("it is recorded");
        assert!(reason.text.contains("0/10") && reason.text.contains("s2.biz"), "{}", reason.text);
        assert_eq!(reason.code.as_deref(), Some("publication-unsuitable"));
        let fix = reason.fix.unwrap_or_default();
        assert!(fix.starts_with("ALTER PUBLICATION \"w-1\" DROP TABLE s2.biz, then"), "{fix}");
    }
}
