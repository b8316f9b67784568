//! The operator of a rebuild, and its result as `-o json` prints it.

use std::cell::RefCell;

use crate::config::{ChangeMode, OutputFormat};
use crate::error::Error;
use crate::output::json::json_text;
use crate::steps::rebuild::{change_text, step_text};
use serde::Serialize;
use walrelay_errors::BoxedError;
use walrelay_inbox_admin::{RebuildChange, RebuildStep, SubscriptionStep};
use walrelay_outbox_replay::operator::{Consent, StepSink};

use super::notes;
use crate::commands::shared::operator::{Terminal, dry_run_text};
use crate::output::print;

/// Prints the steps of a rebuild as text, or its result as JSON at the end.
#[derive(Debug)]
pub(super) struct RebuildTerminal<'a> {
    terminal: Terminal<'a>,
    found: RefCell<CollectedResult>,
}

#[derive(Debug)]
struct CollectedResult {
    result: RebuildResult,
    /// What a dry run would do.
    would: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RebuildResult {
    consumer: String,
    result: &'static str,
    generation: Option<i32>,
    rows: Option<u64>,
    subscription: Option<String>,
}

impl<'a> RebuildTerminal<'a> {
    pub(super) fn new(terminal: Terminal<'a>, consumer: &str) -> Self {
        let result = RebuildResult {
            consumer: consumer.to_owned(),
            result: "unchanged",
            generation: None,
            rows: None,
            subscription: None,
        };
        Self { terminal, found: RefCell::new(CollectedResult { result, would: Vec::new() }) }
    }

    /// Prints the result as JSON. As text, the steps are printed already.
    pub(super) fn print_result(&self) -> Result<(), Error> {
        let found = self.found.borrow();
        let options = self.terminal.options;
        match (options.format, options.mode) {
            (OutputFormat::Text, _) => Ok(()),
            (OutputFormat::Json, ChangeMode::DryRun) => {
                let would = match found.would.as_slice() {
                    [] => "change nothing".to_owned(),
                    parts => parts.join("; "),
                };
                print(&dry_run_text(&would, OutputFormat::Json)?)
            }
            (OutputFormat::Json, ChangeMode::Agreed | ChangeMode::Ask) => {
                print(&json_text(&found.result)?)
            }
        }
    }
}

impl CollectedResult {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other steps are no part of the result")]
    fn add(&mut self, step: &RebuildStep) {
        let Self { result, would } = self;
        match step {
            RebuildStep::FillingBegins { generation, rows, .. } => {
                (result.generation, result.rows) = (Some(*generation), Some(*rows));
            }
            RebuildStep::Switched { generation } => {
                (result.result, result.generation) = ("rebuilt", Some(*generation));
            }
            RebuildStep::KeysRebuilt { events, keys, is_dry_run: true, .. } => {
                would.push(format!("rebuild {events} event(s) of {keys} key(s)"));
            }
            RebuildStep::KeysRebuilt { events, generation, .. } => {
                (result.result, result.generation) = ("rebuilt", Some(*generation));
                result.rows = Some(*events);
            }
            RebuildStep::WouldFill { rows, schema } => {
                would.push(format!("apply {rows} row(s) in schema {schema} and switch to it"));
            }
            RebuildStep::Cancelled { .. } => result.result = "cancelled",
            RebuildStep::Subscription(SubscriptionStep::SubscriptionReady { name, .. }) => {
                result.subscription = Some(name.clone());
            }
            RebuildStep::Subscription(SubscriptionStep::BegunFromTopic { generation, .. }) => {
                (result.result, result.generation) = ("begun", Some(*generation));
            }
            _ => {}
        }
    }
}

impl StepSink<RebuildStep> for RebuildTerminal<'_> {
    fn report(&self, step: &RebuildStep) -> Result<(), BoxedError> {
        self.found.borrow_mut().add(step);
        if let RebuildStep::Note(note) = step {
            notes::log(note);
        }
        let Some(text) = step_text(step) else { return Ok(()) };
        self.terminal.show_step(&text).map_err(BoxedError::new)
    }
}

impl Consent<RebuildChange> for RebuildTerminal<'_> {
    fn has_agreed(&self) -> bool {
        self.terminal.has_agreed()
    }

    fn is_dry_run(&self) -> bool {
        self.terminal.is_dry_run()
    }

    async fn may_change(&self, change: &RebuildChange) -> Result<bool, BoxedError> {
        let text = change_text(change);
        if self.is_dry_run() && self.terminal.options.format == OutputFormat::Json {
            self.found.borrow_mut().would.push(text);
            return Ok(false);
        }
        self.terminal.ask(text).await.map_err(BoxedError::new)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::ChangeOptions;
    use walrelay_relay::shutdown::Shutdown;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented_and_has_the_last_state_of_the_rebuild() {
        let shutdown = Shutdown::new();
        let options = ChangeOptions { mode: ChangeMode::Agreed, format: OutputFormat::Json };
        let terminal = RebuildTerminal::new(Terminal::new(options, &shutdown), "billing");
        let name = "projects/p/subscriptions/billing-g2".to_owned();
        let ready = SubscriptionStep::SubscriptionReady { name, is_new: true };
        terminal.report(&ready.into()).expect("logged");
        let schema = "fresh".to_owned();
        let filling = RebuildStep::FillingBegins { generation: 2, schema, rows: 7 };
        terminal.report(&filling).expect("logged");
        terminal.report(&RebuildStep::Switched { generation: 2 }).expect("logged");
        let found = terminal.found.borrow();
        assert_eq!((found.result.result, found.result.rows), ("rebuilt", Some(7)));
        assert_documented("consumer rebuild", &found.result);
    }
}
