//! The arguments of `replay`.

use walrelay_core::{ColumnFilter, RouterConfig, Template};
use walrelay_relay::replay::{DeadRows, Destination, Keeping, Rate};
use walrelay_relay::settings::{Settings, Until};

use super::super::problem::ConfigBuilder;
use super::backfills::dead_rows;
use super::replay_orders::{Place, ReplayAction, ReplayConfig, ReplayOrder};
use crate::cli::ReplayArgs;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn replay(&mut self, args: ReplayArgs) -> Option<ReplayConfig> {
        let connect = self.connect(&args.database.connection);
        let outbox = self.outbox(&args.database);
        let router = self.router(&args.messages, &args.columns);
        let relay = self.streaming(&args.stream, outbox, router);
        let pubsub = self.pubsub(&args.pubsub);
        let action = match (&args.resume, &args.abandon) {
            (Some(id), _) => {
                let dead_rows = args.skip_dead.then_some(DeadRows::LeaveOut);
                Some(ReplayAction::Resume { id: id.clone(), dead_rows })
            }
            (None, Some(id)) => Some(ReplayAction::Abandon { id: id.clone() }),
            (None, None) => self.order(args, &relay.router),
        };
        let settings = Settings { connect: connect?, relay, pubsub, until: Until::CaughtUp };
        Some(ReplayConfig { settings, action: action? })
    }

    fn order(&mut self, args: ReplayArgs, router: &RouterConfig) -> Option<ReplayAction> {
        if args.from_anchor.is_none() && args.from_lsn.is_none() && args.from_time.is_none() {
            let allowed = "not set; give --from-anchor, --from-lsn or --from-time";
            self.wrong_or_missing("from-anchor", allowed);
        }
        let destination = match args.in_place {
            true => Destination::InPlace,
            false => {
                Destination::Topic(self.topic_of_a_replay((args.to_topic, args.dry_run), router)?)
            }
        };
        Some(ReplayAction::Begin(ReplayOrder {
            anchor: args.from_anchor,
            from: Place::of(args.from_lsn, args.from_time),
            to: Place::of(args.to_lsn, args.to_time),
            matching: ColumnFilter {
                aggregate_types: args.aggregate_type,
                aggregate_ids: args.aggregate_id,
                event_types: args.event_type,
            },
            destination,
            rate: args.rate.and_then(Rate::new),
            dead_rows: dead_rows(args.skip_dead),
            keeping: if args.dry_run { Keeping::Nothing } else { Keeping::OnRecord },
        }))
    }

    /// Requires a topic that the relay does not publish to.
    pub(in crate::config) fn require_separate_topic(
        &mut self,
        (option, topic): (&'static str, &str),
        router: &RouterConfig,
    ) -> Option<String> {
        let live = router.topic.to_string();
        if can_publish_to(&full(&router.project, &live), &full(&router.project, topic)) {
            let allowed = format!("a topic that --topic {live} does not lead to");
            self.wrong(option, topic, allowed);
            return None;
        }
        Some(topic.to_owned())
    }

    /// Returns the topic of a replay. A dry run without `--to-topic` uses the relay's own topic.
    pub(in crate::config) fn topic_of_a_replay(
        &mut self,
        (to_topic, is_dry_run): (Option<Template>, bool),
        router: &RouterConfig,
    ) -> Option<String> {
        let Some(template) = to_topic else {
            if is_dry_run {
                return Some(router.topic.to_string());
            }
            let allowed = "not set; the topic to publish to, or --in-place";
            self.wrong_or_missing("to-topic", allowed);
            return None;
        };
        let text = template.to_string();
        if router.project.is_empty() && !text.starts_with("projects/") && !is_dry_run {
            let allowed = "not set; needed unless --to-topic is a full projects/…/topics/… name";
            self.wrong_or_missing("project", allowed);
        }
        self.require_separate_topic(("to-topic", &text), router);
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
