//! The texts about the steps and changes of a rebuild.

use std::time::SystemTime;

use walrelay_consumer_rebuild::{RebuildChange, RebuildStep, UnreadRows};
use walrelay_inbox::operator::event_commands::{EarlierEvents, OperatorDecisions};
use walrelay_relay::observe::report::rfc3339;

use crate::commands::replay::left_out;
use crate::error::Error;
use crate::output::print;

/// Describes a change in the imperative: "cancel the rebuild of consumer billing".
pub(super) fn change_text(change: &RebuildChange) -> String {
    match change {
        RebuildChange::InPlace { consumer } => {
            format!("empty the tables of consumer {consumer}, and rebuild it in place")
        }
        RebuildChange::WithoutDecisions { consumer, events } => format!(
            "rebuild consumer {consumer} without the edits and discards of {events} event(s), which `walrelay inbox list` shows"
        ),
        RebuildChange::Cancel { consumer, generation } => {
            format!("cancel the rebuild of consumer {consumer} to generation {generation}")
        }
    }
}

/// Prints a step, or logs it if it is a warning.
pub(super) fn show(step: &RebuildStep) -> Result<(), Error> {
    match step {
        RebuildStep::EventsOutOfReach { .. }
        | RebuildStep::ReplyLost
        | RebuildStep::PublishesRows { .. }
        | RebuildStep::ReplayLeft { .. }
        | RebuildStep::NothingApplied { .. }
        | RebuildStep::RefillInterrupted { .. }
        | RebuildStep::RowsLeftOut { .. } => {
            log(step);
            Ok(())
        }
        RebuildStep::ReachesBackTo(since) => print(&reach(*since)),
        RebuildStep::DecisionsForgotten { decided, generation } => {
            print(&forgotten(*decided, *generation))
        }
        RebuildStep::TablesEmptied(unread) => print(&emptied(*unread)),
        RebuildStep::NothingChanged => print("nothing was changed\n"),
        RebuildStep::SubscriptionReady { name, is_new } => {
            let verb = if *is_new { "created" } else { "already there" };
            print(&format!("{verb}: subscription {name}\n"))
        }
        RebuildStep::SubscriptionSought => print(
            "sought; waiting a minute until that is in effect everywhere, the consumer goes on meanwhile\n",
        ),
        RebuildStep::BegunFromTopic { generation, since } => {
            print(&format!("begun: generation {generation}, from {}\n", rfc3339(*since)))
        }
        RebuildStep::ConsumerPaused { consumer } => print(&format!(
            "it was paused before and stays so: walrelay consumer resume {consumer}\n"
        )),
        RebuildStep::InstancesFollow { .. }
        | RebuildStep::WouldPublish { .. }
        | RebuildStep::BegunFromOutbox { .. }
        | RebuildStep::RowsPublished { .. }
        | RebuildStep::RowsInInbox { .. } => print(&refill_text(step)),
        RebuildStep::WouldFill { .. }
        | RebuildStep::Continues
        | RebuildStep::FillingBegins { .. }
        | RebuildStep::InUse { .. }
        | RebuildStep::KeysRebuilt { .. }
        | RebuildStep::NoRebuild { .. }
        | RebuildStep::SchemaRebuildCancelled { .. }
        | RebuildStep::RefillCancelled { .. } => print(&direct_text(step)),
    }
}

/// Logs a step that needs attention but is no result.
#[expect(clippy::wildcard_enum_match_arm, reason = "the caller names the steps that are logged")]
fn log(step: &RebuildStep) {
    match step {
        RebuildStep::EventsOutOfReach { earlier, generation } => {
            if let Some(text) = out_of_reach(*earlier, *generation) {
                tracing::warn!("{text}");
            }
        }
        RebuildStep::ReplyLost => {
            tracing::warn!("it was done all the same: the answer was lost");
        }
        RebuildStep::PublishesRows { rows } => {
            tracing::info!(rows, "publishing the rows of the outbox");
        }
        RebuildStep::ReplayLeft { id, error } => {
            tracing::warn!(error, "to be cancelled by hand: walrelay replay cancel {id}");
        }
        RebuildStep::NothingApplied { count, rows } => {
            tracing::warn!(count, rows, "nothing is applied: is `walrelay consumer run` running?");
        }
        RebuildStep::RefillInterrupted { consumer, subscription } => tracing::warn!(
            "consumer {consumer:?} reads {subscription} until the same command has done all of it once more"
        ),
        RebuildStep::RowsLeftOut { rows, named } => {
            let named = named.join("; ");
            tracing::warn!(rows, named, "rows that can never be published are left out");
        }
        _ => {}
    }
}

/// Returns the text of a step of a rebuild that uses a subscription of its own.
#[expect(clippy::wildcard_enum_match_arm, reason = "the caller names the steps")]
fn refill_text(step: &RebuildStep) -> String {
    match step {
        RebuildStep::InstancesFollow { consumer, old } => format!(
            "running instances follow within seconds, but for those that were given a --subscription: start them \
             anew. Then nobody reads {old} any more: delete it\n\
             what fails this time waits or is dead again: `walrelay consumer status {consumer}` counts it\n"
        ),
        RebuildStep::WouldPublish { rows, topic } => {
            format!("would publish {rows} row(s) to {topic} and apply them again\n")
        }
        RebuildStep::BegunFromOutbox { generation, subscription } => {
            format!("begun: generation {generation}, which reads {subscription}\n")
        }
        RebuildStep::RowsPublished { rows, topic, left_out: rows_left_out } => {
            format!("published: {rows} row(s) to {topic}\n{}", left_out(*rows_left_out))
        }
        RebuildStep::RowsInInbox { consumer, unfinished, usual, refill } => {
            let unfinished = match unfinished {
                0 => String::new(),
                count => format!(
                    "; {count} of them wait or are dead: `walrelay inbox list --consumer {consumer}`"
                ),
            };
            format!(
                "every row is in the inbox{unfinished}\n\
                 running instances read {usual} again within seconds. Then nobody reads {refill} any more: delete it and \
                 its topic\n"
            )
        }
        _ => String::new(),
    }
}

