//! The report of `consumer init`: a line for each step, or one JSON value at the end.

use crate::config::OutputFormat;
use crate::error::Error;
use crate::error::printed_commands::as_given;
use crate::options::choices::Verbosity;
use crate::output::json::json_text;
use serde::Serialize;

use crate::output::print;

/// Whether an object was created by this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Presence {
    New,
    AlreadyThere,
}

impl From<bool> for Presence {
    fn from(is_new: bool) -> Self {
        if is_new { Self::New } else { Self::AlreadyThere }
    }
}

/// Returns the whole text of a set-up that has created nothing.
pub(in crate::commands) fn nothing_to_do(already_there: usize) -> String {
    format!("nothing to do: {already_there} object(s) are there already (-v lists them)\n")
}

#[derive(Debug)]
pub(in crate::commands) struct SetUpReport<'a> {
    format: OutputFormat,
    verbosity: Verbosity,
    result: SetUpJson<'a>,
}

#[derive(Debug, Serialize)]
struct SetUpJson<'a> {
    consumer: &'a str,
    subscription: String,
    created: Vec<String>,
    already_there: Vec<String>,
    /// The subscription that the consumer read before.
    moved_from: Option<String>,
    /// IAM bindings that the command granted.
    granted: Vec<String>,
    /// Shell commands that grant the IAM bindings.
    grant_commands: Vec<String>,
    /// SQL that grants a role what it needs to run the consumer.
    grant_sql: Option<String>,
}

impl<'a> SetUpReport<'a> {
    pub(in crate::commands) const fn new(
        format: OutputFormat,
        verbosity: Verbosity,
        consumer: &'a str,
    ) -> Self {
        let result = SetUpJson {
            consumer,
            subscription: String::new(),
            created: Vec::new(),
            already_there: Vec::new(),
            moved_from: None,
            granted: Vec::new(),
            grant_commands: Vec::new(),
            grant_sql: None,
        };
        Self { format, verbosity, result }
    }

    /// Reports an object that is there now.
    pub(in crate::commands) fn add(
        &mut self,
        presence: impl Into<Presence>,
        object: String,
    ) -> Result<(), Error> {
        let presence = presence.into();
        let (verb, objects) = match presence {
            Presence::New => ("created", &mut self.result.created),
            Presence::AlreadyThere => ("already there", &mut self.result.already_there),
        };
        let text = format!("{verb}: {object}\n");
        objects.push(object);
        match presence {
            Presence::AlreadyThere if self.verbosity != Verbosity::Verbose => Ok(()),
            Presence::AlreadyThere | Presence::New => self.print(&text),
        }
    }

    /// Reports that the consumer reads another subscription than before.
    pub(in crate::commands) fn moved(&mut self, to: &str, former: String) -> Result<(), Error> {
        let name = self.result.consumer;
        let text = format!(
            "moved: consumer {name}, which has applied nothing yet; it reads {to} now instead of {former}\n"
        );
        self.result.moved_from = Some(former);
        self.print(&text)
    }

    pub(super) fn granted(
        &mut self,
        presence: impl Into<Presence>,
        binding: String,
    ) -> Result<(), Error> {
        let verb = match presence.into() {
            Presence::New => "granted",
            Presence::AlreadyThere => "already there",
        };
        let text = format!("{verb}: {binding}\n");
        self.result.granted.push(binding);
        self.print(&text)
    }

    pub(super) fn grant_by_hand(&mut self, commands: Vec<String>) -> Result<(), Error> {
        let text = format!(
            "Pub/Sub forwards dead letters only if its service agent has these roles:\n\n{}\n",
            commands.join("\n")
        );
        self.result.grant_commands = commands;
        self.print(&text)
    }

    /// Prints the end of the report: as text the grants, as JSON everything.
    pub(in crate::commands) fn end(
        mut self,
        subscription: &str,
        grant_sql: Option<String>,
    ) -> Result<(), Error> {
        let SetUpJson { consumer, created, already_there, moved_from, .. } = &self.result;
        if created.is_empty() && moved_from.is_none() {
            self.print(&nothing_to_do(already_there.len()))?;
        } else {
            self.print(&format!(
                "next: `walrelay consumer run {consumer} --handler FUNCTION`; `walrelay consumer scaffold` prints a handler\n"
            ))?;
        }
        if let Some(sql) = &grant_sql {
            self.print(&format!(
                "to run it with a role of its own, which also needs the privileges of its handler: {sql}"
            ))?;
        }
        self.result.subscription = subscription.to_owned();
        self.result.grant_sql = grant_sql;
        match self.format {
            OutputFormat::Text => Ok(()),
            OutputFormat::Json => print(&json_text(&self.result)?),
        }
    }

    fn print(&self, text: &str) -> Result<(), Error> {
        match self.format {
            OutputFormat::Text => print(&as_given(text)),
            OutputFormat::Json => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let mut report = SetUpReport::new(OutputFormat::Json, Verbosity::Normal, "billing");
        report.add(true, "consumer billing".to_owned()).expect("kept");
        report.add(false, "tables and functions of the inbox".to_owned()).expect("kept");
        report.moved("new", "old".to_owned()).expect("kept");
        report.granted(true, "a role".to_owned()).expect("kept");
        report.grant_by_hand(vec!["gcloud …".to_owned()]).expect("kept");
        assert_documented("consumer init", &report.result);
    }
}
