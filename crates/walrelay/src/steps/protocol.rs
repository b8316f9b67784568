//! The texts about the steps and changes of a protocol.

use walrelay_outbox_admin::TimeWarning;
use walrelay_outbox_admin::protocols::{
    AnsweredRows, Change, DroppedShard, PrunableTable, SkippedRows, Step, TableRows,
};
use walrelay_outbox_replay::{SQL_ASCII_FIX, SQL_ASCII_RISK};

use crate::output::text::{human_bytes, quoted};
use crate::topics::{INVALID_TOPIC_FIX, invalid_topic_text};

/// Describes the rows of each table by the answer to the condition for unpublished rows.
fn answers(rows: &[AnsweredRows]) -> String {
    let of_table = |it: &AnsweredRows| {
        format!(
            "{} row(s) of {}, and never {} for which it is false and {} for which it is null",
            it.unpublished, it.table, it.published, it.unknown
        )
    };
    rows.iter().map(of_table).collect::<Vec<_>>().join("; ")
}

/// Describes a change in the imperative: "drop slot walrelay".
pub(crate) fn change_text(change: &Change) -> String {
    match change {
        Change::TakeAsPublished { condition, rows } => {
            format!("publish the existing rows for which {condition}: {}", answers(rows))
        }
        Change::Reshard { new, old } => format!(
            "drain and drop the slots {}, and continue with new slots {}",
            old.join(", "),
            new.join(", ")
        ),
        Change::CancelReshard { new } => {
            format!("cancel the change of the shard count, and drop the slots {}", new.join(", "))
        }
        Change::DropOldShards { old } => {
            format!("drop the slots {}, which other slots have replaced", old.join(", "))
        }
        Change::ReleaseSlot { slot, anchors } => {
            format!("publish every pending row, then drop slot {slot} and {anchors} anchor(s)")
        }
        Change::DropSlot { slot, rows } => {
            format!("drop slot {slot} with {rows} unconfirmed row(s)")
        }
        Change::AdvanceSlot { slot, to, rows } => {
            format!("move slot {slot} to {to}, and never publish {rows} row(s) before it")
        }
        Change::ResetSlot { slot, to, bytes } => format!(
            "move slot {slot} to {to}, and publish the rows after it again ({} of WAL)",
            human_bytes(*bytes)
        ),
        Change::RecoverSlot { slot, rows: Some(rows) } => {
            format!(
                "create a new slot {slot}, and publish {} that are not on record as published",
                counted(rows)
            )
        }
        Change::RecoverSlot { slot, rows: None } => {
            format!("create a new slot {slot}, and publish every row from the given time on again")
        }
        Change::AdvanceAnchor { anchor, to, bytes } => format!(
            "move anchor {anchor} to {to}; the {} of WAL before it can no longer be replayed",
            human_bytes(*bytes)
        ),
        Change::DropAnchor { anchor, bytes } => {
            format!("drop anchor {anchor}, which retains {} of WAL", human_bytes(*bytes))
        }
        Change::ForgetAggregates { aggregate_type, aggregates } => {
            format!("forget the versions of {aggregates} aggregate(s) of type {aggregate_type}")
        }
        Change::Prune { tables } => {
            let tables: Vec<String> = tables.iter().map(prunable_text).collect();
            format!("delete {}", tables.join(", "))
        }
    }
}

/// Lists numbers of rows: "3 row(s) of public.app_outbox".
fn counted(rows: &[TableRows]) -> String {
    let each = rows.iter().map(|it| format!("{} row(s) of {}", it.rows, it.table));
    each.collect::<Vec<_>>().join(", ")
}

fn prunable_text(PrunableTable { table, rows, partitions }: &PrunableTable) -> String {
    match partitions.is_empty() {
        true => format!("{rows} row(s) of {table}"),
        false => format!(
            "{rows} row(s) of {table} (among them all of partition {}, which is dropped)",
            partitions.join(", ")
        ),
    }
}

