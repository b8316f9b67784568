//! The arguments of `inbox`.

use walrelay_inbox::operator::event_commands::{InboxFilter, InboxSelection};

use super::super::problem::ConfigBuilder;
use super::consumer_commands::{InboxAction, InboxConfig};
use crate::cli::InboxActionArgs;
use crate::options::choices::Consent;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn inbox(&mut self, action: InboxActionArgs) -> Option<InboxConfig> {
        let (place, action) = match action {
            InboxActionArgs::List(args) => {
                let filter = InboxFilter {
                    status: args.status,
                    ordering_key: args.key,
                    older_than: args.older_than,
                    limit: args.limit,
                };
                (args.place, InboxAction::List { filter, format: args.output.output })
            }
            InboxActionArgs::Show(args) => {
                (args.place, InboxAction::Show { id: args.id, format: args.output.output })
            }
            InboxActionArgs::Retry(args) => {
                let selection = match args.all_dead {
                    true => InboxSelection::AllDead,
                    false => InboxSelection::Events(args.ids),
                };
                let consent = if args.yes { Consent::Given } else { Consent::Asked };
                (args.place, InboxAction::Retry { selection, consent })
            }
            InboxActionArgs::Edit(args) => {
                let (payload_file, attributes_file) = (args.payload_file, args.attributes_file);
                let id = args.id;
                (args.place, InboxAction::Edit { id, payload_file, attributes_file })
            }
            InboxActionArgs::Discard(args) => {
                (args.place, InboxAction::Discard { id: args.id, reason: args.reason })
            }
        };
        let connect = self.connect(&place.connection)?;
        Some(InboxConfig { connect, consumer: place.consumer, action })
    }
}
