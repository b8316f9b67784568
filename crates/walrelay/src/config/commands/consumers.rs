//! The arguments of `consume` and `consumer`.

use walrelay_inbox::{Dedupe, Effect, OnDead, OnGap, Settings, Until};
use walrelay_relay::replay::DeadRows;

use super::super::builder::ConfigBuilder;
use super::super::consent::Consent;
use super::consumer_commands::{
    ConsumeConfig, ConsumerAction, ConsumerConfig, ConsumerSetUp, KeyReset, NewSubscription,
    OutboxRowsConfig, Rebuild, RebuildIntoConfig, RebuildKeysConfig, Source,
};
use super::replay_orders::Place;
use crate::{cli, options};

/// Topic of messages that a rebuild applies without publishing them.
const UNPUBLISHED: &str = "projects/none/topics/unpublished";

/// Longest consumer name. A longer name is a mistake, and may not fit into an index.
const NAME_BYTES_MAX: usize = 200;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn consume(&mut self, name: &str) -> Option<ConsumeConfig> {
        let consumer = self.consumer_name(name);
        let subscription = self.subscription();
        let handler = self.problems.read(options::HANDLER);
        if handler.is_none() {
            let allowed = "not set; a SQL function, such as shop.apply";
            self.problems.report_without_value("handler", allowed);
        }
        let connect = self.connect();
        let endpoint = self.endpoint();
        let http = self.http();
        let otlp = self.otlp();
        let problems = &mut self.problems;
        let settings = Settings {
            consumer,
            subscription,
            effect: Effect::function(handler?),
            connect: connect?,
            endpoint,
            handler_timeout: problems.read(options::HANDLER_TIMEOUT),
            batch: problems.read(options::BATCH),
            workers: problems.read(options::WORKERS),
            max_lease: problems.read(options::MAX_LEASE),
            max_attempts: problems.read(options::MAX_ATTEMPTS),
            on_dead: match problems.read(options::ON_DEAD) {
                "continue" => OnDead::Continue,
                _ => OnDead::Hold,
            },
            on_gap: match problems.read(options::ON_GAP) {
                "hold" => OnGap::Hold,
                _ => OnGap::Accept,
            },
            dedupe: match problems.read(options::DEDUPE) {
                "position" => Dedupe::Position,
                _ => Dedupe::Event,
            },
            max_in_flight_bytes: problems.read(options::MAX_IN_FLIGHT_BYTES).0,
            drain_timeout: problems.read(options::DRAIN_TIMEOUT),
            until: match problems.read(options::UNTIL_CAUGHT_UP) {
                true => Until::CaughtUp,
                false => Until::Stopped,
            },
        };
        Some(ConsumeConfig { settings, http, otlp })
    }

    pub(in crate::config) fn consumer(
        &mut self,
        action: &cli::ConsumerActionArgs,
    ) -> Option<ConsumerConfig> {
        let prints_only = match action {
            cli::ConsumerActionArgs::Init(_) => self.problems.read(options::SQL),
            cli::ConsumerActionArgs::Scaffold(_)
            | cli::ConsumerActionArgs::Status(_)
            | cli::ConsumerActionArgs::Pause(_)
            | cli::ConsumerActionArgs::Resume(_)
            | cli::ConsumerActionArgs::Rebuild(_)
            | cli::ConsumerActionArgs::ResetKey(_)
            | cli::ConsumerActionArgs::Prune(_) => false,
        };
        let action = self.consumer_action(action);
        let connect = match prints_only {
            true => None,
            false => Some(self.connect()?),
        };
        Some(ConsumerConfig { connect, action: action? })
    }

    fn consumer_action(&mut self, action: &cli::ConsumerActionArgs) -> Option<ConsumerAction> {
        Some(match action {
            cli::ConsumerActionArgs::Init(args) => {
                ConsumerAction::Init(self.consumer_set_up(args)?)
            }
            cli::ConsumerActionArgs::Scaffold(args) => match args.table.parse() {
                Ok(table) => ConsumerAction::Scaffold(table),
                Err(error) => {
                    let error: walrelay_pg_client::ParseNameError = error;
                    self.problems.wrong("TABLE", &args.table, error.to_string());
                    return None;
                }
            },
            cli::ConsumerActionArgs::Status(args) => {
                let format = self.format();
                ConsumerAction::Status { name: self.consumer_name(&args.name), format }
            }
            cli::ConsumerActionArgs::Pause(args) => {
                ConsumerAction::Pause { name: self.consumer_name(&args.name), paused: true }
            }
            cli::ConsumerActionArgs::Resume(args) => {
                ConsumerAction::Pause { name: self.consumer_name(&args.name), paused: false }
            }
            cli::ConsumerActionArgs::Rebuild(args) => ConsumerAction::Rebuild(self.rebuild(args)?),
            cli::ConsumerActionArgs::ResetKey(args) => ConsumerAction::ResetKey(KeyReset {
                name: self.consumer_name(&args.name),
                key: args.key.clone(),
                consent: if args.yes { Consent::Given } else { Consent::Asked },
            }),
            cli::ConsumerActionArgs::Prune(args) => ConsumerAction::Prune {
                name: self.consumer_name(&args.name),
                older_than: self.problems.read(options::OLDER_THAN),
                endpoint: self.endpoint(),
            },
        })
    }

    fn consumer_set_up(&mut self, args: &cli::ConsumerInitArgs) -> Option<ConsumerSetUp> {
        let name = self.consumer_name(&args.name);
        let endpoint = self.endpoint();
        let subscription = self.subscription();
        if subscription.is_none() && self.problems.read(options::SUBSCRIPTION).is_none() {
            self.problems.report_without_value("subscription", "not set; the one to read from");
        }
        let project = self.project();
        let mut topic = |given: &Option<String>| {
            let given = given.as_ref()?;
            self.full_name("topic", given, &project, "topics")
        };
        let dead_letter_topic = topic(&args.dead_letter_topic);
        let create = match (args.create, topic(&args.topic)) {
            (true, Some(topic)) => Some(NewSubscription {
                topic,
                dead_letter_topic,
                exactly_once: args.exactly_once,
                filter: args.filter.clone().unwrap_or_default(),
            }),
            (true | false, _) => None,
        };
        Some(ConsumerSetUp { name, subscription: subscription?, endpoint, create })
    }

    fn rebuild(&mut self, args: &cli::ConsumerRebuildArgs) -> Option<Rebuild> {
        let name = self.consumer_name(&args.name);
        let source = match &args.from_outbox {
            _ if args.abandon => Some(Source::Abandon),
            Some(topic) => self.refill(args, topic).map(Source::Outbox),
            None if args.handler.is_some() => self.direct(args),
            None if args.seek_to.is_none() => {
                let allowed = "not set; since when, or --from-outbox TOPIC where the topic does not reach that far";
                self.problems.report_without_value("seek-to", allowed);
                None
            }
            None => match self.place(("seek-to", None), ("seek-to", args.seek_to.as_deref())) {
                Some(Place::Time(since)) => Some(Source::Topic(since)),
                Some(Place::Lsn(_)) | None => None,
            },
        };
        let endpoint = self.endpoint();
        let subscription = args.subscription.as_ref().and_then(|given| {
            let project = self.project();
            self.full_name("subscription", given, &project, "subscriptions")
        });
        let (source, reset_sql) = (source?, args.reset_sql.clone());
        let consent = if args.yes { Consent::Given } else { Consent::Asked };
        Some(Rebuild { name, source, reset_sql, subscription, consent, endpoint })
    }

    /// Reads the source of a rebuild in which the command itself applies the rows.
    fn direct(&mut self, args: &cli::ConsumerRebuildArgs) -> Option<Source> {
        let rows = *self.rows(args, None)?;
        let handler = args.handler.clone()?;
        if let Some(schema) = args.into.clone() {
            let switch_sql = args.switch_sql.clone();
            return Some(Source::Beside(Box::new(RebuildIntoConfig {
                rows,
                handler,
                schema,
                switch_sql,
            })));
        }
        let reset = args.reset_function.as_deref()?;
        let reset = match reset.parse() {
            Ok(name) => name,
            Err(error) => {
                let error: walrelay_pg_client::ParseNameError = error;
                self.problems.wrong("reset-function", reset, error.to_string());
                return None;
            }
        };
        let keys = args.key.clone();
        if keys.iter().any(String::is_empty) {
            self.problems.wrong(
                "key",
                "",
                "an ordering key; events without one have no order to be rebuilt in",
            );
            return None;
        }
        Some(Source::Keys(Box::new(RebuildKeysConfig { rows, handler, keys, reset })))
    }

    /// Reads the source of a rebuild that publishes all outbox rows to a topic.
    fn refill(
        &mut self,
        args: &cli::ConsumerRebuildArgs,
        topic: &str,
    ) -> Option<Box<OutboxRowsConfig>> {
        self.rows(args, Some(topic))
    }

    /// Reads the settings for all outbox rows. Without a topic the rows are not published.
    fn rows(
        &mut self,
        args: &cli::ConsumerRebuildArgs,
        topic: Option<&str>,
    ) -> Option<Box<OutboxRowsConfig>> {
        let connect = match &args.outbox_url {
            Some(url) => self.connect_to("outbox-url", url),
            None => self.connect(),
        };
        let relay = self.replay_relay_settings();
        let pubsub = self.pubsub();
        let topic = match topic {
            Some(topic) => {
                let topic = self.full_name("from-outbox", topic, &relay.router.project, "topics");
                self.require_separate_topic(("from-outbox", &topic?), &relay.router)?
            }
            None => UNPUBLISHED.to_owned(),
        };
        let until = walrelay_relay::settings::Until::CaughtUp;
        let settings =
            walrelay_relay::settings::Settings { connect: connect?, relay, pubsub, until };
        let aggregate_types = args.aggregate_type.clone();
        let dead_rows = if args.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop };
        Some(Box::new(OutboxRowsConfig { settings, topic, aggregate_types, dead_rows }))
    }

    fn consumer_name(&mut self, name: &str) -> String {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            let allowed = format!("1 to {NAME_BYTES_MAX} bytes of text");
            self.problems.wrong("NAME", name, allowed);
        }
        name.to_owned()
    }

    /// Returns the full name of the subscription.
    fn subscription(&mut self) -> Option<String> {
        let given = self.problems.read(options::SUBSCRIPTION)?;
        let project = self.project();
        self.full_name("subscription", &given, &project, "subscriptions")
    }

    pub(in crate::config) fn full_name(
        &mut self,
        option: &str,
        given: &str,
        project: &str,
        kind: &str,
    ) -> Option<String> {
        let parts: Vec<&str> = given.split('/').collect();
        match parts.as_slice() {
            ["projects", owner, found, name]
                if *found == kind && !owner.is_empty() && is_id(name) =>
            {
                Some(given.to_owned())
            }
            [name] if is_id(name) => {
                if project.is_empty() {
                    let allowed = format!("not set; needed for the short name of a {option}");
                    self.problems.report_without_value("project", allowed);
                    return None;
                }
                Some(format!("projects/{project}/{kind}/{name}"))
            }
            _ => {
                let allowed = format!(
                    "a name, or projects/PROJECT/{kind}/NAME; a name has 3 to 255 letters, digits and -_.~+%, \
                     and begins with a letter"
                );
                self.problems.wrong(option, given, allowed);
                None
            }
        }
    }
}

/// Returns whether Pub/Sub accepts the last part of a name. Topics and subscriptions have the same
/// rule.
fn is_id(name: &str) -> bool {
    walrelay_core::limits::is_topic_name(&format!("projects/p/topics/{name}"))
}
