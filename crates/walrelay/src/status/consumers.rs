//! Consumers of a report: a line for each, and the one that needs a person.

use walrelay_errors::Code;
use walrelay_inbox::UnfinishedRebuild;
use walrelay_outbox_admin::{ConsumerBacklog, NextStep, RebuildReport, StatusReport};

use crate::output::text::{visible, whole_age};

/// Returns a line for each consumer, with its name.
pub(super) fn lines(report: &StatusReport) -> Vec<(String, String)> {
    report.consumers.iter().map(|it| (visible(&it.consumer), text(it))).collect()
}

fn text(backlog: &ConsumerBacklog) -> String {
    if let Some(error) = &backlog.error {
        return format!("unknown: {}", visible(error));
    }
    let ConsumerBacklog { retrying, dead, keys_held, received_last_minute, .. } = backlog;
    let paused = if backlog.paused { "paused, " } else { "" };
    let age = backlog.oldest_waiting_seconds;
    let age = age.map_or_else(String::new, |it| format!(", the oldest for {}", whole_age(it)));
    format!(
        "{paused}{retrying} retrying, {dead} dead, {keys_held} key(s) blocked{age}; \
         {received_last_minute} received in the last minute"
    )
}

/// Returns the first consumer that needs a person, how many more there are, and the next step.
pub(super) fn attention(report: &StatusReport) -> Option<(String, NextStep)> {
    let is_rebuilt = |name: &str| report.rebuilds.iter().any(|it| it.consumer == name);
    let others = report.consumers.iter().filter(|it| !is_rebuilt(&it.consumer));
    let mut needing = report.rebuilds.iter().map(unfinished).chain(others.filter_map(problem));
    let (text, step) = needing.next()?;
    Some(match needing.count() {
        0 => (text, step),
        more => (format!("{text}, and {more} more consumer(s)"), step),
    })
}

fn unfinished(rebuild: &RebuildReport) -> (String, NextStep) {
    let text = format!("consumer {} has an unfinished rebuild", visible(&rebuild.consumer));
    (text, NextStep::of(Code::RebuildUnfinished, UnfinishedRebuild::NEXT_STEP))
}

/// The consumer may have a database of its own, which its commands must name.
const IN_ITS_DATABASE: &str = ", with the --database-url of the consumer";

fn problem(backlog: &ConsumerBacklog) -> Option<(String, NextStep)> {
    let consumer = visible(&backlog.consumer);
    let ConsumerBacklog { dead, keys_held, .. } = backlog;
    if backlog.error.is_some() {
        let step = NextStep::new(format!("walrelay consumer status {consumer}{IN_ITS_DATABASE}"));
        return Some((format!("consumer {consumer} cannot be read"), step));
    }
    let events = match (dead, keys_held) {
        (0, _) => String::new(),
        (dead, 0) => format!("{dead} dead event(s)"),
        (dead, keys) => format!("{dead} dead event(s), {keys} key(s) blocked"),
    };
    if backlog.paused {
        let events = if events.is_empty() { events } else { format!(", {events}") };
        let step = format!("walrelay consumer resume {consumer}{IN_ITS_DATABASE}");
        let step = NextStep::of(Code::ConsumerPaused, step);
        return Some((format!("consumer {consumer} is paused{events}"), step));
    }
    let step = format!("walrelay inbox list --consumer {consumer} --status dead{IN_ITS_DATABASE}");
    let step = NextStep::new(step);
    (*dead > 0).then(|| (format!("consumer {consumer} has {events}"), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_or_blocked_consumer_is_named_with_the_command_that_helps() {
        let of = |consumers: Vec<ConsumerBacklog>| {
            attention(&StatusReport { consumers, ..StatusReport::default() })
                .map(|(text, step)| (text, step.text))
        };
        let named = |consumer: &str| ConsumerBacklog {
            consumer: consumer.to_owned(),
            ..ConsumerBacklog::default()
        };
        assert_eq!(of(vec![named("a")]), None);
        let dead = ConsumerBacklog { dead: 1, keys_held: 1, ..named("a") };
        let paused = ConsumerBacklog { paused: true, ..named("b") };
        let text = |(text, step): (&str, &str)| Some((text.to_owned(), step.to_owned()));
        assert_eq!(
            of(vec![dead.clone()]),
            text((
                "consumer a has 1 dead event(s), 1 key(s) blocked",
                "walrelay inbox list --consumer a --status dead, with the --database-url of the consumer"
            ))
        );
        assert_eq!(
            of(vec![paused, dead]),
            text((
                "consumer b is paused, and 1 more consumer(s)",
                "walrelay consumer resume b, with the --database-url of the consumer"
            ))
        );
    }

    #[test]
    fn an_unfinished_rebuild_comes_first_with_its_next_step() {
        let begun = "a rebuild began";
        let rebuild = RebuildReport { consumer: "a".to_owned(), report: begun.to_owned() };
        let paused = ConsumerBacklog {
            consumer: "a".to_owned(),
            paused: true,
            ..ConsumerBacklog::default()
        };
        let report = StatusReport {
            rebuilds: vec![rebuild],
            consumers: vec![paused],
            ..StatusReport::default()
        };
        let (text, step) = attention(&report).expect("a person has to act");
        assert_eq!(text, "consumer a has an unfinished rebuild");
        assert_eq!(step.text, UnfinishedRebuild::NEXT_STEP);
    }
}