/// Returns the text of a step of a rebuild that applies the rows itself, or of a cancellation.
#[expect(clippy::wildcard_enum_match_arm, reason = "the caller names the steps")]
fn direct_text(step: &RebuildStep) -> String {
    match step {
        RebuildStep::WouldFill { rows, schema } => {
            format!("would apply {rows} row(s) in schema {schema} and put it in use\n")
        }
        RebuildStep::Continues => "continuing: rows that were applied are skipped\n".to_owned(),
        RebuildStep::FillingBegins { generation, schema, rows } => format!(
            "filling generation {generation} in schema {schema}: {rows} row(s); generation {} stays in use meanwhile\n",
            generation - 1
        ),
        RebuildStep::InUse { generation } => {
            format!("in use: generation {generation}; running instances follow within seconds\n")
        }
        RebuildStep::KeysRebuilt { events, keys, generation, is_dry_run } => {
            let done = if *is_dry_run { "would be rebuilt" } else { "rebuilt" };
            format!("{done}: {events} event(s) of {keys} key(s), in generation {generation}\n")
        }
        RebuildStep::NoRebuild { consumer } => {
            format!("no rebuild of consumer {consumer} is unfinished\n")
        }
        RebuildStep::SchemaRebuildCancelled { schema } => {
            format!("given up; the tables of schema {schema} stay as they are\n")
        }
        RebuildStep::RefillCancelled { consumer, subscription } => format!(
            "given up; consumer {consumer} reads {subscription} again, and its read model has only a part of the events\n"
        ),
        _ => String::new(),
    }
}

fn reach(since: SystemTime) -> String {
    format!(
        "what was published from {} on is applied again, as far as the topic kept it by then; what came before is not, and a \
         --reset-sql that empties the projection loses it. `walrelay audit` shows what is missing afterwards, and \
         --from-outbox TOPIC, in place of --from-time, applies every row of the outbox\n",
        rfc3339(since)
    )
}

/// Describes the rows that readers of the tables miss meanwhile.
fn emptied(unread: UnreadRows) -> String {
    match unread {
        UnreadRows::Since(since) => format!(
            "--reset-sql empties the tables first: until the events since {} are applied again, readers find a part, and \
             older events are gone from them\n",
            rfc3339(since)
        ),
        UnreadRows::Rows(rows) => format!(
            "--reset-sql empties the tables first: until all {rows} row(s) are applied, who reads them finds a part. \
             `--into SCHEMA` fills other tables instead, and replaces the rows in one transaction\n"
        ),
    }
}

/// Describes the events of a generation whose state the next generation does not take over.
fn forgotten(decided: OperatorDecisions, generation: i32) -> String {
    let OperatorDecisions { edited, discarded, unfinished } = decided;
    let mut parts = Vec::new();
    if edited + discarded > 0 {
        parts.push(format!(
            "{edited} edited and {discarded} discarded event(s), which come again as they were published, with \
             nothing of that carried over"
        ));
    }
    if unfinished > 0 {
        parts.push(format!("{unfinished} event(s) that wait or are dead, which come again too"));
    }
    format!("in generation {generation}: {}\n", parts.join("; "))
}

/// Describes the events that are known to be too old.
fn out_of_reach(earlier: EarlierEvents, generation: i32) -> Option<String> {
    let counted = earlier.first.map(|first| {
        format!(
            "generation {generation} has {} event(s) that occurred before that, the first at {}: they are not applied again",
            earlier.events,
            rfc3339(first)
        )
    });
    let pruned = earlier.pruned_before.map(|moment| {
        format!("events of before {} were pruned, which nobody counts", rfc3339(moment))
    });
    let parts: Vec<String> = counted.into_iter().chain(pruned).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_is_counted_before_it_is_forgotten() {
        let text = forgotten(OperatorDecisions { edited: 2, discarded: 1, unfinished: 3 }, 4);
        assert!(text.starts_with("in generation 4: 2 edited and 1 discarded event(s)"), "{text}");
        let waiting =
            forgotten(OperatorDecisions { unfinished: 3, ..OperatorDecisions::default() }, 1);
        assert_eq!(
            waiting,
            "in generation 1: 3 event(s) that wait or are dead, which come again too\n"
        );
    }

    #[test]
    fn what_a_rebuild_does_not_reach_is_counted_and_what_was_pruned_is_said() {
        assert_eq!(out_of_reach(EarlierEvents::default(), 1), None);
        let moment = Some(SystemTime::UNIX_EPOCH);
        let counted = EarlierEvents { events: 3, first: moment, pruned_before: None };
        let text = out_of_reach(counted, 2).expect("three");
        assert!(
            text.starts_with("generation 2 has 3 event(s)") && text.contains("1970-01-01"),
            "{text}"
        );
        let pruned =
            out_of_reach(EarlierEvents { pruned_before: moment, ..EarlierEvents::default() }, 1);
        assert!(pruned.is_some_and(|it| it.starts_with("events of before 1970")));
    }
}
