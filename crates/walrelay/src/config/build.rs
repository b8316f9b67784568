//! Groups of options, each checked and turned into its part of the [`Config`].

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use walrelay_core::{AttributeStyle, ColumnNames, OnDead, RouterConfig, Template};
use walrelay_emulator::FaultSyntaxError;
use walrelay_postgres::{ConnectConfig, ParseNameError, PgEnv, QualifiedName, Secret};
use walrelay_pubsub::{Endpoint, PublisherConfig};
use walrelay_relay::settings::{PubSubSettings, RelaySettings, Settings, Until};

use super::names::{is_identifier, is_slot_name};
use super::problem::{Origin, Problem, Problems};
use super::{
    CheckConfig, Command, Config, CreateTopics, DatabaseConfig, DemoConfig, DemoOutput,
    EmulatorConfig, Environment, InitConfig, LogConfig, LogFormat, OutputFormat, PruneConfig,
    RunConfig, SlotKind, StatusConfig,
};
use crate::cli::{self, Cli};
use crate::telemetry;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The formats of commands that print.
pub(super) const FORMATS: [(&str, OutputFormat); 2] =
    [("text", OutputFormat::Text), ("json", OutputFormat::Json)];

pub(super) fn config(
    cli: &Cli,
    origins: &BTreeMap<String, Origin>,
    environment: &Environment,
) -> Result<Config, Vec<Problem>> {
    let mut builder = Builder { problems: Problems::new(origins), environment };
    let log = builder.log(&cli.global);
    let command = builder.command(&cli.command);
    // Whoever could not be built has said why.
    match (builder.problems.into_result(()), command) {
        (Ok(()), Some(command)) => Ok(Config { log, command }),
        (Ok(()), None) => unreachable!("a command that cannot be built names no problem"),
        (Err(problems), _) => Err(problems),
    }
}

pub(super) struct Builder<'a> {
    pub(super) problems: Problems<'a>,
    environment: &'a Environment,
}

