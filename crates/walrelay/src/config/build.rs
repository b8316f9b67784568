//! Groups of options, each checked and turned into its part of the [`Config`].

use std::net::{Ipv4Addr, SocketAddr};

use walrelay_core::{AttributeStyle, ColumnNames, Names, OnDead, RouterConfig, Template};
use walrelay_emulator::FaultSyntaxError;
use walrelay_postgres::{ConnectConfig, OnLost, ParseNameError, PgEnv, QualifiedName, Secret};
use walrelay_pubsub::{Endpoint, PublisherConfig};
use walrelay_relay::settings::{PubSubSettings, RelaySettings, Settings, Until};

use super::layers::CommandLine;
use super::names::{is_identifier, is_slot_name};
use super::problem::{Problem, Problems};
use super::{
    CheckConfig, Command, Config, CreateTopics, DatabaseConfig, DemoConfig, DemoOutput,
    EmulatorConfig, Environment, InitConfig, LogConfig, LogFormat, OutputFormat, PruneConfig,
    RunConfig, SlotKind, StatusConfig,
};
use crate::options::declaration::Setting;
use crate::options::units::show_duration;
use crate::{cli, options, telemetry};

/// The formats of commands that print.
pub(super) const FORMATS: [(&str, OutputFormat); 2] =
    [("text", OutputFormat::Text), ("json", OutputFormat::Json)];

pub(super) fn config(
    line: &CommandLine,
    environment: &Environment,
) -> Result<Config, Vec<Problem>> {
    let problems = Problems::new(&line.given, line.problems.clone());
    let mut builder = Builder { problems, environment };
    let log = builder.log();
    let command = builder.command(&line.cli.command);
    // A command that could not be built has left a problem that says why.
    match (builder.problems.into_result(()), command) {
        (Ok(()), Some(command)) => Ok(Config { log, command }),
        (Ok(()), None) => unreachable!("a command that cannot be built names no problem"),
        (Err(found), _) => Err(found),
    }
}

pub(super) struct Builder<'a> {
    pub(super) problems: Problems<'a>,
    environment: &'a Environment,
}

