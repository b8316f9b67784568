//! The texts about the steps and changes of a rebuild.

use std::time::SystemTime;

use walrelay_inbox_admin::event_commands::{EarlierEvents, OperatorDecisions};
use walrelay_inbox_admin::{RebuildChange, RebuildStep, SubscriptionStep};
use walrelay_relay::observe::report::rfc3339;

/// Describes a change in the imperative: "cancel the rebuild of consumer billing".
pub(crate) fn change_text(change: &RebuildChange) -> String {
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

/// Returns the text of a step. A note has none: the shell logs it.
pub(crate) fn step_text(step: &RebuildStep) -> Option<String> {
    Some(match step {
        RebuildStep::Note(_) => return None,
        RebuildStep::Subscription(step) => subscription_text(step),
        RebuildStep::ReachesBackTo(since) => reach(*since),
        RebuildStep::DecisionsForgotten { decided, generation } => forgotten(*decided, *generation),
        RebuildStep::TablesEmptied { since } => emptied(*since),
        RebuildStep::NothingChanged => "nothing was changed\n".to_owned(),
        RebuildStep::WouldFill { rows, schema } => {
            format!("would apply {rows} row(s) in schema {schema} and switch to it\n")
        }
        RebuildStep::Continues => "continuing: rows that were applied are skipped\n".to_owned(),
        RebuildStep::BeginsAgain { schema } => format!(
            "beginning from the first row: the tables of schema {schema} were emptied or replaced since the last run\n"
        ),
        RebuildStep::FillingBegins { generation, schema, rows } => format!(
            "filling generation {generation} in schema {schema}: {rows} row(s); generation {} stays live meanwhile\n",
            generation - 1
        ),
        RebuildStep::Switched { generation } => format!(
            "switched: generation {generation} is live; running instances follow within seconds\n"
        ),
        RebuildStep::KeysRebuilt { events, keys, generation, is_dry_run } => {
            let done = if *is_dry_run { "would be rebuilt" } else { "rebuilt" };
            format!("{done}: {events} event(s) of {keys} key(s), in generation {generation}\n")
        }
        RebuildStep::NoRebuild { consumer } => {
            format!("no rebuild of consumer {consumer} is unfinished\n")
        }
        RebuildStep::Cancelled { schema } => {
            format!("cancelled; the tables of schema {schema} stay as they are\n")
        }
    })
}

/// Returns the text of a step of a rebuild that reads a subscription of its own.
fn subscription_text(step: &SubscriptionStep) -> String {
    match step {
        SubscriptionStep::SubscriptionReady { name, is_new } => {
            let verb = if *is_new { "created" } else { "already there" };
            format!("{verb}: subscription {name}\n")
        }
        SubscriptionStep::SubscriptionSought => {
            "sought; waiting a minute until this is in effect everywhere; the consumer continues meanwhile\n"
                .to_owned()
        }
        SubscriptionStep::BegunFromTopic { generation, since } => {
            format!("begun: generation {generation}, from {}\n", rfc3339(*since))
        }
        SubscriptionStep::ConsumerPaused { consumer } => format!(
            "the consumer is still paused, as before: walrelay consumer resume {consumer}\n"
        ),
        SubscriptionStep::InstancesFollow { consumer, old } => format!(
            "running instances follow within seconds. Restart those that were started with --subscription. Then nobody \
             reads {old}: delete it\n\
             failing events are retried or dead again: `walrelay consumer status {consumer}` counts them\n"
        ),
    }
}

fn reach(since: SystemTime) -> String {
    format!(
        "messages published from {} on are applied again, as far as the topic retains them. Earlier messages are not, and a \
         --reset-sql that empties the projection loses them. `walrelay audit` shows the missing events afterwards. \
         --into SCHEMA, in place of --from-time, applies every row of the outbox\n",
        rfc3339(since)
    )
}

/// Describes the rows that readers of the tables miss meanwhile.
fn emptied(since: SystemTime) -> String {
    format!(
        "--reset-sql empties the tables first: until the events since {} are applied again, readers find only a part of the rows, and \
         the effects of older events are gone\n",
        rfc3339(since)
    )
}

/// Describes the events of a generation whose state the next generation does not take over.
fn forgotten(decided: OperatorDecisions, generation: i32) -> String {
    let OperatorDecisions { edited, discarded, unfinished } = decided;
    let mut parts = Vec::new();
    if edited + discarded > 0 {
        parts.push(format!(
            "{edited} edited and {discarded} discarded event(s), which are applied again as they were published, \
             without these decisions"
        ));
    }
    if unfinished > 0 {
        parts.push(format!(
            "{unfinished} event(s) that are retried or dead, which are also applied again"
        ));
    }
    format!("in generation {generation}: {}\n", parts.join("; "))
}

/// Describes the events that are known to be too old.
#[must_use]
pub(crate) fn out_of_reach(earlier: EarlierEvents, generation: i32) -> Option<String> {
    let counted = earlier.first.map(|first| {
        format!(
            "generation {generation} has {} event(s) that occurred before that, the first at {}: they are not applied again",
            earlier.events,
            rfc3339(first)
        )
    });
    let pruned = earlier.pruned_before.map(|moment| {
        format!("events of before {} were pruned, and are not counted", rfc3339(moment))
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
            "in generation 1: 3 event(s) that are retried or dead, which are also applied again\n"
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
