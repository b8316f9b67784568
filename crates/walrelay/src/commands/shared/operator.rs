//! The terminal as the operator of a protocol: prints steps, asks, and runs the protocol in a
//! session.

use crate::config::{ChangeMode, ChangeOptions, OutputFormat};
use crate::error::Error;
use crate::error::printed_commands::as_given;
use crate::options::choices::Verbosity;
use crate::output::json::json_text;
use crate::steps::protocol::{change_text, step_text};
use serde::Serialize;
use walrelay_errors::{BoxedError, Chain};
use walrelay_outbox_admin::protocols::{AdminSession, Change, ProtocolError, Step};
use walrelay_outbox_replay::operator::{Consent, StepSink};
use walrelay_outbox_replay::read_slot_holder;
use walrelay_pg_client::{ConnectConfig, SqlClient, connect_outbox};
use walrelay_relay::shutdown::Shutdown;

use super::cancellable::attended;
use super::consent::ask_for;
use crate::output::{print, print_result};

/// The operator at a terminal, or a script.
#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Terminal<'a> {
    pub(in crate::commands) options: ChangeOptions,
    pub(in crate::commands) shutdown: &'a Shutdown,
    /// The options that a printed `replay start` repeats.
    pub(in crate::commands) replay_options: &'a [String],
    pub(in crate::commands) verbosity: Verbosity,
}

/// What `--dry-run -o json` prints.
#[derive(Debug, Serialize)]
struct DryRun {
    would: String,
}

/// Returns what a dry run prints about a change, which `would` describes in the imperative.
pub(in crate::commands) fn dry_run_text(
    would: &str,
    format: OutputFormat,
) -> Result<String, Error> {
    match format {
        OutputFormat::Text => Ok(format!("would {would}\n")),
        OutputFormat::Json => json_text(&DryRun { would: would.to_owned() }),
    }
}

impl<'a> Terminal<'a> {
    pub(in crate::commands) const fn new(options: ChangeOptions, shutdown: &'a Shutdown) -> Self {
        Self { options, shutdown, replay_options: &[], verbosity: Verbosity::Normal }
    }

    /// Returns the terminal of a command that destroys nothing, and does not ask.
    pub(in crate::commands) const fn unasked(format: OutputFormat, shutdown: &'a Shutdown) -> Self {
        Self::new(ChangeOptions { mode: ChangeMode::Agreed, format }, shutdown)
    }

    /// Returns whether the command may do what `text` describes. A dry run prints the text, and the
    /// answer is no.
    pub(in crate::commands) async fn ask(&self, text: String) -> Result<bool, Error> {
        let ChangeOptions { mode, format } = self.options;
        match mode {
            ChangeMode::DryRun => print(&dry_run_text(&text, format)?).map(|()| false),
            ChangeMode::Agreed => Ok(true),
            ChangeMode::Ask => ask_for(&text, self.shutdown).await.map(|()| true),
        }
    }

    /// Reports a step. With JSON output, standard output has only the result, so the log has the
    /// step.
    pub(in crate::commands) fn show_step(&self, text: &str) -> Result<(), Error> {
        let text = as_given(text);
        match self.options.format {
            OutputFormat::Text => print(&text),
            OutputFormat::Json => {
                tracing::info!("{}", text.trim_end());
                Ok(())
            }
        }
    }

    /// Prints the result of a protocol. After a dry run there is none.
    pub(in crate::commands) fn print_result<'t, T, J: Serialize>(
        &self,
        result: Option<&'t T>,
        text: impl FnOnce(&'t T) -> String,
        json: impl FnOnce(&'t T) -> J,
    ) -> Result<(), Error> {
        let Some(result) = result else { return Ok(()) };
        print_result(self.options.format, &json(result), || text(result))
    }
}

impl StepSink<Step> for Terminal<'_> {
    fn report(&self, step: &Step) -> Result<(), BoxedError> {
        if matches!(step, Step::AlreadyThere(_)) && self.verbosity != Verbosity::Verbose {
            return Ok(());
        }
        self.show_step(&step_text(step, self.replay_options)).map_err(BoxedError::new)
    }
}

impl Consent<Change> for Terminal<'_> {
    fn has_agreed(&self) -> bool {
        self.options.mode == ChangeMode::Agreed
    }

    fn is_dry_run(&self) -> bool {
        self.options.mode == ChangeMode::DryRun
    }

    async fn may_change(&self, change: &Change) -> Result<bool, BoxedError> {
        self.ask(change_text(change)).await.map_err(BoxedError::new)
    }
}

/// Whether a stop request cancels the statement of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum StopMode {
    /// The statement is cancelled, and the protocol ends.
    Cancel,
    /// The protocol ends by itself, because it has work to undo.
    Graceful,
}

/// Connects, and runs a protocol in the session.
pub(in crate::commands) async fn run_protocol<T>(
    connect: &ConnectConfig,
    terminal: Terminal<'_>,
    stop: StopMode,
    protocol: impl AsyncFnOnce(&AdminSession<'_, Terminal<'_>>) -> Result<T, ProtocolError>,
) -> Result<T, Error> {
    let shutdown = terminal.shutdown;
    let client = tokio::select! {
        connected = connect_outbox(connect) => connected?,
        () = shutdown.requested() => return Err(Error::Interrupted),
    };
    let session = AdminSession { client: &client, connect, operator: &terminal, stop: shutdown };
    let work = async { Ok(Box::pin(protocol(&session)).await?) };
    let done = match stop {
        StopMode::Cancel => attended(connect, &client, work, shutdown).await,
        StopMode::Graceful => Box::pin(work).await,
    };
    let done = with_slot_holder(&client, done).await;
    client.close().await;
    done
}

/// Adds the session that holds the slot to an error. A relay and another command need different
/// next steps.
async fn with_slot_holder<T>(client: &SqlClient, done: Result<T, Error>) -> Result<T, Error> {
    let error = match done {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    let Some(pid) = error.holder_pid() else { return Err(error) };
    match read_slot_holder(client, pid).await {
        Ok(holder) => {
            let holder = holder.to_string();
            Err(Error::Held { holder, source: Box::new(error) })
        }
        Err(unknown) => {
            tracing::debug!(error = %Chain(&unknown), "the holder of the slot cannot be read");
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_a_dry_run_are_documented() {
        assert_documented("--dry-run", &DryRun { would: "drop slot walrelay".to_owned() });
    }
}