/// Describes a step, in lines. A printed `replay start` repeats `replay_options`.
pub(crate) fn step_text(step: &Step, replay_options: &[String]) -> String {
    match step {
        Step::ShardsSwitched { at, handed_over } => format!(
            "switched at {at}: rows committed before were published through the old slots, or are in dispatch state\n\
             handed over: {handed_over} row(s) of dispatch state\n"
        ),
        Step::ShardDropped(DroppedShard { slot, publication, publication_dropped }) => {
            match publication_dropped {
                true => format!("dropped: slot {slot} and publication {publication}\n"),
                false => format!(
                    "dropped: slot {slot}; left to its owner: publication {publication}, which nothing needs\n"
                ),
            }
        }
        Step::ReshardCancelled => "cancelled: relays of the old shards continue\n".to_owned(),
        Step::RowsSkipped(skipped) => skipped_text(skipped, replay_options),
        Step::EarlierRowsLeft { slot, rows } => {
            format!("not published: rows from before slot {slot}\n{}", rows_text(rows))
        }
        Step::FailoverEnabled { slot } => {
            format!("converted: slot {slot} is a failover slot now\n")
        }
        Step::OperationFinished { slot, operation } => {
            format!("finished: {}\n", operation.describe(slot))
        }
        Step::OperationLeftToRelay { slot, operation } => {
            format!("to be finished by walrelay run: {}\n", operation.describe(slot))
        }
        Step::OperationCancelled { slot, operation } => {
            format!(
                "cancelled, because no process works on it any more: {}\n",
                operation.describe(slot)
            )
        }
        Step::RowsLeftToRelay { slot, operation, rows, is_earlier } => format!(
            "slot {slot}: {}\n{}{}{START_RELAY}",
            operation.describe(slot),
            rows_text(rows),
            if *is_earlier { EARLIER_BACKFILL } else { "" }
        ),
        Step::BackfillDone => "the backfill is finished: a relay has done it\n".to_owned(),
        Step::OtherSetUp => OTHER_SET_UP.to_owned(),
        Step::Created(part) => format!("created: {part}\n"),
        Step::AlreadyThere(part) => format!("already there: {part}\n"),
        Step::EncodingUnchecked { database } => {
            format!("warning: database {database} {SQL_ASCII_RISK}\n  fix: {SQL_ASCII_FIX}\n")
        }
        Step::TimeColumn(warning) => time_text(warning),
        Step::MayHaveFailedRows { table, column, columns } => format!(
            "warning: {table} has {}. If the other publisher sets {column} in rows that it failed to publish, these rows \
             are never published\n  fix: name all unpublished rows with --unpublished-where CONDITION instead\n",
            columns.join(", ")
        ),
        Step::TopicRefused(error) => format!("not created: {error}\n"),
        Step::TopicsUnknown => NO_TOPICS.to_owned(),
        Step::RowsWithoutTopic(rows) => {
            format!("no topic: {}\n  fix: {INVALID_TOPIC_FIX}\n", invalid_topic_text(rows))
        }
        Step::RowsDeleted(TableRows { table, rows }) => {
            format!("{rows} row(s) deleted from {table}\n")
        }
        Step::PartitionDropped { table, partition } => {
            format!("dropped: partition {partition} of {table}\n")
        }
    }
}

const EARLIER_BACKFILL: &str =
    "an earlier run started this backfill, which is unfinished: nothing new is started\n";

fn time_text(TimeWarning { table, problem, fix }: &TimeWarning) -> String {
    format!("warning: table {table} {problem}\n  fix: {fix}\n")
}

const OTHER_SET_UP: &str = "another process sets up an outbox in this database: waiting for it\n";

const NO_TOPICS: &str = "no topics: the outbox is empty, so its topics are unknown; name them with \
     --create-topics=NAME,NAME\n";

/// The next step after a new slot exists.
pub(crate) const START_RELAY: &str =
    "start the relay: it publishes these rows first, and then the rows of the slot\n";

/// Reports the rows that a relay publishes before the slot streams.
pub(crate) fn rows_text(rows: &[TableRows]) -> String {
    let line = |it: &TableRows| {
        format!("may not have been published: {} row(s) of {}\n", it.rows, it.table)
    };
    rows.iter().map(line).collect()
}

/// Describes the skipped rows, with the command that publishes them from the table.
fn skipped_text(skipped: &SkippedRows, replay_options: &[String]) -> String {
    let ids = skipped.publishable_ids().into_iter();
    let ids: String = ids.map(|id| format!(" --event-id {}", quoted(id))).collect();
    let options: String = replay_options.iter().map(|word| format!(" {}", quoted(word))).collect();
    let next = match ids.is_empty() {
        true => String::new(),
        false => format!(
            "to publish them from the table, start the relay, then: walrelay replay start --source table --in-place{options}{ids}\n"
        ),
    };
    format!("to skip: {}{next}", skipped.counted())
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::Lsn;
    use walrelay_outbox_admin::lookahead::SkippedRow;

    use super::*;

    #[test]
    fn the_text_about_skipped_rows_ends_with_the_command_that_publishes_them() {
        let row = |id: &str, is_sendable| SkippedRow {
            event_id: Some(id.to_owned()),
            at: "0/64#0".to_owned(),
            is_sendable,
        };
        let skipped = SkippedRows {
            target: Lsn::new(108),
            transactions: 1,
            inserts: 3,
            other_changes: 0,
            rows: vec![row("a", true), row("big", false), row("c", true)],
            notes: Vec::new(),
        };
        let text = skipped_text(&skipped, &[]);
        let command = "replay start --source table --in-place --event-id a --event-id c\n";
        assert!(text.starts_with("to skip: 3 row(s)") && text.ends_with(command), "{text}");
    }
}
