//! Precedence, validation and secrets of the configuration, and the page that documents it.

#![expect(clippy::shadow_unrelated, reason = "each case reads as if it stood alone")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_core::ColumnAliases;
use walrelay_relay::settings::Until;

use crate::cli::CommandArgs;
use crate::commands::consumer::Consumer;
use crate::commands::run::RunConfig;
use crate::config::{Checks, Environment, Problem, Refusal};
use crate::options::is_option;

pub(crate) const URL: &str = "postgresql://relay:hunter2@db.example:5432/app";

/// A temporary file, deleted when it is dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("walrelay-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let removed = std::fs::remove_file(&self.0);
        assert!(removed.is_ok() || std::thread::panicking());
    }
}

/// Returns what `take` makes of the command that the arguments name.
pub(crate) fn checked<T>(
    arguments: &[&str],
    variables: &[(&str, &str)],
    take: impl FnOnce(CommandArgs, &mut Checks<'_>) -> Option<T>,
) -> Result<T, Refusal> {
    let arguments = ["walrelay"].iter().chain(arguments).map(OsString::from);
    let environment = Environment::new(variables.iter().copied());
    let line = super::read(arguments, &environment)?;
    let taken = super::build::checked(line, &environment, |cli, checks| take(cli.command, checks));
    taken.map(|(taken, _)| taken)
}

pub(crate) fn parse(arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), Refusal> {
    checked(arguments, variables, |command, checks| command.plan(checks).map(drop))
}

/// Returns the problems of a command line.
pub(crate) fn config(arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), Vec<Problem>> {
    parse(arguments, variables).map_err(|refusal| match refusal {
        Refusal::Config(problems) => problems,
        Refusal::Clap(error) => panic!("{error}"),
    })
}

#[test]
fn a_printed_command_repeats_a_database_without_its_password() {
    let url = "postgresql://u:secret@h/d";
    let arguments = ["walrelay", "consumer", "status", "c", "--database-url", url];
    for (variable, words) in [
        ("OTHER", "--database-url 'postgresql://u:***@h/d'"),
        ("READ_URL", "--database-url \"$READ_URL\""),
    ] {
        let value = if variable == "READ_URL" { url } else { "x" };
        let environment = Environment::new([(variable, value)]);
        let line = super::read(arguments.map(OsString::from), &environment).unwrap();
        assert_eq!(line.given, [("database-url".to_owned(), words.to_owned())]);
    }
}

fn run_config(arguments: &[&str], variables: &[(&str, &str)]) -> RunConfig {
    let arguments: Vec<&str> = ["run"].iter().chain(arguments).copied().collect();
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    let variables: Vec<_> = given.iter().chain(variables).copied().collect();
    let taken = checked(&arguments, &variables, |command, checks| {
        let CommandArgs::Run(run) = command else { panic!("{command:?}") };
        run.config(checks)
    });
    taken.unwrap()
}

pub(crate) fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() {
    let file = TemporaryFile::new("precedence.toml", "park-after = \"3s\"\nmax-attempts = 4\n");
    let from_file = ["--config", file.path()];
    let seconds = Duration::from_secs;
    assert_eq!(run_config(&[], &[]).settings.relay.park_after, seconds(30));
    assert_eq!(run_config(&from_file, &[]).settings.relay.park_after, seconds(3));
    let variable = [("WALRELAY_PARK_AFTER", "2s")];
    let both = run_config(&from_file, &variable).settings.relay;
    assert_eq!((both.park_after, both.max_attempts), (seconds(2), 4));
    let flag = ["--config", file.path(), "--park-after", "1s"];
    assert_eq!(run_config(&flag, &variable).settings.relay.park_after, seconds(1));
    let file_by_variable = [("WALRELAY_CONFIG", file.path())];
    assert_eq!(run_config(&[], &file_by_variable).settings.relay.park_after, seconds(3));
}

#[test]
fn established_variables_count_behind_our_own() {
    let established = [("GOOGLE_CLOUD_PROJECT", "other"), ("PORT", "8080")];
    let config = run_config(&[], &established);
    assert_eq!(config.settings.relay.router.project, "p");
    assert_eq!(config.http, Some("0.0.0.0:8080".parse().unwrap()));
    let own =
        run_config(&[], &[("WALRELAY_PROJECT", "own"), ("PORT", "1"), ("WALRELAY_HTTP", "off")]);
    assert_eq!(own.settings.relay.router.project, "own");
    assert_eq!(own.http, None);
    let emulated = run_config(&[], &[("PUBSUB_EMULATOR_HOST", "localhost:8085")]);
    assert!(emulated.settings.pubsub.publisher.endpoint.is_emulator());
}

#[test]
fn switches_and_lists_are_read_from_every_layer() {
    assert_eq!(run_config(&["--until-caught-up"], &[]).settings.until, Until::CaughtUp);
    let on = [("WALRELAY_UNTIL_CAUGHT_UP", "true")];
    assert_eq!(run_config(&[], &on).settings.until, Until::CaughtUp);
    assert_eq!(run_config(&["--until-caught-up=false"], &on).settings.until, Until::Stopped);

    let tables = |config: &RunConfig| {
        config.settings.relay.outbox.tables.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = ["video.app_outbox", "billing.app_outbox"];
    let flags = ["--outbox-table", "video.app_outbox", "--outbox-table", "billing.app_outbox"];
    assert_eq!(tables(&run_config(&flags, &[])), expected);
    let variable = [("WALRELAY_OUTBOX_TABLE", "video.app_outbox, billing.app_outbox")];
    assert_eq!(tables(&run_config(&[], &variable)), expected);
    let text =
        "outbox-table = [\"video.app_outbox\", \"billing.app_outbox\"]\nuntil-caught-up = true";
    let file = TemporaryFile::new("lists.toml", text);
    let config = run_config(&["--config", file.path()], &[]);
    assert_eq!(tables(&config), expected);
    assert_eq!(config.settings.until, Until::CaughtUp);
}

#[test]
fn the_default_outbox_is_in_the_chosen_schema() {
    let outbox = |arguments: &[&str], variables: &[(&str, &str)]| {
        let line = ["run", "--database-url", "postgresql://u@h/d", "--project", "p"];
        let arguments: Vec<&str> = line.iter().chain(arguments).copied().collect();
        let taken = checked(&arguments, variables, |command, checks| {
            let CommandArgs::Run(run) = command else { panic!("another command") };
            Some((checks.schema.name().to_owned(), run.config(checks)?))
        });
        let (schema, run) = taken.expect("a valid configuration");
        (schema, run.settings.relay.outbox.tables[0].to_string())
    };
    let pair = |schema: &str, table: &str| (schema.to_owned(), table.to_owned());
    assert_eq!(outbox(&[], &[]), pair("public", "public.app_outbox"));
    let flag = ["--schema", "My-Events"];
    assert_eq!(outbox(&flag, &[]), pair("My-Events", "\"My-Events\".app_outbox"));
    let variable = [("WALRELAY_SCHEMA", "app_events")];
    assert_eq!(outbox(&[], &variable), pair("app_events", "app_events.app_outbox"));
    // A table that the user names stays where it is.
    let named = ["--outbox-table", "public.app_outbox"];
    assert_eq!(outbox(&named, &variable), pair("app_events", "public.app_outbox"));
    let unqualified = ["--outbox-table", "events"];
    assert_eq!(outbox(&unqualified, &variable), pair("app_events", "public.events"));
}

#[test]
fn the_debezium_preset_gives_way_to_what_is_set() {
    let columns = run_config(&["--preset", "debezium"], &[]).settings.relay.router.columns;
    assert_eq!(columns.event_type, Some(ColumnAliases::parse("type")));
    assert_eq!(columns.occurred_at, Some(ColumnAliases::parse("timestamp")));
    assert_eq!((columns.version, columns.schema_version, columns.headers), (None, None, None));
    let set = [("WALRELAY_COLUMN_HEADERS", "headers"), ("WALRELAY_COLUMN_OCCURRED_AT", "")];
    let columns = run_config(&["--preset", "debezium"], &set).settings.relay.router.columns;
    assert_eq!(columns.headers, Some(ColumnAliases::parse("headers")));
    assert_eq!(columns.occurred_at, None);
}

#[test]
fn a_column_may_have_several_names() {
    let columns =
        run_config(&["--column-version", "version, ver"], &[]).settings.relay.router.columns;
    assert_eq!(columns.version.unwrap().iter().collect::<Vec<_>>(), ["version", "ver"]);
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    let problems = texts(&config(&["run", "--column-id", ","], &given).unwrap_err());
    assert!(problems[0].starts_with("--column-id \",\": the name of a column"), "{problems:?}");
}

#[test]
fn columns_become_attributes_under_names_that_are_free() {
    let set = [("WALRELAY_ATTRIBUTE_COLUMNS", "tenant_id,region:geo")];
    let columns = run_config(&[], &set).settings.relay.router.columns.attributes.to_string();
    assert_eq!(columns, "tenant_id:tenant_id,region:geo");
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    let cases = [("googclient_a", "Pub/Sub reserves"), ("payload:body", "is published already")];
    for (columns, reason) in cases {
        let refused = config(&["run", "--attribute-columns", columns], &given).unwrap_err();
        let problems = texts(&refused);
        assert!(problems[0].contains(columns) && problems[0].contains(reason), "{problems:?}");
    }
}

#[test]
fn a_wrong_value_is_reported_with_its_origin_and_what_is_allowed() {
    for (arguments, variables, expected) in [
        (
            &["run", "--slot", "Bad-Slot"][..],
            &[][..],
            "--slot \"Bad-Slot\": 1 to 63 lower-case letters",
        ),
        (
            &["run", "--park-after", "30"],
            &[("WALRELAY_PARK_AFTER", "1s")],
            "--park-after \"30\": a duration in ms, s, m, h or d, such as 30s, from 100ms to 1d",
        ),
        (&["run", "--on-dead", "stop"], &[], "--on-dead \"stop\": one of continue, hold"),
        (
            &["run"],
            &[("WALRELAY_ON_DEAD", "stop")],
            "--on-dead \"stop\" (from WALRELAY_ON_DEAD): one of continue, hold",
        ),
        (
            &["run"],
            &[("WALRELAY_TOPIC_TEMPLATE", "{a")],
            "--topic-template \"{a\" (from WALRELAY_TOPIC_TEMPLATE):",
        ),
        (
            &["run"],
            &[("WALRELAY_MAX_IN_FLIGHT_BYTES", "1KiB")],
            "--max-in-flight-bytes \"1KiB\" (from WALRELAY_MAX_IN_FLIGHT_BYTES): a size",
        ),
        (
            &["dispatch", "list"],
            &[("RUST_LOG", "loud")],
            "--log-level \"loud\" (from RUST_LOG): error, warn",
        ),
    ] {
        let problems = texts(&config(arguments, variables).unwrap_err());
        assert!(
            matches!(problems.as_slice(), [one] if one.starts_with(expected)),
            "{expected}: {problems:#?}"
        );
    }
}

#[test]
fn problems_that_no_single_value_has_are_reported_at_once() {
    let variables = [
        ("PORT", "http"),
        ("WALRELAY_TOPIC_TEMPLATE", "{version}"),
        ("WALRELAY_COLUMN_VERSION", ""),
    ];
    let problems = texts(&config(&["run"], &variables).unwrap_err());
    let expected = [
        "--database-url: not set",
        "--project: not set",
        "--topic-template \"{version}\" (from WALRELAY_TOPIC_TEMPLATE): the outbox tables have no column for {version}",
        "PORT: \"http\" is not a port",
    ];
    for start in expected {
        assert!(problems.iter().any(|it| it.starts_with(start)), "{start}: {problems:#?}");
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
}

#[test]
fn an_empty_value_means_none() {
    let config = run_config(
        &["--cloudevents-source", ""],
        &[
            ("WALRELAY_HTTP", ""),
            ("PORT", ""),
            ("WALRELAY_SHARD", ""),
            ("WALRELAY_SLOT", ""),
            ("WALRELAY_ANCHOR_KEEP", ""),
        ],
    );
    assert_eq!((config.http, config.anchor_keep), (None, None));
    assert!(config.settings.relay.outbox.shard.is_whole());
    assert_eq!(config.settings.relay.outbox.slot, "walrelay");
}

#[test]
fn unknown_keys_and_shapes_of_the_file_are_problems() {
    let text =
        "park_after = \"3s\"\nprak-after = \"3s\"\nslot = { name = \"x\" }\nconfig = \"x\"\n";
    let file = TemporaryFile::new("unknown.toml", text);
    let problems = texts(&config(&["run", "--config", file.path()], &[]).unwrap_err());
    assert_eq!(problems.len(), 6, "{problems:#?}");
    assert!(problems.iter().any(|problem| problem.contains("did you mean park-after?")));
    // An unknown key does not hide other problems.
    for option in ["--database-url: not set", "--project: not set"] {
        assert!(problems.iter().any(|problem| problem.starts_with(option)), "{problems:#?}");
    }
    let wrong = ["run", "--config", file.path(), "--park-after", "soon"];
    let problems = texts(&config(&wrong, &[]).unwrap_err());
    assert!(matches!(problems.as_slice(), [one] if one.contains("soon")), "{problems:#?}");
    let missing = texts(&config(&["run", "--config", "/nowhere/x.toml"], &[]).unwrap_err());
    assert!(missing[0].starts_with("--config \"/nowhere/x.toml\": a file that can be read"));
    let broken = TemporaryFile::new("broken.toml", "slot = \"a\"\ndatabase-url = \"x:hunter2\n");
    let problems = texts(&config(&["run", "--config", broken.path()], &[]).unwrap_err());
    assert!(problems[0].contains("line 2"), "{problems:?}");
    assert!(!problems[0].contains("hunter2"), "{problems:?}");
}

#[test]
fn a_section_of_the_file_is_for_its_command_alone_and_beats_what_is_for_all() {
    let text = "project = \"p\"\nmax-attempts = 3\nmax-in-flight-bytes = \"1MiB\"\n\
        [consumer]\nhandler = \"a.b\"\nmax-attempts = 7\nworkers = 2\n";
    let file = TemporaryFile::new("sections.toml", text);
    let consume = ["consumer", "run", "c", "--config", file.path()];
    let settings = |given: &[(&str, &str)]| {
        let given = [&[("DATABASE_URL", URL)], given].concat();
        let taken = checked(&consume, &given, |command, checks| {
            let CommandArgs::Consumer(command) = command else { panic!("{command:?}") };
            let Consumer::Run(run) = *command else { panic!("{command:?}") };
            run.config(checks)
        });
        taken.unwrap().settings
    };
    let own = settings(&[]);
    assert_eq!((own.workers, own.max_attempts, own.max_in_flight_bytes), (2, 7, 1 << 20));
    assert_eq!(settings(&[("WALRELAY_MAX_ATTEMPTS", "8")]).max_attempts, 8);
    assert_eq!(own.until, walrelay_inbox::Until::Stopped);
    let catches_up = settings(&[("WALRELAY_UNTIL_CAUGHT_UP", "true")]).until;
    let by_default = walrelay_inbox::Until::CaughtUp { quiet_for: walrelay_inbox::QUIET_FOR };
    assert_eq!(catches_up, by_default, "the command line and the crate have one default");
    let run = run_config(&["--config", file.path()], &[]);
    assert_eq!(run.settings.relay.max_attempts, 3);

    let wrong = TemporaryFile::new("section.toml", "[consumer]\nworkerz = 7\n[nothing]\na = 1\n");
    let problems =
        texts(&config(&["consumer", "run", "c", "--config", wrong.path()], &[]).unwrap_err());
    for name in ["workerz", "nothing"] {
        assert!(problems.iter().any(|it| it.starts_with(name)), "{problems:#?}");
    }
}

#[test]
fn values_that_contradict_each_other_are_problems() {
    let slow = ["run", "--status-interval", "10s", "--wal-sender-timeout", "15s"];
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    let problems = texts(&config(&slow, &given).unwrap_err());
    assert!(problems[0].contains("at most a third of --wal-sender-timeout"), "{problems:?}");
    let template = ["run", "--topic-template", "{version}", "--column-version", ""];
    let problems = texts(&config(&template, &given).unwrap_err());
    assert!(problems[0].contains("the outbox tables have no column for {version}"), "{problems:?}");
    for both in [&["dispatch", "retry", "id", "--all-dead"][..], &["dispatch", "retry"]] {
        let problems = texts(&config(both, &given).unwrap_err());
        assert!(problems[0].starts_with("ID: give event ids, or filters"), "{problems:?}");
        assert!(problems[0].contains("not both"), "{problems:?}");
    }
}

#[test]
fn a_topic_that_is_named_and_cannot_exist_is_a_problem_before_anything_is_done() {
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    for arguments in [
        &["run", "--topic-template", "bad topic!"][..],
        &["check", "--topic-template", "projects/p/topics/goog-x"],
        &["init", "--create-topics=good.events,bad topic!"],
    ] {
        let problems = texts(&config(arguments, &given).unwrap_err());
        let [problem] = problems.as_slice() else { panic!("{problems:?}") };
        assert!(problem.contains("3 to 255 letters"), "{problem}");
    }
    let good = ["run", "--topic-template", "projects/p/topics/all.events"];
    assert!(config(&good, &given).is_ok());
}

#[test]
fn secrets_are_never_printed() {
    let variables = [("PGPASSWORD", "hunter2")];
    let debug = format!("{:?}", run_config(&[], &variables));
    assert!(!debug.contains("hunter2"), "{debug}");
    let url = "postgresql://relay:hunter2@db.example:port/app?sslmode=maybe";
    let problems = config(&["status", "--database-url", url], &[]).unwrap_err();
    assert!(!problems.is_empty());
    assert!(!format!("{problems:?} {:?}", texts(&problems)).contains("hunter2"));
    for arguments in [
        &["status", "--database-url", url, "--park-after"][..],
        &["status", url],
        &["tail", "topic", "--endpoint", "http://relay:hunter2@pubsub"],
        &["tail", "topic", "--endpoint", "postgresql://db/app?password=hunter2"],
        &["run", "--http", "relay:hunter2@127.0.0.1:80"],
        &["status", "--schema", url],
        &["audit", "--inbox", url],
        &["audit", "--inbox", "postgresql://relay@db/app?password=hunter2"],
        &["audit", "--inbox", "postgresql://relay:hunter2@db/app?sslmode=maybe"],
        &["consumer", "status", url],
        &["status", "--relay", url],
        &["status", "--relay", "host=db password=hunter2"],
        &["run", "--topic-template", url],
        &["run", "--slot", "host=db password=hunter2"],
        &["status", "host=db password=hunter2"],
        &["dispatch", "list", "--status", url],
        &["trace", "id", "--inbox", &format!("billing={url}")],
    ] {
        let shown = match parse(arguments, &[]) {
            Err(Refusal::Clap(error)) => error.to_string(),
            Err(Refusal::Config(problems)) => format!("{problems:?} {:?}", texts(&problems)),
            Ok(()) => panic!("{arguments:?} was accepted"),
        };
        assert!(!shown.contains("hunter2"), "{arguments:?}: {shown}");
    }
    let Err(Refusal::Clap(help)) = parse(&["run", "--help"], &[("DATABASE_URL", URL)]) else {
        panic!("--help is an answer of its own");
    };
    let help = help.to_string();
    assert!(help.contains("WALRELAY_PARK_AFTER") && help.contains("[default: 30s]"), "{help}");
    assert!(!help.contains("hunter2"), "{help}");
}

#[test]
fn telemetry_is_sent_where_opentelemetrys_variables_say_so() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
    let otlp = |variables: &[(&str, &str)]| run_config(&[], variables).otlp;
    assert!(otlp(&[("OTEL_SERVICE_NAME", "relay")]).is_none());
    assert!(otlp(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]).is_none());
    let nothing = [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")];
    assert!(otlp(&[&[endpoint], &nothing[..]].concat()).is_none());

    let given = otlp(&[endpoint]).unwrap();
    assert!(given.sampling.is_some() && given.resource.is_empty());
    assert_eq!(given.timeout, Duration::from_secs(10));
    assert_eq!(given.metrics_interval, Some(Duration::from_mins(1)));
    assert!(otlp(&[endpoint, nothing[0]]).unwrap().sampling.is_none());
    assert!(otlp(&[endpoint, nothing[1]]).unwrap().metrics_interval.is_none());
    let named = [
        endpoint,
        ("OTEL_SERVICE_NAME", "relay"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,team=a%20b"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2"),
    ];
    let named = otlp(&named).unwrap();
    // For a repeated name the last value counts.
    assert_eq!(named.resource.last().unwrap(), &("service.name".to_owned(), "relay".to_owned()));
    assert!(named.resource.contains(&("team".to_owned(), "a b".to_owned())));
    assert!(!format!("{named:?}").contains("hunter2"), "{named:?}");
}

#[test]
fn what_is_wrong_with_telemetry_is_told_at_once_and_without_secrets() {
    let given = [
        ("DATABASE_URL", URL),
        ("PUBSUB_PROJECT_ID", "p"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:hunter2@collector"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://elsewhere:4317"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ];
    for command in ["run", "check"] {
        let problems = texts(&config(&[command], &given).unwrap_err());
        for (name, _) in &given[2..] {
            assert!(problems.iter().any(|it| it.starts_with(name)), "{name}: {problems:#?}");
        }
        assert!(!problems.iter().any(|it| it.contains("hunter2")), "{problems:#?}");
    }
}

#[test]
fn what_telemetry_would_trust_is_a_certificate() {
    let given = |file: &str| {
        let given = [
            ("DATABASE_URL", URL),
            ("PUBSUB_PROJECT_ID", "p"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", file),
        ];
        texts(&config(&["run"], &given).unwrap_err())
    };
    let problems = given("Cargo.toml");
    assert!(problems[0].contains("it holds no certificate"), "{problems:?}");
}

#[test]
fn help_has_arguments_and_options_of_the_command_under_the_usual_headings() {
    let help = match parse(&["anchor", "advance", "-h"], &[]) {
        Err(Refusal::Clap(help)) => help.to_string(),
        other => panic!("{other:?}"),
    };
    let section = |heading: &str| {
        let (_, rest) = help.split_once(&format!("\n{heading}:\n")).expect(heading);
        rest.split("\n\n").next().unwrap_or_default()
    };
    assert!(section("Arguments").contains("<NAME>"), "{help}");
    for option in ["--to-time", "--yes", "--output", "--help"] {
        assert!(section("Options").contains(option), "{option}: {help}");
    }
    assert!(section("Postgres").contains("--database-url"), "{help}");
    assert_eq!(help.matches("Options:\n").count(), 1, "{help}");
}

/// Arguments that choose what is deleted, discarded or skipped, or agree to it.
const DESTRUCTIVE: [&str; 10] = [
    "yes",
    "discard-rows",
    "skip-dead",
    "all-dead",
    "include-dead",
    "aggregate-id",
    "event-id",
    "key",
    "since",
    "cancel",
];

#[test]
fn neither_environment_nor_file_can_agree_to_a_loss_or_choose_rows() {
    fn look(command: &clap::Command, found: &mut Vec<String>) {
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            if DESTRUCTIVE.contains(&long) {
                assert!(!is_option(argument), "{} --{long}", command.get_name());
                found.push(long.to_owned());
            }
        }
        command.get_subcommands().for_each(|below| look(below, found));
    }
    let mut found = Vec::new();
    look(&crate::cli::command(), &mut found);
    for name in DESTRUCTIVE {
        assert!(found.iter().any(|found| found == name), "no command takes --{name}");
    }
}

#[test]
fn a_place_in_the_log_is_a_transactions_and_an_index_is_refused_rather_than_dropped() {
    for arguments in [
        &["replay", "start", "--yes", "--dry-run", "--from-lsn", "0/59388E0#3"][..],
        &["replay", "start", "--yes", "--dry-run", "--from-anchor", "a", "--to-lsn", "0/59388E0/3"],
        &["anchor", "advance", "a", "--to-lsn", "0/59388E0#3"],
        &["slot", "reset", "--to-anchor", "a", "--to-lsn", "0/59388E0#3"],
    ] {
        let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
        let found = texts(&config(arguments, &given).unwrap_err());
        assert!(
            matches!(found.as_slice(), [one] if one.contains("0/59388E0, without the row's index")),
            "{found:?}"
        );
    }
}

#[test]
fn a_file_that_is_no_toml_hides_no_wrong_flag() {
    let file = TemporaryFile::new("broken.toml", "database-url = \"postgresql://db\nslot = ");
    let arguments = ["run", "--config", file.path(), "--park-after", "soon"];
    let problems = texts(&config(&arguments, &[]).unwrap_err());
    assert!(
        matches!(problems.as_slice(), [one] if one.starts_with("--park-after \"soon\"")),
        "{problems:?}"
    );
    let problems = texts(&config(&arguments[..3], &[]).unwrap_err());
    assert!(matches!(problems.as_slice(), [one] if one.contains("a TOML file")), "{problems:?}");
}

#[test]
fn check_is_set_as_run_is() {
    let text = "[run]\npark-after = \"soon\"\nmax-attempts = 7\n[check]\nmax-attempts = 8\n";
    let file = TemporaryFile::new("run-section.toml", text);
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    let problems = texts(&config(&["check", "--config", file.path()], &given).unwrap_err());
    assert!(matches!(problems.as_slice(), [one] if one.contains("soon")), "{problems:?}");
    let arguments = ["check", "--config", file.path(), "--park-after", "10s"];
    let settings = checked(&arguments, &given, |command, checks| {
        let CommandArgs::Check(check) = command else { panic!("{command:?}") };
        check.settings(checks)
    });
    assert_eq!(settings.unwrap().relay.max_attempts, 8, "its own section goes first");
}

#[test]
fn log_levels_that_do_not_exist_are_refused() {
    let given = [("DATABASE_URL", URL), ("PUBSUB_PROJECT_ID", "p")];
    for level in ["loud", "infoo", "walrelay=loud", "info,debgu", "5x", "info,h2[span{a}]=trace"] {
        let problems = texts(&config(&["status", "--log-level", level], &given).unwrap_err());
        assert!(problems[0].starts_with("--log-level"), "{level}: {problems:?}");
    }
    for level in ["info", "OFF", "warn,walrelay_relay=debug"] {
        assert!(config(&["status", "--log-level", level], &given).is_ok(), "{level}");
    }
}
