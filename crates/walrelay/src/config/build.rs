//! Builds a [`Config`] from a command line: one function per command.

use std::time::Duration;

use walrelay_emulator::FaultSyntaxError;
use walrelay_outbox_admin::LostSlotPolicy;
use walrelay_relay::lifecycle::preflight_check::shard_key;
use walrelay_relay::settings::Until;

use super::builder::ConfigBuilder;
use super::command::{
    CheckConfig, Command, CreateTopics, DemoConfig, DemoOutput, EmulatorConfig, ExistingRows,
    InitConfig, OnSlotLost, PruneConfig, PruneMode, ReshardConfig, ReshardMode, RunConfig, Shell,
    SlotKind, StatusConfig,
};
use super::layers::{CommandLine, Environment};
use super::log::{LogConfig, LogFormat};
use super::output_format::OutputFormat;
use super::problem::{Problem, Problems};
use super::settings::wal_budget;
use crate::{cli, options, telemetry};

/// A command and its complete configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The logging configuration.
    pub log: LogConfig,
    /// The command to run.
    pub command: Command,
}

impl Config {
    /// Checks every value of a command line.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub fn new(line: &CommandLine, environment: &Environment) -> Result<Self, Vec<Problem>> {
        let problems = Problems::new(&line.given, line.problems.clone());
        let mut builder = ConfigBuilder { problems, environment };
        let log = builder.log();
        let command = builder.command(&line.cli.command);
        builder.problems.check_options();
        // A command that could not be built has reported at least one problem.
        match (builder.problems.into_result(()), command) {
            (Ok(()), Some(command)) => Ok(Self { log, command }),
            (Ok(()), None) => unreachable!("a command that cannot be built names no problem"),
            // Options that seem missing may be in a file that could not be read, so only wrong
            // values are reported.
            (Err(found), _) if line.is_file_unread => {
                let told =
                    |problem: &Problem| problem.value.is_some() || line.problems.contains(problem);
                Err(found.into_iter().filter(told).collect())
            }
            (Err(found), _) => Err(found),
        }
    }
}

const ONE_KEY: &str = "names no column, so all rows have one key and cannot be divided";

