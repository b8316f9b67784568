//! The process: parses the command line, starts telemetry, runs the command, returns the exit code.

use std::process::ExitCode;

use walrelay_errors::Exit;
use walrelay_outbox_store::Definition;
use walrelay_pg_client::set_schema;
use walrelay_relay::shutdown::{Shutdown, SignalLogging};

use crate::config::{
    Command, CommandLine, Config, Environment, LogConfig, LogFormat, Refusal, ask_for_json,
};
use crate::error::Error;
use crate::{commands, telemetry};

/// Runs the program.
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

/// Reads the configuration, with the definition of the outbox on record once it is known. Help ends the
/// process here, and also a usage error without JSON output.
fn configuration(environment: &Environment, recorded: Option<Definition>) -> Result<Config, Error> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let has_json_output = ask_for_json(&arguments, environment);
    let read = match CommandLine::parse(arguments, environment) {
        Ok(line) => Config::new(line, environment, recorded).map_err(Error::Config),
        Err(Refusal::Clap(error)) if has_json_output && error.use_stderr() => {
            Err(Error::usage(&error.to_string()))
        }
        // Clap prints help to standard output and usage errors to standard error, and exits with 2.
        Err(Refusal::Clap(error)) => error.exit(),
        Err(Refusal::Config(problems)) => Err(Error::Config(problems)),
    };
    if read.is_err() && has_json_output {
        telemetry::start(&LogConfig { format: Some(LogFormat::Json), filter: "error".into() });
    }
    read
}

/// Returns the command with the outbox on record.
async fn with_recorded_outbox(config: Config, environment: &Environment) -> Result<Command, Error> {
    let Some(place) = config.record else { return Ok(config.command) };
    match commands::read_recorded(&config.command, place).await {
        Ok(recorded) => Ok(configuration(environment, Some(recorded))?.command),
        Err(_) if config.command.works_without_record() => Ok(config.command),
        Err(error) => Err(error),
    }
}

fn execute() -> Result<(), Error> {
    let environment = Environment::new(std::env::vars_os());
    let config = configuration(&environment, None)?;
    set_schema(config.schema.clone()).expect("no schema was set before");
    telemetry::start(&config.log);
    telemetry::set_shard(config.shard);
    walrelay_pubsub::install_crypto_provider();
    let io = |action: &str, source| Error::Io { action: action.to_owned(), source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| io("start the runtime", error))?;
    let told =
        if config.command.is_ended_by_a_signal() { SignalLogging::No } else { SignalLogging::Yes };
    let done = runtime.block_on(async {
        let shutdown = Shutdown::new();
        let second_signal =
            shutdown.on_signals(told).map_err(|error| io("listen for signals", error))?;
        let execution = async {
            let command = with_recorded_outbox(config, &environment).await?;
            commands::execute(command, &shutdown).await
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
