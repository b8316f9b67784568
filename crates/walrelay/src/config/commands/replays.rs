//! The arguments of `replay`.

use std::num::NonZeroU32;

use walrelay_core::{ColumnFilter, RouterConfig, Template};
use walrelay_outbox_replay::replay::{
    DeadRows, Destination, OrderedSource, OrderedTable, OrderedWal, ReplayOrder,
};

use super::super::builder::ConfigBuilder;
use super::super::command::{Command, ReplayRecordAction, ReplayRecordConfig};
use super::replay_orders::{ReplayAction, ReplayConfig};
use crate::cli::{ReplayActionArgs, ReplayResumeArgs, ReplaySource, ReplayStartArgs};
use crate::options::choices::ChangeMode;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn replay(&mut self, action: ReplayActionArgs) -> Option<Command> {
        let (database, action) = match action {
            ReplayActionArgs::Start(args) => return self.start(*args),
            ReplayActionArgs::Resume(args) => return self.resume(*args),
            ReplayActionArgs::List(args) => {
                (args.database, ReplayRecordAction::List(args.output.output))
            }
            ReplayActionArgs::Show(args) => {
                let (id, format) = (args.id, args.output.output);
                (args.database, ReplayRecordAction::Show { id, format })
            }
            ReplayActionArgs::Cancel(args) => {
                let (id, options) = (args.id, args.change.options());
                (args.database, ReplayRecordAction::Cancel { id, options })
            }
        };
        let database = self.database(&database)?;
        Some(Command::ReplayRecord(ReplayRecordConfig { database, action }))
    }

    fn resume(&mut self, args: ReplayResumeArgs) -> Option<Command> {
        let settings = self.publishing(&args.publishing)?;
        let dead_rows = args.skip_dead.then_some(DeadRows::LeaveOut);
        let (action, options) =
            (ReplayAction::Resume { id: args.id, dead_rows }, args.change.options());
        Some(Command::Replay(Box::new(ReplayConfig { settings, action, options })))
    }

    fn start(&mut self, args: ReplayStartArgs) -> Option<Command> {
        self.require_arguments_of_source(&args);
        let mut settings = self.publishing(&args.publishing)?;
        if let Some(table) = args.table.clone() {
            settings.relay.outbox.tables = vec![table];
        }
        let router = &settings.relay.router;
        let options = args.change.options();
        let destination = match args.in_place {
            true => Destination::InPlace,
            false => {
                let template = self.topic_of_a_replay(args.to_topic, options.mode, router)?;
                Destination::Topic { template, rate: args.rate.and_then(NonZeroU32::new) }
            }
        };
        if args.source == ReplaySource::Table && args.from_time.is_some() {
            let reason = "needed by --from-time: the time of an event is read from it";
            self.require_time(&router.columns, reason);
        }
        let source = match args.source {
            ReplaySource::Wal => OrderedSource::Wal(OrderedWal {
                anchor: args.from_anchor,
                from: args.from_lsn,
                since: args.from_time,
                to: args.to_lsn,
                until: args.to_time,
            }),
            ReplaySource::Table => OrderedSource::Table(OrderedTable {
                since: args.from_time,
                event_ids: args.event_id,
                order_by: args.order_by,
            }),
        };
        let matching = ColumnFilter {
            aggregate_types: args.aggregate_type,
            aggregate_ids: args.aggregate_id,
            event_types: args.event_type,
        };
        let dead_rows = if args.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop };
        let order = ReplayOrder { source, destination, matching, dead_rows };
        let action = ReplayAction::Start(order);
        Some(Command::Replay(Box::new(ReplayConfig { settings, action, options })))
    }

    /// Refuses arguments that only the other source has, and requires a start in the WAL.
    fn require_arguments_of_source(&mut self, args: &ReplayStartArgs) {
        let of_wal = [
            ("from-anchor", args.from_anchor.is_some()),
            ("from-lsn", args.from_lsn.is_some()),
            ("to-lsn", args.to_lsn.is_some()),
            ("to-time", args.to_time.is_some()),
            ("event-type", !args.event_type.is_empty()),
        ];
        let of_table = [
            ("event-id", !args.event_id.is_empty()),
            ("order-by", !args.order_by.is_empty()),
            ("table", args.table.is_some()),
        ];
        let (others, source) = match args.source {
            ReplaySource::Wal => (&of_table[..], "table"),
            ReplaySource::Table => (&of_wal[..], "wal"),
        };
        for (name, _) in others.iter().filter(|(_, is_given)| *is_given) {
            self.wrong_or_missing(name, format!("only with --source {source}"));
        }
        let has_start = of_wal[..2].iter().any(|(_, is_given)| *is_given);
        if args.source == ReplaySource::Wal && !has_start && args.from_time.is_none() {
            let allowed =
                "not set; give --from-anchor, --from-lsn or --from-time, or --source table";
            self.wrong_or_missing("from-anchor", allowed);
        }
    }

    /// Requires a topic that the relay does not publish to.
    fn require_separate_topic(&mut self, topic: &str, router: &RouterConfig) {
        let live = router.topic.to_string();
        if can_publish_to(&full(&router.project, &live), &full(&router.project, topic)) {
            let allowed = format!("a topic that --topic-template {live} does not lead to");
            self.wrong("to-topic", topic, allowed);
        }
    }

    /// Returns the topic of a replay. A dry run without `--to-topic` uses the relay's own topic.
    pub(in crate::config) fn topic_of_a_replay(
        &mut self,
        to_topic: Option<Template>,
        mode: ChangeMode,
        router: &RouterConfig,
    ) -> Option<String> {
        let Some(template) = to_topic else {
            if mode == ChangeMode::DryRun {
                return Some(router.topic.to_string());
            }
            let allowed = "not set; the topic to publish to, or --in-place";
            self.wrong_or_missing("to-topic", allowed);
            return None;
        };
        let text = template.to_string();
        if router.project.is_empty() && !template.names_project() && mode != ChangeMode::DryRun {
            let allowed = "not set; needed unless --to-topic is a full projects/…/topics/… name";
            self.wrong_or_missing("project", allowed);
        }
        self.require_separate_topic(&text, router);
        self.require_columns("to-topic", &template, &router.columns);
        Some(text)
    }
}