/// Shells with completions.
pub(crate) const SHELLS: [(&str, Shell); 3] =
    [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

impl ConfigBuilder<'_> {
    fn log(&mut self) -> LogConfig {
        let format = self.problems.read(options::LOG_FORMAT);
        let filter = self.problems.read(options::LOG_LEVEL);
        if !telemetry::is_filter(&filter) {
            let allowed = "error, warn, info, debug, trace, or target=level pairs with commas";
            self.problems.wrong("log-level", &filter, allowed);
        }
        let format = format.map(|word| match word {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        });
        LogConfig { format, filter }
    }

    fn command(&mut self, command: &cli::CommandArgs) -> Option<Command> {
        match command {
            cli::CommandArgs::Init(args) => Some(Command::Init(Box::new(self.init(args)?))),
            cli::CommandArgs::Check(args) => {
                let format = self.format();
                let otlp = self.otlp();
                let inboxes = self.inbox_places(&args.places);
                let run = self.run(Until::Stopped, OnSlotLost::Stop)?;
                let run = RunConfig { otlp, ..run };
                Some(Command::Check(Box::new(CheckConfig { run, inboxes: inboxes?, format })))
            }
            cli::CommandArgs::Run(_) => {
                let until = match self.problems.read(options::UNTIL_CAUGHT_UP) {
                    true => Until::CaughtUp,
                    false => Until::Stopped,
                };
                let on_slot_lost = match self.problems.read(options::ON_SLOT_LOST) {
                    "recover" => OnSlotLost::Recover,
                    "stop" => OnSlotLost::Stop,
                    _ => OnSlotLost::Wait,
                };
                let anchor_keep = self.problems.read(options::ANCHOR_KEEP);
                let otlp = self.otlp();
                let run = self.run(until, on_slot_lost)?;
                Some(Command::Run(Box::new(RunConfig { anchor_keep, otlp, ..run })))
            }
            cli::CommandArgs::Status(args) => self.status(args).map(Command::Status),
            cli::CommandArgs::Dispatch(args) => self.dispatch(&args.action).map(Command::Dispatch),
            cli::CommandArgs::Slot(args) => self.slot(&args.action).map(Command::Slot),
            cli::CommandArgs::Anchor(args) => self.anchor(&args.action).map(Command::Anchor),
            cli::CommandArgs::Backfill(args) => {
                Some(Command::Backfill(Box::new(self.backfill(args)?)))
            }
            cli::CommandArgs::PrepareUpgrade(_) => {
                let run = self.run(Until::CaughtUp, OnSlotLost::Stop)?;
                Some(Command::PrepareUpgrade(Box::new(run)))
            }
            cli::CommandArgs::Reshard(args) => {
                Some(Command::Reshard(Box::new(self.reshard(args)?)))
            }
            cli::CommandArgs::Replay(args) => Some(Command::Replay(Box::new(self.replay(args)?))),
            cli::CommandArgs::Prune(args) => self.prune(args).map(Command::Prune),
            cli::CommandArgs::Consume(args) => {
                Some(Command::Consume(Box::new(self.consume(&args.name)?)))
            }
            cli::CommandArgs::Consumer(args) => {
                Some(Command::Consumer(Box::new(self.consumer(&args.action)?)))
            }
            cli::CommandArgs::Inbox(args) => self.inbox(&args.action).map(Command::Inbox),
            cli::CommandArgs::Audit(args) => Some(Command::Audit(Box::new(self.audit(args)?))),
            cli::CommandArgs::Trace(args) => Some(Command::Trace(Box::new(self.trace(args)?))),
            cli::CommandArgs::Emulator(_) => self.emulator().map(Command::Emulator),
            cli::CommandArgs::Demo(_) => Some(Command::Demo(self.demo())),
            cli::CommandArgs::Explain(args) => Some(Command::Explain(args.code.clone())),
            cli::CommandArgs::Completions(args) => {
                Some(Command::Completions(self.problems.choice("shell", &args.shell, &SHELLS)))
            }
            cli::CommandArgs::Man(args) => Some(Command::Man((&args.directory).into())),
        }
    }

    fn status(&mut self, args: &cli::StatusArgs) -> Option<StatusConfig> {
        let format = self.format();
        let often = Duration::from_millis(100)..=Duration::from_hours(1);
        let watch = args.watch.as_deref().map(|text| self.problems.duration("watch", text, often));
        let relay =
            args.relay.as_deref().and_then(|text| self.problems.listen_address("relay", text));
        let wal_budget = wal_budget(&mut self.problems);
        Some(StatusConfig { database: self.database()?, format, watch, relay, wal_budget })
    }

    pub(super) fn format(&mut self) -> OutputFormat {
        match self.problems.read(options::FORMAT) {
            "json" => OutputFormat::Json,
            _ => OutputFormat::Text,
        }
    }

    fn init(&mut self, args: &cli::InitArgs) -> Option<InitConfig> {
        let prints_only = self.problems.read(options::SQL);
        let slot_kind = match self.problems.read(options::FAILOVER) {
            true => SlotKind::Failover,
            false => SlotKind::PlainHarness,
        };
        let create_topics = create_topics(&self.problems.read(options::CREATE_TOPICS));
        if let CreateTopics::Yes { named } = &create_topics {
            named.iter().for_each(|name| self.require_topic_name("create-topics", name));
        }
        let router = self.router();
        if create_topics != CreateTopics::No && !prints_only {
            self.require_project(&router);
        }
        let pubsub = self.pubsub();
        let (outbox, shards) = self.divided_outbox();
        if shards > 1 && shard_key(&router).is_none() {
            self.problems.wrong("ordering-key", &router.ordering_key.to_string(), ONE_KEY);
        }
        if prints_only && args.backfill {
            let allowed =
                "not with --sql: the slot is made together with a snapshot, by this command alone";
            self.problems.report_without_value("backfill", allowed);
        }
        let connect = match prints_only {
            true => None,
            false => Some(self.connect()?),
        };
        Some(InitConfig {
            connect,
            outbox,
            shards,
            router,
            pubsub,
            create_topics,
            slot_kind,
            on_lost: if args.accept_loss { LostSlotPolicy::Accept } else { LostSlotPolicy::Refuse },
            already_there: if args.backfill { ExistingRows::Published } else { ExistingRows::Left },
        })
    }

    fn reshard(&mut self, args: &cli::ReshardArgs) -> Option<ReshardConfig> {
        let shards = self.number_of_shards(&args.shards);
        let RunConfig { settings, .. } = self.run(Until::CaughtUp, OnSlotLost::Stop)?;
        let router = &settings.relay.router;
        if shards > 1 && shard_key(router).is_none() {
            self.problems.wrong("ordering-key", &router.ordering_key.to_string(), ONE_KEY);
        }
        let resharded = if args.dry_run { ReshardMode::Told } else { ReshardMode::Done };
        Some(ReshardConfig { settings, shards, resharded })
    }

    fn prune(&mut self, args: &cli::PruneArgs) -> Option<PruneConfig> {
        let older_than = self.problems.read(options::OLDER_THAN);
        let columns = self.columns();
        if columns.occurred_at.is_none() {
            let allowed = "needed: a row's age is read from it";
            self.problems.report_without_value("column-occurred-at", allowed);
        }
        let database = self.database()?;
        let pruning = if args.dry_run { PruneMode::Counted } else { PruneMode::Done };
        Some(PruneConfig { database, columns, older_than, pruning })
    }

    fn emulator(&mut self) -> Option<EmulatorConfig> {
        let problems = &mut self.problems;
        let address = problems.read(options::LISTEN);
        let listen = problems.listen_address("listen", &address);
        if address == "off" {
            problems.wrong("listen", "off", "an address and a port");
        }
        let control = problems.read(options::CONTROL_LISTEN);
        let control_listen = problems.listen_address("control-listen", &control);
        let mut faults = Vec::new();
        for text in problems.read(options::FAULT) {
            match text.parse() {
                Ok(fault) => faults.push(fault),
                Err(error) => {
                    problems.report_without_value("fault", FaultSyntaxError::to_string(&error));
                }
            }
        }
        let max_stored_bytes = problems.read(options::MAX_STORED_BYTES).0;
        Some(EmulatorConfig { listen: listen?, control_listen, faults, max_stored_bytes })
    }

    fn demo(&mut self) -> DemoConfig {
        let problems = &mut self.problems;
        DemoConfig {
            rows: problems.read(options::ROWS).map(u64::from),
            rate: problems.read(options::RATE),
            aggregates: problems.read(options::AGGREGATES),
            output: match problems.read(options::QUIET) {
                true => DemoOutput::Summary,
                false => DemoOutput::Messages,
            },
        }
    }
}

fn create_topics(values: &[String]) -> CreateTopics {
    match values {
        [] => CreateTopics::No,
        [one] if one == "false" => CreateTopics::No,
        some => CreateTopics::Yes {
            named: some.iter().filter(|name| *name != "true").cloned().collect(),
        },
    }
}
