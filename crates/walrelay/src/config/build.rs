//! Builds a [`Config`] from a command line: one function per command.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use walrelay_core::{ColumnNames, RouterConfig};
use walrelay_outbox_admin::archive::{Archive, ArchiveLocation, StoreEnvironment};
use walrelay_outbox_admin::lifecycle::preflight_check::shard_key;
use walrelay_outbox_admin::maintenance::Maintenance;
use walrelay_outbox_admin::protocols::ExistingRows;
use walrelay_outbox_admin::{EarlierRows, InitOptions};
use walrelay_outbox_store::{Definition, Shard};
use walrelay_pg_client::Schema;
use walrelay_pg_replication::Failover;
use walrelay_relay::settings::Until;

use super::builder::ConfigBuilder;
use super::command::{
    CheckConfig, Command, CreateTopics, DemoConfig, DemoOutput, EmitConfig, ForgetConfig,
    InitConfig, LogConfig, PruneConfig, ReshardConfig, RunConfig, StatusConfig, TailConfig,
};
use super::definition_place::DefinitionPlace;
use super::environment::Environment;
use super::layers::CommandLine;
use super::messages::{ResourceKind, project};
use super::problem::Problem;
use super::pubsub::topic_settings;
use crate::cli::{self, CommandArgs, ConfirmArgs};
use crate::options::RetentionOptions;
use crate::options::choices::{ChangeMode, ChangeOptions, LogFormat, OnSlotLost};

/// A command and its complete configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The logging configuration.
    pub(crate) log: LogConfig,
    /// The schema of walrelay's own tables. The process sets it before the command runs.
    pub(crate) schema: Schema,
    /// The shard that the command is about.
    pub(crate) shard: Shard,
    /// The command to run.
    pub(crate) command: Command,
    /// Where the definition of its outbox is on record. None for a command without an outbox.
    pub(crate) record: Option<DefinitionPlace>,
}

/// A command that runs until it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// The address that serves `/livez` and the other endpoints, if any.
    pub http: Option<SocketAddr>,
    /// How long a stop waits for what is in flight.
    pub drain_timeout: Duration,
}

impl Config {
    /// Returns the command as a service, if it is the relay or a consumer.
    #[must_use]
    pub fn service(&self) -> Option<Service> {
        if let Command::Run(run) = &self.command {
            Some(Service { http: run.http, drain_timeout: run.settings.relay.drain_timeout })
        } else if let Command::Consume(consume) = &self.command {
            Some(Service { http: consume.http, drain_timeout: consume.settings.drain_timeout })
        } else {
            None
        }
    }

    /// Checks the values of a command line that depend on each other. The outbox is the one on record.
    /// Before the record is read, and for `init`, it is the standard one.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub fn new(
        line: CommandLine,
        environment: &Environment,
        recorded: Option<Definition>,
    ) -> Result<Self, Vec<Problem>> {
        let file = line.file().map(str::to_owned);
        let CommandLine { cli, selection, origins, problems, has_json_output, schema } = line;
        let shard = Shard::WHOLE;
        let definition = recorded.unwrap_or_else(|| Definition {
            slot: String::new(),
            publication: "walrelay".to_owned(),
            tables: vec![schema.table("app_outbox")],
            columns: ColumnNames::default(),
            taken_names: Vec::new(),
        });
        let mut builder = ConfigBuilder {
            environment,
            file,
            selection,
            origins,
            problems,
            schema,
            shard,
            definition,
            record: None,
        };
        let general = cli.general;
        let level = match (general.verbose, general.quiet) {
            (true, _) => "debug",
            (false, true) => "warn",
            (false, false) => "info",
        };
        let filter = general.log_level.unwrap_or_else(|| level.to_owned());
        let default_format = match (cli.command.is_service(), has_json_output) {
            (true, _) => None,
            (false, true) => Some(LogFormat::Json),
            (false, false) => Some(LogFormat::Text),
        };
        let log = LogConfig { format: general.log_format.or(default_format), filter };
        let output = if general.quiet { DemoOutput::Summary } else { DemoOutput::Messages };
        let command = builder.command(cli.command, output);
        // A command that could not be built has reported at least one problem.
        match (builder.problems.is_empty(), command) {
            (true, Some(command)) => Ok(Self {
                log,
                schema: builder.schema,
                shard: builder.shard,
                command,
                record: builder.record,
            }),
            (true, None) => unreachable!("a command that cannot be built names no problem"),
            (false, _) => Err(builder.problems),
        }
    }
}

const ONE_KEY: &str = "names no column, so all rows have one key and cannot be divided";

