//! One module per command. Each takes its part of the configuration and implements its `--help`
//! text.

use crate::config::{Command, DefinitionPlace};
use crate::error::Error;
use walrelay_outbox_store::Definition;
use walrelay_relay::shutdown::Shutdown;

use self::shared::answer_timeout::ANSWER_TIMEOUT;
use self::shared::cancellable::run_until_shutdown;
use self::shared::definition_on_record::definition_on_record;

pub(crate) mod anchor;
pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod consumer;
pub(crate) mod demo;
pub(crate) mod dispatch;
pub(crate) mod emulator;
mod failed_events;
pub(crate) mod inbox;
pub(crate) mod init;
pub(crate) mod offline;
pub(crate) mod produce;
pub(crate) mod prune;
mod rebuild;
pub(crate) mod replay;
pub(crate) mod reshard;
pub(crate) mod run;
mod shared;
pub(crate) mod slot;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod trace;

/// Reads the definition of the outbox that a command is about.
///
/// # Errors
///
/// Postgres cannot be reached, or has no definition of the outbox.
pub(crate) async fn read_recorded(
    command: &Command,
    place: DefinitionPlace,
) -> Result<Definition, Error> {
    // These commands report an unreachable server themselves, in a short time.
    let connect = match matches!(command, Command::Check(_) | Command::Status(_)) {
        true => place.connect.with_patience(ANSWER_TIMEOUT),
        false => place.connect,
    };
    // The record is only read, also by a command that writes elsewhere.
    let found = definition_on_record(&connect, &place.slot).await;
    found.map_err(|error| error.for_read_only_command(connect.user()))
}

/// Runs the command of the command line.
///
/// # Errors
///
/// Returns the error that ended the command. [`Error::exit`] maps it to the exit code of the
/// process.
pub(crate) async fn execute(command: Command, shutdown: &Shutdown) -> Result<(), Error> {
    match command {
        Command::Run(config) => Box::pin(run::execute(*config, shutdown)).await,
        Command::Consume(config) => Box::pin(consumer::run::execute(*config, shutdown)).await,
        Command::Consumer(config) => Box::pin(consumer::execute(*config, shutdown)).await,
        Command::ConsumerSql(set_up) => consumer::print_sql(&set_up),
        Command::Audit(config) => {
            Box::pin(run_until_shutdown(audit::execute(*config), shutdown)).await
        }
        Command::Trace(config) => {
            Box::pin(run_until_shutdown(trace::execute(*config), shutdown)).await
        }
        Command::Inbox(config) => inbox::execute(config, shutdown).await,
        Command::Demo(config) => demo::execute(config, shutdown).await,
        Command::Config(action) => offline::config::execute(action),
        Command::Explain { code, format } => offline::explain::execute(code.as_deref(), format),
        Command::Version(format) => offline::version::execute(format),
        Command::Completions(shell) => offline::completions::print_for(shell),
        Command::Man(directory) => offline::completions::write_pages(&directory),
        Command::Emit(config) => run_until_shutdown(produce::emit::execute(config), shutdown).await,
        Command::Snapshot(config) => Box::pin(produce::snapshot::execute(*config, shutdown)).await,
        Command::Tail(config) => Box::pin(tail::execute(*config, shutdown)).await,
        Command::Emulator(config) => emulator::execute(config, shutdown).await,
        // These commands may wait for other sessions' transactions. They log the wait, and cancel
        // their statement when they are interrupted.
        Command::Init(config) => Box::pin(init::execute(*config, shutdown)).await,
        Command::Slot(config) => Box::pin(slot::execute(config, shutdown)).await,
        Command::Anchor(config) => Box::pin(anchor::execute(config, shutdown)).await,
        Command::Reshard(config) => Box::pin(reshard::execute(*config, shutdown)).await,
        Command::Replay(config) => Box::pin(replay::execute(*config, shutdown)).await,
        Command::ReplayRecord(config) => replay::execute_on_record(config, shutdown).await,
        // The other commands need no draining, and each may be run again.
        Command::Check(config) => Box::pin(check::execute(*config, shutdown)).await,
        Command::Status(config) => status::execute(config, shutdown).await,
        Command::Dispatch(config) => dispatch::execute(config, shutdown).await,
        Command::Forget(config) => produce::forget::execute(config, shutdown).await,
        Command::Prune(config) => Box::pin(prune::execute(config, shutdown)).await,
    }
}