impl Builder<'_> {
    fn log(&mut self, options: &cli::GlobalOptions) -> LogConfig {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        let format = options
            .log_format
            .as_deref()
            .map(|format| self.problems.choice("log-format", format, &formats));
        if !telemetry::is_filter(&options.log_level) {
            let allowed = "error, warn, info, debug, trace, or target=level pairs with commas";
            self.problems.wrong("log-level", &options.log_level, allowed);
        }
        LogConfig { format, filter: options.log_level.clone() }
    }

    fn command(&mut self, command: &cli::Command) -> Option<Command> {
        match command {
            cli::Command::Init(args) => Some(Command::Init(Box::new(self.init(args)?))),
            cli::Command::Check(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                let run = self.run(&args.options, Until::Stopped)?;
                Some(Command::Check(Box::new(CheckConfig { run, format })))
            }
            cli::Command::Run(args) => {
                let until = match self.problems.switch("until-caught-up", &args.until_caught_up) {
                    true => Until::CaughtUp,
                    false => Until::Stopped,
                };
                Some(Command::Run(Box::new(self.run(&args.options, until)?)))
            }
            cli::Command::Status(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                let database = self.database(&args.database)?;
                Some(Command::Status(StatusConfig { database, format }))
            }
            cli::Command::Dispatch(args) => self.dispatch(&args.action).map(Command::Dispatch),
            cli::Command::Slot(args) => self.slot(&args.action).map(Command::Slot),
            cli::Command::Prune(args) => self.prune(args).map(Command::Prune),
            cli::Command::Emulator(args) => self.emulator(args).map(Command::Emulator),
            cli::Command::Demo(args) => Some(Command::Demo(self.demo(args))),
        }
    }

    fn init(&mut self, args: &cli::InitArgs) -> Option<InitConfig> {
        let prints_only = self.problems.switch("sql", &args.sql);
        let slot_kind = match self.problems.switch("failover", &args.failover) {
            true => SlotKind::Failover,
            false => SlotKind::Plain,
        };
        let create_topics = create_topics(&args.create_topics);
        let router = self.router(&args.columns, &args.messages);
        if create_topics != CreateTopics::No && !prints_only {
            self.require_project(&router, &args.messages.topic);
        }
        let pubsub = self.pubsub(&args.pubsub);
        let outbox_tables = self.names(&args.database);
        let connect = match prints_only {
            true => None,
            false => Some(self.connect(&args.database)?),
        };
        Some(InitConfig {
            connect,
            slot: args.database.slot.clone(),
            publication: args.database.publication.clone(),
            outbox_tables,
            router,
            pubsub,
            create_topics,
            slot_kind,
        })
    }

    fn run(&mut self, options: &cli::RunOptions, until: Until) -> Option<RunConfig> {
        let outbox_tables = self.names(&options.database);
        let connect = self.connect(&options.database);
        let router = self.router(&options.columns, &options.messages);
        self.require_project(&router, &options.messages.topic);
        let pubsub = self.pubsub(&options.pubsub);
        let http = self.http(options.relay.http.as_deref());
        let relay = self.relay(options, outbox_tables, router);
        let settings = Settings { connect: connect?, relay, pubsub, until };
        Some(RunConfig { settings, http })
    }

    /// Names and connection; `None` when there is nothing to connect with.
    pub(super) fn database(&mut self, options: &cli::DatabaseOptions) -> Option<DatabaseConfig> {
        let outbox_tables = self.names(options);
        Some(DatabaseConfig {
            connect: self.connect(options)?,
            slot: options.slot.clone(),
            publication: options.publication.clone(),
            outbox_tables,
        })
    }

    fn names(&mut self, options: &cli::DatabaseOptions) -> Vec<QualifiedName> {
        if !is_slot_name(&options.slot) {
            let allowed = "1 to 63 lower-case letters, digits and underscores";
            self.problems.wrong("slot", &options.slot, allowed);
        }
        if !is_identifier(&options.publication) {
            self.problems.wrong("publication", &options.publication, "1 to 63 bytes");
        }
        let mut tables = Vec::new();
        for text in &options.outbox_table {
            match text.parse() {
                Ok(name) if tables.contains(&name) => {}
                Ok(name) => tables.push(name),
                Err(error) => {
                    self.problems.wrong("outbox-table", text, ParseNameError::to_string(&error));
                }
            }
        }
        if options.outbox_table.is_empty() {
            self.problems.wrong_unseen("outbox-table", "at least one table");
        }
        tables
    }

    fn connect(&mut self, options: &cli::DatabaseOptions) -> Option<ConnectConfig> {
        let Some(url) = options.database_url.as_deref().filter(|url| !url.trim().is_empty()) else {
            let allowed = "not set; postgresql://user@host:port/database, also as DATABASE_URL";
            self.problems.wrong_unseen("database-url", allowed);
            return None;
        };
        let variable = |name| self.environment.get(name);
        let env = PgEnv {
            user: variable("PGUSER").map(str::to_owned),
            password: variable("PGPASSWORD").map(Secret::new),
            passfile: variable("PGPASSFILE").map(Into::into),
            sslrootcert_pem: variable("WALRELAY_SSLROOTCERT_PEM").map(str::to_owned),
        };
        match ConnectConfig::parse(url, &env) {
            Ok(connect) => Some(connect),
            Err(found) => {
                for problem in found {
                    self.problems.wrong_unseen("database-url", problem.to_string());
                }
                None
            }
        }
    }

    fn router(
        &mut self,
        columns: &cli::ColumnOptions,
        options: &cli::MessageOptions,
    ) -> RouterConfig {
        let columns = self.columns(columns);
        let styles = [("default", false), ("cloudevents", true)];
        let style = match self.problems.choice("attributes", &options.attributes, &styles) {
            false => AttributeStyle::Default,
            true => AttributeStyle::CloudEvents { source: self.source(options) },
        };
        RouterConfig {
            project: self.project(options),
            topic: self.template("topic", &options.topic, &columns),
            ordering_key: self.template("ordering-key", &options.ordering_key, &columns),
            columns,
            style,
            replay_id: None,
        }
    }

    fn template(&mut self, option: &str, text: &str, columns: &ColumnNames) -> Template {
        if option == "topic" && text.trim().is_empty() {
            self.problems.wrong(option, text, "a topic, columns in braces");
        }
        match Template::parse(text) {
            Ok(template) => {
                for name in template.columns().filter(|name| columns.resolve(name).is_none()) {
                    let allowed = format!("{{{name}}} is a column this table has not");
                    self.problems.wrong(option, text, allowed);
                }
                template
            }
            Err(error) => {
                self.problems.wrong(option, text, error.to_string());
                Template::parse("").expect("the empty template has no braces to be wrong")
            }
        }
    }

    /// Empty stands for the name of the row's table.
    fn source(&mut self, options: &cli::MessageOptions) -> String {
        let source = options.cloudevents_source.as_deref().unwrap_or_default();
        // An attribute's value may have 1,024 bytes.
        if source.len() > 1024 || source.contains(char::is_whitespace) {
            let allowed = "a URI reference of at most 1024 bytes";
            self.problems.wrong("cloudevents-source", source, allowed);
        }
        source.to_owned()
    }

    fn project(&mut self, options: &cli::MessageOptions) -> String {
        let project = options.project.as_deref().unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if !project.chars().all(fits) {
            self.problems.wrong("project", project, "a project id, such as my-project");
        }
        project.to_owned()
    }

    /// A template that names its project needs none besides.
    fn require_project(&mut self, router: &RouterConfig, topic: &str) {
        if router.project.is_empty() && !topic.starts_with("projects/") {
            let allowed = "not set; needed unless --topic is a full projects/…/topics/… name";
            self.problems.wrong_unseen("project", allowed);
        }
    }

    pub(super) fn columns(&mut self, options: &cli::ColumnOptions) -> ColumnNames {
        let presets = [("walrelay", Preset::Walrelay), ("debezium", Preset::Debezium)];
        let preset = self.problems.choice("preset", &options.preset, &presets);
        let given = |name| Choice { preset: None, given: name };
        let mut optional = |option, choice| self.optional_column(option, choice);
        let aggregate_type =
            optional("column-aggregate-type", given(&options.column_aggregate_type));
        let aggregate_id = optional("column-aggregate-id", given(&options.column_aggregate_id));
        let event_type =
            optional("column-event-type", preset.or("type", &options.column_event_type));
        let version = optional("column-version", preset.or("", &options.column_version));
        let schema_version =
            optional("column-schema-version", preset.or("", &options.column_schema_version));
        let headers = optional("column-headers", preset.or("", &options.column_headers));
        let occurred_at =
            optional("column-occurred-at", preset.or("timestamp", &options.column_occurred_at));
        ColumnNames {
            id: self.column("column-id", &options.column_id),
            payload: self.column("column-payload", &options.column_payload),
            aggregate_type,
            aggregate_id,
            event_type,
            version,
            schema_version,
            headers,
            occurred_at,
        }
    }

    fn column(&mut self, option: &str, name: &str) -> String {
        if !is_identifier(name) {
            self.problems.wrong(option, name, "the name of a column, 1 to 63 bytes");
        }
        name.to_owned()
    }

    fn optional_column(&mut self, option: &str, name: Choice<'_>) -> Option<String> {
        let name = match name {
            Choice { preset: Some(preset), .. } if self.problems.is_default(option) => preset,
            Choice { given, .. } => given,
        };
        (!name.is_empty()).then(|| self.column(option, name))
    }

    fn pubsub(&mut self, options: &cli::PubSubOptions) -> PubSubSettings {
        let timeouts = SECOND..=10 * MINUTE;
        let problems = &mut self.problems;
        let request_timeout =
            problems.duration("publish-timeout", &options.publish_timeout, timeouts);
        let connections_max = problems.count("connections", &options.connections, 1..=64);
        let requests = &options.max_outstanding_requests;
        let max_outstanding_requests =
            problems.count("max-outstanding-requests", requests, 1..=10_000);
        let endpoint = self.endpoint(options.endpoint.as_deref());
        let publisher =
            PublisherConfig { connections_max, request_timeout, ..PublisherConfig::new(endpoint) };
        PubSubSettings { publisher, max_outstanding_requests }
    }

    fn endpoint(&mut self, pinned: Option<&str>) -> Endpoint {
        let pinned = pinned.filter(|url| !url.is_empty());
        let emulator = self.environment.get("PUBSUB_EMULATOR_HOST");
        let endpoint = match (pinned, emulator) {
            (Some(_), Some(_)) => {
                let allowed = "PUBSUB_EMULATOR_HOST is set too; unset one of them";
                self.problems.wrong_unseen("endpoint", allowed);
                None
            }
            (Some(url), None) => Endpoint::regional(url)
                .map_err(|error| self.problems.wrong_unseen("endpoint", error.to_string()))
                .ok(),
            (None, Some(host)) => Endpoint::emulator(host)
                .map_err(|error| {
                    self.problems.wrong_variable("PUBSUB_EMULATOR_HOST", &error.to_string());
                })
                .ok(),
            (None, None) => None,
        };
        endpoint.unwrap_or_else(Endpoint::production)
    }

    /// Cloud Run says in PORT where it will look; an address given for ourselves wins.
    fn http(&mut self, address: Option<&str>) -> Option<SocketAddr> {
        if let Some(address) = address.filter(|address| !address.is_empty()) {
            return self.problems.listen_address("http", address);
        }
        let port = self.environment.get("PORT")?;
        match port.parse::<u16>() {
            Ok(port) => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
            Err(_) => {
                let allowed = format!("{port:?} is not a port; correct it, or set --http off");
                self.problems.wrong_variable("PORT", &allowed);
                None
            }
        }
    }

    fn relay(
        &mut self,
        options: &cli::RunOptions,
        outbox_tables: Vec<QualifiedName>,
        router: RouterConfig,
    ) -> RelaySettings {
        let relay = &options.relay;
        let policies = [("continue", OnDead::Continue), ("hold", OnDead::Hold)];
        let millis = Duration::from_millis;
        let problems = &mut self.problems;
        let config = RelaySettings {
            slot: options.database.slot.clone(),
            publication: options.database.publication.clone(),
            outbox_tables,
            router,
            park_after: problems.duration("park-after", &relay.park_after, millis(100)..=DAY),
            max_attempts: problems.count("max-attempts", &relay.max_attempts, 1..=1_000),
            on_dead: problems.choice("on-dead", &relay.on_dead, &policies),
            max_in_flight_bytes: problems
                .size("max-in-flight-bytes", &relay.max_in_flight_bytes, MIB..=64 * GIB)
                .try_into()
                .unwrap_or(usize::MAX),
            drain_timeout: problems.duration(
                "drain-timeout",
                &relay.drain_timeout,
                Duration::ZERO..=60 * MINUTE,
            ),
            take_over_after: relay
                .take_over_after
                .as_deref()
                .filter(|text| !text.is_empty() && *text != "never")
                .map(|text| problems.duration("take-over-after", text, SECOND..=DAY)),
            status_interval: problems.duration(
                "status-interval",
                &relay.status_interval,
                millis(100)..=MINUTE,
            ),
            wal_sender_timeout: problems.duration(
                "wal-sender-timeout",
                &relay.wal_sender_timeout,
                SECOND..=10 * MINUTE,
            ),
            dispatch_retention: problems.duration(
                "dispatch-retention",
                &relay.dispatch_retention,
                Duration::ZERO..=3650 * DAY,
            ),
        };
        self.keeps_the_session(&config, &relay.status_interval);
        config
    }

    /// A server that hears nothing for its timeout ends the session; two updates may be lost.
    fn keeps_the_session(&mut self, relay: &RelaySettings, status_interval: &str) {
        if relay.status_interval > relay.wal_sender_timeout / 3 {
            let allowed = "at most a third of --wal-sender-timeout";
            self.problems.wrong("status-interval", status_interval, allowed);
        }
    }

    fn prune(&mut self, args: &cli::PruneArgs) -> Option<PruneConfig> {
        let range = SECOND..=3650 * DAY;
        let older_than = self.problems.duration("older-than", &args.older_than, range);
        let columns = self.columns(&args.columns);
        if columns.occurred_at.is_none() {
            let allowed = "needed: a row's age is read from it";
            self.problems.wrong_unseen("column-occurred-at", allowed);
        }
        let database = self.database(&args.database)?;
        Some(PruneConfig { database, columns, older_than })
    }

    fn emulator(&mut self, args: &cli::EmulatorArgs) -> Option<EmulatorConfig> {
        let problems = &mut self.problems;
        let listen = problems.listen_address("listen", &args.listen);
        if args.listen == "off" {
            problems.wrong("listen", "off", "an address and a port");
        }
        let control_listen = problems.listen_address("control-listen", &args.control_listen);
        let mut faults = Vec::new();
        for text in &args.fault {
            match text.parse() {
                Ok(fault) => faults.push(fault),
                Err(error) => problems.wrong_unseen("fault", FaultSyntaxError::to_string(&error)),
            }
        }
        let max_stored_bytes =
            problems.size("max-stored-bytes", &args.max_stored_bytes, MIB..=64 * GIB);
        Some(EmulatorConfig {
            listen: listen?,
            control_listen,
            faults,
            max_stored_bytes: max_stored_bytes.try_into().unwrap_or(usize::MAX),
        })
    }

    fn demo(&mut self, args: &cli::DemoArgs) -> DemoConfig {
        let rows = args.rows.as_deref().filter(|rows| !rows.is_empty());
        DemoConfig {
            rows: rows.map(|rows| self.problems.count("rows", rows, 1..=10_000_000)),
            rate: self.problems.count("rate", &args.rate, 1..=100_000),
            aggregates: self.problems.count("aggregates", &args.aggregates, 1..=1_000_000),
            output: match self.problems.switch("quiet", &args.quiet) {
                true => DemoOutput::Summary,
                false => DemoOutput::Messages,
            },
        }
    }
}

/// Where the defaults of the column options come from.
#[derive(Clone, Copy)]
enum Preset {
    Walrelay,
    Debezium,
}

impl Preset {
    /// Debezium's name for a column beside what the option says.
    fn or<'a>(self, debezium: &'a str, given: &'a str) -> Choice<'a> {
        match self {
            Self::Walrelay => Choice { preset: None, given },
            Self::Debezium => Choice { preset: Some(debezium), given },
        }
    }
}

/// A preset's name counts only while nobody set the option.
struct Choice<'a> {
    preset: Option<&'a str>,
    given: &'a str,
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