impl ConfigBuilder<'_> {
    fn command(&mut self, command: CommandArgs, output: DemoOutput) -> Option<Command> {
        Some(match command {
            CommandArgs::Init(args) => Command::Init(Box::new(self.init(args)?)),
            CommandArgs::Check(args) => Command::Check(Box::new(self.check(&args)?)),
            CommandArgs::Run(args) => Command::Run(Box::new(self.run_command(&args)?)),
            CommandArgs::Status(args) => Command::Status(self.status(&args)?),
            CommandArgs::Dispatch(args) => Command::Dispatch(self.dispatch(args.action)?),
            CommandArgs::Slot(args) => Command::Slot(self.slot(args.action)?),
            CommandArgs::Anchor(args) => Command::Anchor(self.anchor(args.action)?),
            CommandArgs::Reshard(args) => Command::Reshard(Box::new(self.reshard(&args)?)),
            CommandArgs::Replay(args) => self.replay(args.action)?,
            CommandArgs::Prune(args) => Command::Prune(self.prune(&args)?),
            CommandArgs::Consumer(args) => self.consumer(args.action)?,
            CommandArgs::Inbox(args) => Command::Inbox(self.inbox(args.action)?),
            CommandArgs::Audit(args) => Command::Audit(Box::new(self.audit(args)?)),
            CommandArgs::Trace(args) => Command::Trace(Box::new(self.trace(args)?)),
            CommandArgs::Emit(args) => Command::Emit(EmitConfig {
                connect: self.connect(&args.connection)?,
                event: args.event,
                format: args.output.output,
            }),
            CommandArgs::Forget(args) => Command::Forget(ForgetConfig {
                connect: self.connect(&args.connection)?,
                aggregates: args.aggregates,
                options: args.change.options(),
            }),
            CommandArgs::Snapshot(args) => Command::Snapshot(Box::new(self.snapshot(args)?)),
            CommandArgs::Tail(args) => Command::Tail(Box::new(self.tail(args)?)),
            CommandArgs::Emulator(options) => Command::Emulator(options),
            CommandArgs::Demo(options) => Command::Demo(DemoConfig { options, output }),
            CommandArgs::Config(args) => Command::Config(self.configuration(args.action)?),
            CommandArgs::Explain(args) => {
                Command::Explain { code: args.code, format: args.output.output }
            }
            CommandArgs::Version(args) => Command::Version(args.output.output),
            CommandArgs::Completions(args) => Command::Completions(args.shell),
            CommandArgs::Man(args) => Command::Man(args.directory),
        })
    }

    fn check(&mut self, args: &cli::CheckArgs) -> Option<CheckConfig> {
        let otlp = self.otlp();
        let inboxes = self.inbox_places(&args.places);
        self.define(&args.definition);
        let run = self.run(&args.options, Until::Stopped, OnSlotLost::Stop)?;
        let archive = self.archive(args.archive.prune_archive.as_ref());
        let maintenance = maintenance(&args.retention, archive);
        let run = RunConfig { otlp, maintenance: Some(maintenance), ..run };
        Some(CheckConfig { run, inboxes: inboxes?, format: args.output.output })
    }

    fn run_command(&mut self, args: &cli::RunArgs) -> Option<RunConfig> {
        let until = match args.own.until.until_caught_up {
            true => Until::CaughtUp,
            false => Until::Stopped,
        };
        let otlp = self.otlp();
        let recorded = self.definition.clone();
        self.define(&args.definition);
        let follows_record = self.definition.difference_from(&recorded).is_none();
        let mut run = self.run(&args.options, until, args.own.on_slot_lost)?;
        run.settings.relay.rate = args.own.rate.and_then(NonZeroU32::new);
        let archive = self.archive(args.own.archive.prune_archive.as_ref());
        let maintenance = maintenance(&args.own.retention, archive);
        if maintenance.archive.is_some() && maintenance.older_than.is_none() {
            self.wrong_or_missing("prune-older-than", "needed by --prune-archive");
        }
        if maintenance.older_than.is_some() {
            let columns = &run.settings.relay.router.columns;
            self.require_time(columns, "needed by --prune-older-than: a row's age is read from it");
        }
        Some(RunConfig {
            follows_record,
            anchor_keep: args.own.anchor_keep.0,
            maintenance: Some(maintenance),
            otlp,
            ..run
        })
    }

    fn tail(&mut self, args: cli::TailArgs) -> Option<TailConfig> {
        let endpoint = self.endpoint(&args.endpoint);
        let topic =
            self.full_name("topic", &args.topic, &project(&args.project), ResourceKind::Topic)?;
        let (count, since, key) = (args.count, args.since, args.key);
        Some(TailConfig { topic, endpoint, count, since, key, format: args.output.output })
    }

    fn status(&mut self, args: &cli::StatusArgs) -> Option<StatusConfig> {
        Some(StatusConfig {
            database: self.database(&args.database)?,
            format: args.output.output,
            watch: args.watch,
            relay: args.relay,
            inboxes: self.inbox_places(&args.places)?,
            wal_budget: args.wal_budget.wal_budget,
        })
    }

    fn init(&mut self, args: cli::InitArgs) -> Option<InitConfig> {
        let prints_only = args.own.sql.sql;
        let shards = args.own.shards;
        self.define(&args.definition);
        let router = self.router(&args.messages);
        let create_topics = create_topics(args.own.create_topics);
        let topic_settings = topic_settings(&args.own.topics);
        if create_topics != CreateTopics::No && !prints_only {
            self.require_project(&router);
        }
        let pubsub = self.pubsub(&args.pubsub);
        let outbox = self.whole_outbox(&args.database, shards);
        self.require_dividing_key(&router, shards);
        if prints_only && args.backfill {
            let allowed =
                "not with --sql: the slot is made together with a snapshot, by this command alone";
            self.wrong_or_missing("backfill", allowed);
        }
        let connect = match prints_only {
            true => None,
            false => Some(self.connect(&args.database.connection)?),
        };
        if let Some(connect) = &connect {
            self.note_record_of(connect, &args.database);
        }
        let shard_key = shard_key(&router);
        let of_shard = |shard| InitOptions {
            columns: router.columns.clone(),
            shard_key: shard_key.clone(),
            failover: if args.own.failover { Failover::Yes } else { Failover::No },
            earlier_rows: match args.skip_existing_rows {
                true => EarlierRows::Leave,
                false => EarlierRows::Refuse,
            },
            partition_by: args.own.partition_by,
            ..InitOptions::new(shard)
        };
        Some(InitConfig {
            connect,
            shards: outbox.shards(shards).into_iter().map(of_shard).collect(),
            router,
            pubsub,
            create_topics,
            topic_settings,
            already_there: match (args.backfill, args.unpublished_column.clone()) {
                (false, _) => ExistingRows::Left,
                (true, None) => ExistingRows::Published,
                (true, Some(column)) => ExistingRows::Unpublished { column },
            },
            options: ChangeOptions {
                // Otherwise no row is left unpublished that nobody has named.
                mode: match args.unpublished_column.is_some() {
                    true => ConfirmArgs { yes: args.yes, dry_run: false }.mode(),
                    false => ChangeMode::Agreed,
                },
                format: args.output.output,
            },
        })
    }

    fn reshard(&mut self, args: &cli::ReshardArgs) -> Option<ReshardConfig> {
        let _: walrelay_outbox_store::Outbox =
            self.whole_outbox(&args.options.database, args.shards);
        let run = self.run(&args.options, Until::CaughtUp, OnSlotLost::Stop)?;
        self.require_dividing_key(&run.settings.relay.router, args.shards);
        let options = args.change.options();
        Some(ReshardConfig { settings: run.settings, shards: args.shards, options })
    }

    /// Requires an ordering key that can distribute rows among shards.
    fn require_dividing_key(&mut self, router: &RouterConfig, shards: u32) {
        if shards > 1 && shard_key(router).is_none() {
            self.wrong("ordering-key", &router.ordering_key.to_string(), ONE_KEY);
        }
    }

    fn prune(&mut self, args: &cli::PruneArgs) -> Option<PruneConfig> {
        let columns = self.definition.columns.clone();
        self.require_time(&columns, "needed: a row's age is read from it");
        let database = self.database(&args.database)?;
        Some(PruneConfig {
            database,
            columns,
            older_than: args.older_than,
            archive: self.archive(args.archive.as_ref()),
            options: args.change.options(),
        })
    }

    fn archive(&self, location: Option<&ArchiveLocation>) -> Option<Archive> {
        let storage_emulator = self.environment.get("STORAGE_EMULATOR_HOST").map(str::to_owned);
        let aws = self.environment.with_prefix("AWS_");
        let environment = StoreEnvironment { aws, storage_emulator };
        location.map(|location| Archive { location: location.clone(), environment })
    }
}

fn maintenance(options: &RetentionOptions, archive: Option<Archive>) -> Maintenance {
    Maintenance { older_than: options.prune_older_than.0, every: options.prune_interval, archive }
}

/// Reads the topics to create. `true` and `false` stand for the bare flag.
fn create_topics(values: Vec<String>) -> CreateTopics {
    match values.as_slice() {
        [] => CreateTopics::No,
        [one] if one == "false" => CreateTopics::No,
        _ => {
            CreateTopics::Yes { named: values.into_iter().filter(|name| name != "true").collect() }
        }
    }
}
