//! The arguments of `dispatch` and `slot`: what to act on.

use std::time::Duration;

use walrelay_postgres::{DispatchFilter, DispatchStatus, RetrySelection};

use super::builder::Builder;
use super::command::{
    DispatchAction, DispatchConfig, OutputFormat, SlotAction, SlotConfig, SlotKind,
};
use crate::{cli, options};

/// How a command that is not `list` prints.
const FORMATS: [(&str, OutputFormat); 2] =
    [("text", OutputFormat::Text), ("json", OutputFormat::Json)];

impl Builder<'_> {
    pub(super) fn dispatch(&mut self, action: &cli::DispatchActionArgs) -> Option<DispatchConfig> {
        let action = match action {
            cli::DispatchActionArgs::List(args) => Some(self.dispatch_list(args)),
            cli::DispatchActionArgs::Show(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                Some(DispatchAction::Show { id: args.id.clone(), format })
            }
            cli::DispatchActionArgs::Retry(args) => {
                self.dispatch_retry(args).map(DispatchAction::Retry)
            }
            cli::DispatchActionArgs::Edit(args) => self.dispatch_edit(args),
            cli::DispatchActionArgs::Discard(args) => self.dispatch_discard(args),
        };
        let database = self.database()?;
        Some(DispatchConfig { database, action: action? })
    }

    fn dispatch_list(&mut self, args: &cli::DispatchListArgs) -> DispatchAction {
        let statuses = [
            ("retrying", DispatchStatus::Retrying),
            ("dead", DispatchStatus::Dead),
            ("published", DispatchStatus::Published),
            ("discarded", DispatchStatus::Discarded),
        ];
        let formats = [("table", OutputFormat::Text), ("json", OutputFormat::Json)];
        let decade = Duration::from_hours(24 * 3650);
        let topic = args.topic.as_deref();
        let filter = DispatchFilter {
            status: args
                .status
                .as_deref()
                .map(|status| self.problems.choice("status", status, &statuses)),
            topic: topic.map(|topic| self.full_topic(topic)),
            ordering_key: args.key.clone(),
            older_than: args
                .older_than
                .as_deref()
                .map(|age| self.problems.duration("older-than", age, Duration::ZERO..=decade)),
            limit: self.problems.count("limit", &args.limit, 1..=100_000),
        };
        let format = self.problems.choice("format", &args.format, &formats);
        DispatchAction::List { filter, format }
    }

    fn dispatch_retry(&mut self, args: &cli::DispatchRetryArgs) -> Option<RetrySelection> {
        match (args.ids.as_slice(), args.all_dead, args.topic.as_deref()) {
            ([], true, None) => Some(RetrySelection::AllDead),
            ([], false, Some(topic)) => Some(RetrySelection::Topic(self.full_topic(topic))),
            ([_, ..], false, None) => Some(RetrySelection::Events(args.ids.clone())),
            ([] | [_, ..], _, _) => {
                let allowed = "give exactly one of event ids, --all-dead and --topic";
                self.problems.wrong_unseen("all-dead", allowed);
                None
            }
        }
    }

    /// Dispatch state holds full names.
    fn full_topic(&mut self, topic: &str) -> String {
        if topic.starts_with("projects/") {
            return topic.to_owned();
        }
        let project = self.problems.read(options::PROJECT).unwrap_or_default();
        if project.is_empty() {
            let allowed = "a full projects/…/topics/… name, or set --project";
            self.problems.wrong("topic", topic, allowed);
        }
        format!("projects/{project}/topics/{topic}")
    }

    fn dispatch_edit(&mut self, args: &cli::DispatchEditArgs) -> Option<DispatchAction> {
        if args.payload_file.is_none() && args.attributes_file.is_none() {
            let allowed = "not set; give --payload-file, --attributes-file, or both";
            self.problems.wrong_unseen("payload-file", allowed);
            return None;
        }
        Some(DispatchAction::Edit {
            id: args.id.clone(),
            payload_file: args.payload_file.as_deref().map(Into::into),
            attributes_file: args.attributes_file.as_deref().map(Into::into),
        })
    }

    fn dispatch_discard(&mut self, args: &cli::DispatchDiscardArgs) -> Option<DispatchAction> {
        match args.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()) {
            Some(reason) => {
                Some(DispatchAction::Discard { id: args.id.clone(), reason: reason.to_owned() })
            }
            None => {
                let allowed = "not set; say why, for whoever finds the row later";
                self.problems.wrong_unseen("reason", allowed);
                None
            }
        }
    }

    pub(super) fn slot(&mut self, action: &cli::SlotActionArgs) -> Option<SlotConfig> {
        let action = match action {
            cli::SlotActionArgs::Show(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                Some(SlotAction::Show(format))
            }
            cli::SlotActionArgs::Create(args) => {
                let kind = if args.failover { SlotKind::Failover } else { SlotKind::Plain };
                Some(SlotAction::Create(kind))
            }
            cli::SlotActionArgs::Drop(args) => self.slot_drop(args),
            cli::SlotActionArgs::Advance(args) => self.slot_advance(args),
        };
        let database = self.database()?;
        Some(SlotConfig { database, action: action? })
    }

    fn slot_drop(&mut self, args: &cli::SlotDropArgs) -> Option<SlotAction> {
        if !args.yes {
            let allowed =
                "not given; what the slot has not confirmed can then not be read from the log";
            self.problems.wrong_unseen("yes", allowed);
        }
        let discard_rows = self.problems.count("discard-rows", &args.discard_rows, 0..=u64::MAX);
        args.yes.then_some(SlotAction::Drop { discard_rows })
    }

    fn slot_advance(&mut self, args: &cli::SlotAdvanceArgs) -> Option<SlotAction> {
        if !args.skip_events {
            let allowed = "not given; the rows of that transaction are then never published";
            self.problems.wrong_unseen("skip-events", allowed);
        }
        let discard_rows = self.problems.count("discard-rows", &args.discard_rows, 0..=u64::MAX);
        let text = args.to_lsn.as_deref().unwrap_or_default();
        match text.parse() {
            Ok(to) => args.skip_events.then_some(SlotAction::Advance { to, discard_rows }),
            Err(_) => {
                self.problems.wrong("to-lsn", text, "a position such as 16/B374D848");
                None
            }
        }
    }
}