impl Builder<'_> {
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

    fn command(&mut self, command: &cli::Command) -> Option<Command> {
        match command {
            cli::Command::Init(args) => Some(Command::Init(Box::new(self.init(args)?))),
            cli::Command::Check(_) => {
                let format = self.format();
                let run = self.run(Until::Stopped)?;
                Some(Command::Check(Box::new(CheckConfig { run, format })))
            }
            cli::Command::Run(_) => {
                let until = match self.problems.read(options::UNTIL_CAUGHT_UP) {
                    true => Until::CaughtUp,
                    false => Until::Stopped,
                };
                Some(Command::Run(Box::new(self.run(until)?)))
            }
            cli::Command::Status(_) => {
                let format = self.format();
                let database = self.database()?;
                Some(Command::Status(StatusConfig { database, format }))
            }
            cli::Command::Dispatch(args) => self.dispatch(&args.action).map(Command::Dispatch),
            cli::Command::Slot(args) => self.slot(&args.action).map(Command::Slot),
            cli::Command::Prune(_) => self.prune().map(Command::Prune),
            cli::Command::Emulator(_) => self.emulator().map(Command::Emulator),
            cli::Command::Demo(_) => Some(Command::Demo(self.demo())),
        }
    }

    fn format(&mut self) -> OutputFormat {
        match self.problems.read(options::FORMAT) {
            "json" => OutputFormat::Json,
            _ => OutputFormat::Text,
        }
    }

    fn init(&mut self, args: &cli::InitArgs) -> Option<InitConfig> {
        let prints_only = self.problems.read(options::SQL);
        let slot_kind = match self.problems.read(options::FAILOVER) {
            true => SlotKind::Failover,
            false => SlotKind::Plain,
        };
        let create_topics = create_topics(&self.problems.read(options::CREATE_TOPICS));
        let router = self.router();
        if create_topics != CreateTopics::No && !prints_only {
            self.require_project(&router);
        }
        let pubsub = self.pubsub();
        let (slot, publication, outbox_tables) = self.names();
        let connect = match prints_only {
            true => None,
            false => Some(self.connect()?),
        };
        Some(InitConfig {
            connect,
            slot,
            publication,
            outbox_tables,
            router,
            pubsub,
            create_topics,
            slot_kind,
            on_lost: if args.accept_loss { OnLost::Accept } else { OnLost::Refuse },
        })
    }

    fn run(&mut self, until: Until) -> Option<RunConfig> {
        let connect = self.connect();
        let relay = self.relay();
        self.require_project(&relay.router);
        let pubsub = self.pubsub();
        let http = self.http();
        let settings = Settings { connect: connect?, relay, pubsub, until };
        Some(RunConfig { settings, http })
    }

    /// Names and connection; `None` when there is nothing to connect with.
    pub(super) fn database(&mut self) -> Option<DatabaseConfig> {
        let (slot, publication, outbox_tables) = self.names();
        Some(DatabaseConfig { connect: self.connect()?, slot, publication, outbox_tables })
    }

    fn names(&mut self) -> (String, String, Vec<QualifiedName>) {
        let slot = self.problems.read(options::SLOT);
        if !is_slot_name(&slot) {
            let allowed = "1 to 63 lower-case letters, digits and underscores";
            self.problems.wrong("slot", &slot, allowed);
        }
        let publication = self.problems.read(options::PUBLICATION);
        if !is_identifier(&publication) {
            self.problems.wrong("publication", &publication, "1 to 63 bytes");
        }
        (slot, publication, self.outbox_tables())
    }

    fn outbox_tables(&mut self) -> Vec<QualifiedName> {
        let given = self.problems.read(options::OUTBOX_TABLE);
        let mut tables = Vec::new();
        for text in &given {
            match text.parse() {
                Ok(name) if tables.contains(&name) => {}
                Ok(name) => tables.push(name),
                Err(error) => {
                    self.problems.wrong("outbox-table", text, ParseNameError::to_string(&error));
                }
            }
        }
        if given.is_empty() {
            self.problems.wrong_unseen("outbox-table", "at least one table");
        }
        tables
    }

    fn connect(&mut self) -> Option<ConnectConfig> {
        let Some(url) = self.problems.read(options::DATABASE_URL) else {
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
        match ConnectConfig::parse(&url, &env) {
            Ok(connect) => Some(connect),
            Err(found) => {
                for problem in found {
                    self.problems.wrong_unseen("database-url", problem.to_string());
                }
                None
            }
        }
    }

    fn router(&mut self) -> RouterConfig {
        let columns = self.columns();
        let style = match self.problems.read(options::ATTRIBUTES) {
            "cloudevents" => AttributeStyle::CloudEvents { source: self.source() },
            _ => AttributeStyle::Default,
        };
        RouterConfig {
            project: self.project(),
            topic: self.template(options::TOPIC, &columns),
            ordering_key: self.template(options::ORDERING_KEY, &columns),
            columns,
            style,
            replay_id: None,
        }
    }

    fn template(&mut self, setting: Setting<String>, columns: &ColumnNames) -> Template {
        let (option, text) = (setting.declaration.name, self.problems.read(setting));
        if option == "topic" && text.trim().is_empty() {
            self.problems.wrong(option, &text, "a topic, columns in braces");
        }
        match Template::parse(&text) {
            Ok(template) => {
                for name in template.columns().filter(|name| columns.resolve(name).is_none()) {
                    let allowed = format!("the outbox tables have no column for {{{name}}}");
                    self.problems.wrong(option, &text, allowed);
                }
                template
            }
            Err(error) => {
                self.problems.wrong(option, &text, error.to_string());
                Template::parse("").expect("the empty template has no braces to be wrong")
            }
        }
    }

    /// Empty stands for the name of the row's table.
    fn source(&mut self) -> String {
        let source = self.problems.read(options::CLOUDEVENTS_SOURCE).unwrap_or_default();
        // An attribute's value may have 1,024 bytes.
        if source.len() > 1024 || source.contains(char::is_whitespace) {
            let allowed = "a URI reference of at most 1024 bytes";
            self.problems.wrong("cloudevents-source", &source, allowed);
        }
        source
    }

    fn project(&mut self) -> String {
        let project = self.problems.read(options::PROJECT).unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if !project.chars().all(fits) {
            self.problems.wrong("project", &project, "a project id, such as my-project");
        }
        project
    }

    /// A template that names its project needs none besides.
    fn require_project(&mut self, router: &RouterConfig) {
        if router.project.is_empty() && !router.topic.to_string().starts_with("projects/") {
            let allowed = "not set; needed unless --topic is a full projects/…/topics/… name";
            self.problems.wrong_unseen("project", allowed);
        }
    }

    pub(super) fn columns(&mut self) -> ColumnNames {
        let preset = match self.problems.read(options::PRESET) {
            "debezium" => Preset::Debezium,
            _ => Preset::Walrelay,
        };
        let mut optional = |setting, debezium| self.optional_column(setting, preset, debezium);
        let aggregate_type = optional(options::COLUMN_AGGREGATE_TYPE, "aggregatetype");
        let aggregate_id = optional(options::COLUMN_AGGREGATE_ID, "aggregateid");
        let event_type = optional(options::COLUMN_EVENT_TYPE, "type");
        let version = optional(options::COLUMN_VERSION, "");
        let schema_version = optional(options::COLUMN_SCHEMA_VERSION, "");
        let headers = optional(options::COLUMN_HEADERS, "");
        let occurred_at = optional(options::COLUMN_OCCURRED_AT, "timestamp");
        ColumnNames {
            id: self.column(options::COLUMN_ID),
            payload: self.column(options::COLUMN_PAYLOAD),
            aggregate_type,
            aggregate_id,
            event_type,
            version,
            schema_version,
            headers,
            occurred_at,
        }
    }

    fn column(&mut self, setting: Setting<String>) -> Names {
        let text = self.problems.read(setting);
        let names = Names::parse(&text);
        if names.iter().next().is_none() || !names.iter().all(is_identifier) {
            let allowed = "the name of a column, 1 to 63 bytes, or several with commas";
            self.problems.wrong(setting.declaration.name, &text, allowed);
        }
        names
    }

    /// A column that the table may lack; the preset's name for it counts only while nobody set the
    /// option.
    fn optional_column(
        &mut self,
        setting: Setting<String>,
        preset: Preset,
        debezium: &str,
    ) -> Option<Names> {
        let is_default = self.problems.is_default(setting.declaration.name);
        if preset == Preset::Debezium && is_default {
            return (!debezium.is_empty()).then(|| Names::parse(debezium));
        }
        let is_given = !self.problems.read(setting).is_empty();
        is_given.then(|| self.column(setting))
    }

    fn pubsub(&mut self) -> PubSubSettings {
        let endpoint = self.endpoint();
        let problems = &mut self.problems;
        let publisher = PublisherConfig {
            connections_max: problems.read(options::CONNECTIONS) as usize,
            request_timeout: problems.read(options::PUBLISH_TIMEOUT),
            ..PublisherConfig::new(endpoint)
        };
        let max_outstanding_requests = problems.read(options::MAX_OUTSTANDING_REQUESTS) as usize;
        PubSubSettings { publisher, max_outstanding_requests }
    }

    fn endpoint(&mut self) -> Endpoint {
        let pinned = self.problems.read(options::ENDPOINT);
        let emulator = self.environment.get("PUBSUB_EMULATOR_HOST");
        let endpoint = match (pinned, emulator) {
            (Some(_), Some(_)) => {
                let allowed = "PUBSUB_EMULATOR_HOST is set too; unset one of them";
                self.problems.wrong_unseen("endpoint", allowed);
                None
            }
            (Some(url), None) => Endpoint::regional(&url)
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
    fn http(&mut self) -> Option<SocketAddr> {
        if let Some(address) = self.problems.read(options::HTTP) {
            return self.problems.listen_address("http", &address);
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

    fn relay(&mut self) -> RelaySettings {
        let (slot, publication, outbox_tables) = self.names();
        let router = self.router();
        let problems = &mut self.problems;
        let relay = RelaySettings {
            slot,
            publication,
            outbox_tables,
            router,
            park_after: problems.read(options::PARK_AFTER),
            max_attempts: problems.read(options::MAX_ATTEMPTS),
            on_dead: match problems.read(options::ON_DEAD) {
                "hold" => OnDead::Hold,
                _ => OnDead::Continue,
            },
            max_in_flight_bytes: problems.read(options::MAX_IN_FLIGHT_BYTES).0,
            drain_timeout: problems.read(options::DRAIN_TIMEOUT),
            take_over_after: problems.read(options::TAKE_OVER_AFTER),
            status_interval: problems.read(options::STATUS_INTERVAL),
            wal_sender_timeout: problems.read(options::WAL_SENDER_TIMEOUT),
            dispatch_retention: problems.read(options::DISPATCH_RETENTION),
        };
        self.keeps_the_session(&relay);
        relay
    }

    /// A server that hears nothing for its timeout ends the session; two updates may be lost.
    fn keeps_the_session(&mut self, relay: &RelaySettings) {
        if relay.status_interval > relay.wal_sender_timeout / 3 {
            let allowed = "at most a third of --wal-sender-timeout";
            let interval = show_duration(relay.status_interval);
            self.problems.wrong("status-interval", &interval, allowed);
        }
    }

    fn prune(&mut self) -> Option<PruneConfig> {
        let older_than = self.problems.read(options::OLDER_THAN);
        let columns = self.columns();
        if columns.occurred_at.is_none() {
            let allowed = "needed: a row's age is read from it";
            self.problems.wrong_unseen("column-occurred-at", allowed);
        }
        let database = self.database()?;
        Some(PruneConfig { database, columns, older_than })
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
                Err(error) => problems.wrong_unseen("fault", FaultSyntaxError::to_string(&error)),
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

/// Where the defaults of the column options come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preset {
    Walrelay,
    Debezium,
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
