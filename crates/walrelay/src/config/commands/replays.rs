//! The arguments of `replay`.

use std::time::Duration;

use walrelay_core::{ColumnFilter, OnDead, RouterConfig, Template, WalBudgetLimit};
use walrelay_relay::replay::{DeadRows, Destination, Keeping, Rate};
use walrelay_relay::settings::{RelaySettings, Settings, Until};

use super::super::builder::ConfigBuilder;
use super::replay_orders::{ReplayAction, ReplayConfig, ReplayOrder};
use crate::cli::ReplayArgs;
use crate::options;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn replay(&mut self, args: &ReplayArgs) -> Option<ReplayConfig> {
        let connect = self.connect();
        let relay = self.replay_relay_settings();
        let pubsub = self.pubsub();
        let action = match (&args.resume, &args.abandon) {
            (Some(id), _) => {
                let dead_rows = args.skip_dead.then_some(DeadRows::LeaveOut);
                self.replay_id("resume", id).map(|id| ReplayAction::Resume { id, dead_rows })
            }
            (None, Some(id)) => {
                self.replay_id("abandon", id).map(|id| ReplayAction::Abandon { id })
            }
            (None, None) => self.order(args, &relay.router),
        };
        let settings = Settings { connect: connect?, relay, pubsub, until: Until::CaughtUp };
        Some(ReplayConfig { settings, action: action? })
    }

    /// Returns the settings that a replay shares with the relay. A replay parks no rows and takes
    /// over no slot, so the other settings have no effect.
    pub(in crate::config) fn replay_relay_settings(&mut self) -> RelaySettings {
        let outbox = self.outbox();
        let router = self.router();
        let problems = &mut self.problems;
        let relay = RelaySettings {
            outbox,
            router,
            park_after: Duration::MAX,
            max_attempts: 1,
            on_dead: match problems.read(options::ON_DEAD) {
                "hold" => OnDead::Hold,
                _ => OnDead::Continue,
            },
            max_in_flight_bytes: problems.read(options::MAX_IN_FLIGHT_BYTES).0,
            wal_budget: WalBudgetLimit::Off,
            drain_timeout: problems.read(options::DRAIN_TIMEOUT),
            take_over_after: None,
            status_interval: problems.read(options::STATUS_INTERVAL),
            wal_sender_timeout: problems.read(options::WAL_SENDER_TIMEOUT),
            dispatch_retention: Duration::MAX,
        };
        self.require_status_interval(&relay);
        relay
    }

    pub(in crate::config) fn replay_id(
        &mut self,
        option: &'static str,
        id: &str,
    ) -> Option<String> {
        let is_id = id.len() == 8 && id.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_id {
            self.problems.wrong(option, id, "the id that the replay printed, eight hex digits");
        }
        is_id.then(|| id.to_owned())
    }

    fn order(&mut self, args: &ReplayArgs, router: &RouterConfig) -> Option<ReplayAction> {
        let from = self.place(
            ("from-lsn", args.from_lsn.as_deref()),
            ("from-time", args.from_time.as_deref()),
        );
        let to =
            self.place(("to-lsn", args.to_lsn.as_deref()), ("to-time", args.to_time.as_deref()));
        let anchor = args.from_anchor.as_deref().map(|name| self.anchor_name("from-anchor", name));
        if anchor.is_none() && args.from_lsn.is_none() && args.from_time.is_none() {
            let allowed = "not set; give --from-anchor, --from-lsn or --from-time";
            self.problems.report_without_value("from-anchor", allowed);
        }
        let keeping = if args.dry_run { Keeping::Nothing } else { Keeping::OnRecord };
        let asked = (args.to_topic.as_deref(), args.dry_run);
        let destination = match args.in_place {
            true => Destination::InPlace,
            false => Destination::Topic(self.topic_of_a_replay(asked, router)?),
        };
        let rate = args.rate.as_deref().map(|text| self.problems.count("rate", text, 1..=u32::MAX));
        let matching = ColumnFilter {
            aggregate_types: args.aggregate_type.clone(),
            aggregate_ids: args.aggregate_id.clone(),
            event_types: args.event_type.clone(),
        };
        let dead_rows = if args.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop };
        Some(ReplayAction::Begin(ReplayOrder {
            anchor,
            from,
            to,
            matching,
            destination,
            rate: rate.and_then(Rate::new),
            dead_rows,
            keeping,
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
            self.problems.wrong(option, topic, allowed);
            return None;
        }
        Some(topic.to_owned())
    }

    /// Returns the topic of a replay. A dry run without `--to-topic` uses the relay's own topic.
    pub(in crate::config) fn topic_of_a_replay(
        &mut self,
        (to_topic, is_dry_run): (Option<&str>, bool),
        router: &RouterConfig,
    ) -> Option<String> {
        let live = router.topic.to_string();
        let Some(text) = to_topic else {
            if is_dry_run {
                return Some(live);
            }
            self.problems.report_without_value(
                "to-topic",
                "not set; the topic to publish to, or --in-place",
            );
            return None;
        };
        if router.project.is_empty() && !text.starts_with("projects/") && !is_dry_run {
            let allowed = "not set; needed unless --to-topic is a full projects/…/topics/… name";
            self.problems.report_without_value("project", allowed);
        }
        self.require_separate_topic(("to-topic", text), router);
        let template = Template::parse(text);
        let unknown = |parsed: &Template| {
            let names = parsed.columns();
            names.filter(|name| router.columns.resolve(name).is_none()).map(str::to_owned).next()
        };
        match &template {
            Err(error) => self.problems.wrong("to-topic", text, error.to_string()),
            Ok(parsed) => {
                if let Some(name) = unknown(parsed) {
                    let allowed = format!("the outbox tables have no column for {{{name}}}");
                    self.problems.wrong("to-topic", text, allowed);
                }
            }
        }
        template.is_ok().then(|| text.to_owned())
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
