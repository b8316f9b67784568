//! The arguments of `inbox`.

use std::time::Duration;

use walrelay_inbox::operator::event_commands::{InboxFilter, InboxSelection};

use super::super::builder::ConfigBuilder;
use super::super::output_format::OutputFormat;
use super::consumer_commands::{InboxAction, InboxConfig};
use crate::cli;

/// Output formats of every command except `list`.
const FORMATS: [(&str, OutputFormat); 2] =
    [("text", OutputFormat::Text), ("json", OutputFormat::Json)];

impl ConfigBuilder<'_> {
    pub(in crate::config) fn inbox(
        &mut self,
        action: &cli::InboxActionArgs,
    ) -> Option<InboxConfig> {
        let (place, action) = match action {
            cli::InboxActionArgs::List(args) => (&args.place, Some(self.inbox_list(args))),
            cli::InboxActionArgs::Show(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                (&args.place, Some(InboxAction::Show { id: args.id.clone(), format }))
            }
            cli::InboxActionArgs::Retry(args) => (&args.place, self.inbox_retry(args)),
            cli::InboxActionArgs::Edit(args) => (&args.place, self.inbox_edit(args)),
            cli::InboxActionArgs::Discard(args) => (&args.place, self.inbox_discard(args)),
        };
        let connect = self.connect()?;
        Some(InboxConfig { connect, consumer: place.consumer.clone(), action: action? })
    }

    fn inbox_list(&mut self, args: &cli::InboxListArgs) -> InboxAction {
        let words = ["done", "late", "retrying", "dead", "discarded"].map(|word| (word, word));
        let formats = [("table", OutputFormat::Text), ("json", OutputFormat::Json)];
        let decade = Duration::from_hours(24 * 3650);
        let status = args.status.as_deref();
        let status = status.map(|status| self.problems.choice("status", status, &words));
        let age = args.older_than.as_deref();
        let filter = InboxFilter {
            status: status.map(str::to_owned),
            ordering_key: args.key.clone(),
            older_than: age
                .map(|age| self.problems.duration("older-than", age, Duration::ZERO..=decade)),
            limit: self.problems.count("limit", &args.limit, 1..=100_000),
        };
        let format = self.problems.choice("format", &args.format, &formats);
        InboxAction::List { filter, format }
    }

    fn inbox_retry(&mut self, args: &cli::InboxRetryArgs) -> Option<InboxAction> {
        match (args.ids.as_slice(), args.all_dead) {
            ([], true) => Some(InboxAction::Retry(InboxSelection::AllDead)),
            ([_, ..], false) => Some(InboxAction::Retry(InboxSelection::Events(args.ids.clone()))),
            ([], false) => {
                let allowed = "not set; name the events to retry, or give --all-dead";
                self.problems.report_without_value("ID", allowed);
                None
            }
            ([_, ..], true) => {
                let allowed = "given together with event ids: give one of them";
                self.problems.report_without_value("all-dead", allowed);
                None
            }
        }
    }

    fn inbox_edit(&mut self, args: &cli::InboxEditArgs) -> Option<InboxAction> {
        if args.payload_file.is_none() && args.attributes_file.is_none() {
            let allowed = "not set; give --payload-file, --attributes-file, or both";
            self.problems.report_without_value("payload-file", allowed);
            return None;
        }
        Some(InboxAction::Edit {
            id: args.id.clone(),
            payload_file: args.payload_file.as_deref().map(Into::into),
            attributes_file: args.attributes_file.as_deref().map(Into::into),
        })
    }

    fn inbox_discard(&mut self, args: &cli::InboxDiscardArgs) -> Option<InboxAction> {
        match args.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()) {
            Some(reason) => {
                Some(InboxAction::Discard { id: args.id.clone(), reason: reason.to_owned() })
            }
            None => {
                let allowed = "not set; say why, for whoever finds the row later";
                self.problems.report_without_value("reason", allowed);
                None
            }
        }
    }
}
