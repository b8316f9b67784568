//! The arguments of `consumer`.

use walrelay_inbox::{Dedupe, Effect, IdleKeys, InboxRetention, OnGap, Settings, Until};
use walrelay_inbox_admin::{KeyRebuild, OutboxRows};
use walrelay_outbox_replay::replay::DeadRows;

use super::super::builder::ConfigBuilder;
use super::super::command::Command;
use super::super::messages::{ResourceKind, project};
use super::super::pubsub::topic_settings;
use super::consumer_commands::{
    ConsumeConfig, ConsumerAction, ConsumerConfig, ConsumerSetUp, IamGrants, InboxPruneOrder,
    KeyReset, NewDeadLetters, NewSubscription, Rebuild, RebuildIntoConfig, Source,
};
use crate::cli::{ConsumerActionArgs, ConsumerInitArgs, ConsumerRebuildArgs, ConsumerRunArgs};
use crate::options::{ConsumerOptions, ProjectOption, RetentionOptions, SubscriptionOption};

/// Returns the last part of a full name.
fn short_name(full: &str) -> &str {
    full.rsplit('/').next().unwrap_or(full)
}

impl ConfigBuilder<'_> {
    fn consume(&mut self, args: ConsumerRunArgs) -> Option<ConsumeConfig> {
        let own = args.own;
        let retention = self.inbox_retention(&args.retention, (args.keys.prune_keys, &own));
        let subscription = self.subscription(&own.subscription, &args.project);
        let handler = own.handler.filter(|handler| !handler.trim().is_empty());
        if handler.is_none() {
            self.wrong_or_missing("handler", "not set; a SQL function, such as shop.apply");
        }
        let connect = self.connect(&args.connection);
        let endpoint = self.endpoint(&args.endpoint);
        let http = self.http(&own.http);
        let otlp = self.otlp();
        let settings = Settings {
            consumer: args.name,
            subscription,
            effect: Effect::function(handler?),
            connect: connect?,
            endpoint,
            handler_timeout: own.handler_timeout,
            batch: own.batch,
            workers: own.workers,
            max_lease: own.max_lease,
            max_attempts: own.max_attempts,
            on_dead: own.on_dead,
            on_gap: own.on_gap,
            dedupe: own.dedupe,
            max_in_flight_bytes: own.in_flight.max_in_flight_bytes.0,
            drain_timeout: own.in_flight.drain_timeout,
            until: match args.until.until_caught_up {
                true => Until::CaughtUp { quiet_for: own.quiet_for },
                false => Until::Stopped,
            },
            retention,
        };
        Some(ConsumeConfig { settings, http, otlp })
    }

    fn inbox_retention(
        &mut self,
        options: &RetentionOptions,
        (prune_keys, own): (bool, &ConsumerOptions),
    ) -> Option<InboxRetention> {
        if prune_keys && options.prune_older_than.0.is_none() {
            self.wrong_or_missing("prune-older-than", "needed by --prune-keys");
        }
        if prune_keys && (own.dedupe == Dedupe::Position || own.on_gap == OnGap::Hold) {
            let allowed =
                "not with --dedupe position or --on-gap hold, which need the positions of all keys";
            self.wrong_or_missing("prune-keys", allowed);
        }
        let idle_keys = if prune_keys { IdleKeys::Delete } else { IdleKeys::Keep };
        let every = options.prune_interval;
        options.prune_older_than.0.map(|older_than| InboxRetention { older_than, every, idle_keys })
    }

    pub(in crate::config) fn consumer(&mut self, action: ConsumerActionArgs) -> Option<Command> {
        let (connection, action) = match action {
            ConsumerActionArgs::Init(args) => {
                let set_up = self.consumer_set_up(&args);
                if args.sql.sql {
                    return Some(Command::ConsumerSql(Box::new(set_up?)));
                }
                (args.connection, set_up.map(ConsumerAction::Init))
            }
            ConsumerActionArgs::Run(args) => {
                return Some(Command::Consume(Box::new(self.consume(*args)?)));
            }
            ConsumerActionArgs::List(args) => {
                (args.connection, Some(ConsumerAction::List(args.output.output)))
            }
            ConsumerActionArgs::Scaffold(args) => {
                (args.connection, Some(ConsumerAction::Scaffold(args.table)))
            }
            ConsumerActionArgs::Status(args) => {
                let (name, format) = (args.name, args.output.output);
                let endpoint = self.endpoint(&args.endpoint);
                (args.connection, Some(ConsumerAction::Status { name, format, endpoint }))
            }
            ConsumerActionArgs::Pause(args) => {
                let (name, format) = (args.name, args.output.output);
                (args.connection, Some(ConsumerAction::Pause { name, format }))
            }
            ConsumerActionArgs::Resume(args) => {
                let (name, format) = (args.name, args.output.output);
                (args.connection, Some(ConsumerAction::Resume { name, format }))
            }
            ConsumerActionArgs::Rebuild(args) => {
                let rebuild = self.rebuild(&args).map(ConsumerAction::Rebuild);
                (args.database.connection, rebuild)
            }
            ConsumerActionArgs::ResetKey(args) => {
                let options = args.change.options();
                let reset = KeyReset { name: args.name, key: args.key, options };
                (args.connection, Some(ConsumerAction::ResetKey(reset)))
            }
            ConsumerActionArgs::Prune(args) => {
                let endpoint = self.endpoint(&args.endpoint);
                let (name, older_than) = (args.name, args.older_than);
                let options = args.change.options();
                let order = InboxPruneOrder { name, older_than, options, endpoint };
                (args.connection, Some(ConsumerAction::Prune(order)))
            }
        };
        let config = ConsumerConfig { connect: self.connect(&connection)?, action: action? };
        Some(Command::Consumer(Box::new(config)))
    }

    fn consumer_set_up(&mut self, args: &ConsumerInitArgs) -> Option<ConsumerSetUp> {
        let endpoint = self.endpoint(&args.endpoint);
        let project = project(&args.project);
        let topic = args.topic.as_ref();
        let topic = topic.and_then(|it| self.full_name("topic", it, &project, ResourceKind::Topic));
        let subscription = self.set_up_subscription(args, topic.as_deref(), &project);
        let create = match (args.create, topic) {
            (true, Some(topic)) => self.new_subscription(args, topic, &project),
            (true | false, _) => None,
        };
        let (name, subscription) = (args.name.clone(), subscription?);
        let format = args.output.output;
        Some(ConsumerSetUp { name, subscription, endpoint, create, format })
    }

    /// Returns the full name of the subscription: the given one, or `TOPIC.NAME`.
    fn set_up_subscription(
        &mut self,
        args: &ConsumerInitArgs,
        topic: Option<&str>,
        project: &str,
    ) -> Option<String> {
        let given = args.subscription.subscription.as_ref().filter(|given| !given.is_empty());
        let name = match (given, topic) {
            (Some(given), _) => given.clone(),
            (None, Some(topic)) => format!("{}.{}", short_name(topic), args.name),
            (None, None) => {
                let allowed = "not set; the one to read from, or --topic with --create";
                self.wrong_or_missing("subscription", allowed);
                return None;
            }
        };
        self.full_name("subscription", &name, project, ResourceKind::Subscription)
    }

    fn new_subscription(
        &mut self,
        args: &ConsumerInitArgs,
        topic: String,
        project: &str,
    ) -> Option<NewSubscription> {
        let derived = || format!("{}.{}.dead", short_name(&topic), args.name);
        let dead_letter_topic = match (&args.dead_letter_topic, args.dead_letter) {
            (Some(given), _) => Some(given.clone()),
            (None, true) => Some(derived()),
            (None, false) => None,
        };
        let dead_letter_topic = match dead_letter_topic {
            Some(name) => {
                Some(self.full_name("dead-letter-topic", &name, project, ResourceKind::Topic)?)
            }
            None => None,
        };
        if dead_letter_topic.as_ref() == Some(&topic) {
            let allowed = "another topic than --topic: dead letters would return to the consumer";
            self.wrong("dead-letter-topic", &topic, allowed);
            return None;
        }
        let dead_letters = match &dead_letter_topic {
            Some(dead) if args.dead_letter => {
                let name = short_name(dead).to_owned();
                Some(NewDeadLetters {
                    subscription: self.full_name(
                        "dead-letter-topic",
                        &name,
                        project,
                        ResourceKind::Subscription,
                    )?,
                    settings: topic_settings(&args.topics),
                    project_number: args.project_number,
                    grants: if args.grant { IamGrants::Make } else { IamGrants::Print },
                })
            }
            Some(_) | None => None,
        };
        Some(NewSubscription {
            topic,
            dead_letter_topic,
            dead_letters,
            exactly_once: args.exactly_once,
            filter: args.filter.clone().unwrap_or_default(),
        })
    }

    fn rebuild(&mut self, args: &ConsumerRebuildArgs) -> Option<Rebuild> {
        let source = match args.from_time {
            _ if args.cancel => Some(Source::Cancel),
            Some(since) => Some(Source::Topic(since)),
            None => self.direct(args),
        };
        let endpoint = self.endpoint(&args.endpoint);
        let subscription = args.subscription.as_ref().and_then(|given| {
            let project = project(&args.messages.project);
            self.full_name("subscription", given, &project, ResourceKind::Subscription)
        });
        Some(Rebuild {
            name: args.name.clone(),
            source: source?,
            reset_sql: args.reset_sql.clone(),
            subscription,
            options: args.change.options(),
            endpoint,
        })
    }

    /// Reads the source of a rebuild in which the command itself applies the rows.
    fn direct(&mut self, args: &ConsumerRebuildArgs) -> Option<Source> {
        let rows = self.rows(args)?;
        let handler = args.handler.clone()?;
        if let Some(schema) = args.into.clone() {
            let switch_sql = args.switch_sql.clone();
            let config = RebuildIntoConfig { rows, handler, schema, switch_sql };
            return Some(Source::SideBySide(Box::new(config)));
        }
        let (keys, reset) = (args.key.clone(), args.reset_function.clone()?);
        Some(Source::Keys(Box::new(KeyRebuild { rows, handler, keys, reset })))
    }

    /// Reads the source and the routing of the outbox rows.
    fn rows(&mut self, args: &ConsumerRebuildArgs) -> Option<OutboxRows> {
        let outbox = self.outbox(&args.database);
        let router = self.router(&args.messages);
        let connect = match &args.outbox_url {
            Some(url) => self.connect_to("outbox-url", url),
            None => self.connect(&args.database.connection),
        }?;
        self.note_record_of(&connect, &args.database);
        Some(OutboxRows {
            connect,
            outbox,
            router,
            endpoint: self.endpoint(&args.endpoint),
            aggregate_types: args.aggregate_type.clone(),
            dead_rows: if args.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop },
        })
    }

    /// Returns the full name of the subscription.
    fn subscription(
        &mut self,
        option: &SubscriptionOption,
        project_option: &ProjectOption,
    ) -> Option<String> {
        let given = option.subscription.as_ref().filter(|given| !given.is_empty())?;
        self.full_name("subscription", given, &project(project_option), ResourceKind::Subscription)
    }
}
