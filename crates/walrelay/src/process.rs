//! The process: parses the command line, starts telemetry, runs the command, returns the exit code.

use std::mem;
use std::process::ExitCode;

use walrelay_errors::Exit;
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::set_schema;
use walrelay_relay::shutdown::{Shutdown, SignalLogging};

use crate::cli;
use crate::commands::named_outbox;
use crate::config::{
    Config, DefinitionNeed, DefinitionPlace, Environment, LogConfig, LogFormat, LogLines,
    NamedOutbox, Refusal, ask_for_json, read,
};
use crate::error::Error;
use crate::error::printed_commands::{GivenPlace, set_given};
use crate::plan::{CommandEnd, Plan};
use crate::telemetry;

#[must_use]
pub fn main() -> ExitCode {
    // After a panic, even in a task, the process must stop, so that a relay with a broken invariant
    // confirms nothing more.
    std::panic::set_hook(Box::new(|panic| {
        telemetry::report_panic(panic);
        #[expect(clippy::disallowed_methods, reason = "a task's panic would not end the process")]
        std::process::exit(Exit::BrokenInvariant.code().into());
    }));
    match execute() {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            telemetry::report_error(&error);
            error.exit().into()
        }
    }
}

/// Reads the configuration, with the outbox on record once it is known. Help ends the
/// process here, and also a usage error without JSON output.
fn configuration(environment: &Environment, outbox: Option<NamedOutbox>) -> Result<Config, Error> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let has_json_output = ask_for_json(&arguments, environment);
    let checked = read(arguments, environment)
        .and_then(|line| Config::new(line, environment, outbox))
        .map_err(|refusal| match refusal {
            Refusal::Clap(error) if has_json_output && error.use_stderr() => {
                Error::usage(&error.to_string())
            }
            // Clap prints help to standard output and usage errors to standard error, and exits
            // with 2.
            Refusal::Clap(error) => error.exit(),
            Refusal::Config(problems) => Error::Config(problems),
        });
    if checked.is_err() && has_json_output {
        telemetry::start(&LogConfig {
            format: Some(LogFormat::Json),
            filter: "error".into(),
            lines: LogLines::Plain,
        });
    }
    checked
}

async fn with_recorded_outbox(config: Config, environment: &Environment) -> Result<Plan, Error> {
    let Some(DefinitionPlace { connect, slot, need }) = config.record else {
        return Ok(config.plan);
    };
    let connect = match need {
        // These commands report an unreachable server themselves, in a short time.
        DefinitionNeed::Reported(patience) => connect.with_patience(patience),
        DefinitionNeed::Required | DefinitionNeed::Optional => connect,
    };
    let is_required = need == DefinitionNeed::Required;
    // The record is only read, also by a command that writes elsewhere.
    let refused = |error: Error| Err(error.for_read_only_command(connect.user()));
    match named_outbox(&connect, slot.as_deref()).await {
        Ok(NamedOutbox { definition: Err(error), .. }) if is_required => refused(error.into()),
        Ok(outbox) => Ok(configuration(environment, Some(outbox))?.plan),
        Err(error @ Error::Store(AdminError::OutboxUnnamed { .. })) => Err(error),
        Err(error) if is_required => refused(error),
        Err(_) => Ok(config.plan),
    }
}

fn execute() -> Result<(), Error> {
    let environment = Environment::new(std::env::vars_os());
    let mut config = configuration(&environment, None)?;
    set_schema(config.schema.clone()).expect("no schema was set before");
    telemetry::start(&config.log);
    set_given(GivenPlace {
        shard: config.shard,
        side: config.side,
        options: mem::take(&mut config.given),
        find: cli::command_at,
    });
    walrelay_pubsub::install_crypto_provider();
    let io = |action: &str, source| Error::Io { action: action.to_owned(), source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| io("start the runtime", error))?;
    let logging = match config.plan.end {
        CommandEnd::Interrupted => SignalLogging::No,
        CommandEnd::Finishes | CommandEnd::Stopped(_) => SignalLogging::Yes,
    };
    let done = runtime.block_on(async {
        let shutdown = Shutdown::new();
        let second_signal =
            shutdown.on_signals(logging).map_err(|error| io("listen for signals", error))?;
        let execution = async {
            with_recorded_outbox(config, &environment).await?.run(&shutdown).await
        };
        tokio::select! {
            done = execution => done,
            // The message names the next step.
            () = second_signal => Err(Error::stopped(
                "stopped by a second signal; what was not confirmed is read again at the next start",
                "",
            )),
        }
    });
    // A DNS lookup on a thread of its own must not delay the end of the process.
    runtime.shutdown_background();
    done
}