fn full(project: &str, name: &str) -> String {
    match name.starts_with("projects/") {
        true => name.to_owned(),
        false => format!("projects/{project}/topics/{name}"),
    }
}

/// Returns whether the live relay may publish to this topic. A template of columns alone may lead
/// to any topic, so it proves nothing.
fn can_publish_to(live: &str, topic: &str) -> bool {
    if live == topic {
        return true;
    }
    let mut literals = live.split('{').enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.split_once('}').map_or("", |(_, behind)| behind),
    });
    let first = literals.next().unwrap_or_default();
    let behind: Vec<&str> = literals.collect();
    let says_nothing = first.is_empty() || first.ends_with("/topics/");
    if says_nothing && behind.iter().all(|literal| literal.is_empty()) {
        return false;
    }
    let Some(mut rest) = topic.strip_prefix(first) else { return false };
    let Some((last, middle)) = behind.split_last() else { return rest.is_empty() };
    for literal in middle {
        let Some((_, after)) = rest.split_once(literal) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_the_live_relay_may_publish_to_is_known_from_its_template() {
        let live = "projects/p/topics/{aggregatetype}.events";
        for (topic, is_live) in [
            ("projects/p/topics/video.events", true),
            ("projects/p/topics/{aggregatetype}.events", true),
            ("projects/p/topics/video.again", false),
            ("projects/q/topics/video.events", false),
        ] {
            assert_eq!(can_publish_to(live, topic), is_live, "{topic}");
        }
        assert!(can_publish_to("projects/p/topics/all", "projects/p/topics/all"));
        assert!(!can_publish_to("projects/p/topics/all", "projects/p/topics/all2"));
        assert!(!can_publish_to("projects/p/topics/{a}", "projects/p/topics/x"), "nobody can tell");
        assert!(can_publish_to("projects/p/topics/{a}.{b}.v1", "projects/p/topics/x.y.v1"));
    }
}
