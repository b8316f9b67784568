//! The next step after a rebuild's refusal, with the names of the case.

use walrelay_errors::Coded as _;
use walrelay_inbox_admin::ForeignKeyConflict;
use walrelay_inbox_admin::{RebuildError, TableMismatch};

/// Returns the fix of this case. `None` if the fix of the error's code is enough.
pub(crate) fn fix_of(error: &RebuildError) -> Option<String> {
    use RebuildError as E;
    let text = match error {
        E::Inbox(_) | E::Operator(_) => return error.fix(),
        E::SubscriptionInUse { .. } => {
            "name another --subscription, or none: a rebuild needs one that nobody has pulled from"
        }
        E::SubscriptionDiffers { .. } => {
            "leave --subscription out, or name one that does not exist"
        }
        E::FilterUnreadable { .. } | E::FilterOnPosition { .. } => {
            "rebuild from the topic, whose new subscription has the same filter: --from-time TIME"
        }
        E::TopicWithoutRows { .. } => {
            "give this command the relay's options, above all --topic-template and --project, and the database of the \
             outbox with --outbox-url; or correct the topic or the filter of the subscription"
        }
        E::TopicRetainsNothing { .. } => {
            "now rebuild from the outbox with `walrelay consumer rebuild NAME --into SCHEMA`; for the next time, \
             set the topic's message retention"
        }
        E::TopicRetainsLess { .. } => {
            "name a later --from-time, or rebuild from the outbox with `walrelay consumer rebuild NAME --into SCHEMA`"
        }
        E::TimeInFuture { .. } => "name a --from-time from which on everything is applied again",
        E::RebuildRunning { holder: None, .. } => "run the command again: the other one has ended",
        E::RebuildRunning { holder: Some(holder), .. } => {
            return Some(format!(
                "wait for it, or end it: SELECT pg_terminate_backend({})",
                holder.pid
            ));
        }
        E::ForeignKeyConflicts { keys } => return Some(fix_of_keys(keys)),
        E::RebuildUnfinished { .. } => "finish that one first, or cancel it with --cancel",
        E::SchemaEmpty { schema } => return Some(fix_of_empty_schema(schema)),
        E::TableUnsuitable { mismatch, staged } => return Some(fix_of_table(mismatch, staged)),
        E::RowsRefused { hint, .. } => return Some(fix_of_refused_rows(hint.as_deref())),
        E::TablesNotEmpty { tables } => {
            return Some(format!("empty the schema's tables: TRUNCATE {}", tables.join(", ")));
        }
        E::TablesReplaced { .. } => "run the same command again: it begins from the first row",
        E::EventsMissing { consumer, .. } => return Some(fix_of_missing_events(consumer)),
        E::KeyEventsLost { .. } => "add --yes to rebuild all the same",
        E::TablesEmptied { consumer, .. } => return Some(fix_of_emptied_tables(consumer)),
        E::HistoryPruned { .. } => {
            "if rows of the outbox were deleted, too, the effects of those events would be gone: do not rebuild. If it has \
             them all, or the handler does not need the old ones, add --yes"
        }
        E::Admin(_)
        | E::Relay(_)
        | E::Postgres(_)
        | E::PubSub(_)
        | E::Interrupted
        | E::RowsUnusable { .. }
        | E::KeysWithoutRows => return None,
    };
    Some(text.to_owned())
}

fn fix_of_empty_schema(schema: &str) -> String {
    format!(
        "create it with one table for each that the handler writes: CREATE SCHEMA {schema}; CREATE TABLE \
         {schema}.balances (LIKE balances INCLUDING ALL)"
    )
}

fn fix_of_missing_events(consumer: &str) -> String {
    format!(
        "run the same command again with --yes to switch without them, or cancel it: walrelay consumer rebuild {consumer} \
         --cancel"
    )
}

fn fix_of_emptied_tables(consumer: &str) -> String {
    format!(
        "if --handler is wrong, cancel this rebuild (`walrelay consumer rebuild {consumer} --cancel`), empty the schema and \
         begin again. To switch all the same, run the same command with --yes"
    )
}

/// Returns the fix of a table of the schema that cannot replace a live table.
fn fix_of_table(mismatch: &TableMismatch, staged: &str) -> String {
    match mismatch {
        TableMismatch::NoLiveTable { .. } => format!(
            "drop {staged} if the handler does not write it, or put the schema of the live table on the search_path of \
             the role"
        ),
        TableMismatch::IsLive => {
            "name another --into, which is not on the search_path of the role".to_owned()
        }
        TableMismatch::OtherColumns { live } => format!(
            "make it like the live table: DROP TABLE {staged}; CREATE TABLE {staged} (LIKE {live} INCLUDING ALL)"
        ),
    }
}

/// Returns the fix of live tables that refuse the rows, from the server's hint.
fn fix_of_refused_rows(hint: Option<&str>) -> String {
    let hint = hint.unwrap_or(
        "A constraint or a trigger of the live table refuses them. Give the new table the same constraints, as in CREATE \
         TABLE SCHEMA.balances (LIKE balances INCLUDING ALL).",
    );
    format!("{hint} Or switch with SQL of your own: --switch-sql FILE")
}

/// Returns the statements that take the foreign keys out of the way.
fn fix_of_keys(keys: &[ForeignKeyConflict]) -> String {
    let drops = keys.iter().map(|key| {
        let ForeignKeyConflict { name, table, .. } = key;
        format!("ALTER TABLE {table} DROP CONSTRAINT {name}")
    });
    let drops = drops.collect::<Vec<_>>().join("; ");
    if keys.iter().all(|key| key.is_to_staged) {
        return format!("drop each before the rebuild: {drops}");
    }
    format!(
        "replace each by a key that is DEFERRABLE and has no ON DELETE action, or drop it until the rebuild is done ({drops}), \
         or switch with SQL of your own: --switch-sql FILE"
    )
}
