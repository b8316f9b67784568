//! The arguments of `anchor`.

use walrelay_outbox_admin::protocols::Place;

use super::super::builder::ConfigBuilder;
use super::super::command::{AnchorAction, AnchorConfig};
use crate::cli::AnchorActionArgs;
use crate::options::choices::{ChangeMode, ChangeOptions};

impl ConfigBuilder<'_> {
    pub(in crate::config) fn anchor(&mut self, action: AnchorActionArgs) -> Option<AnchorConfig> {
        // These commands destroy nothing, and do not ask.
        let unasked = |format| ChangeOptions { mode: ChangeMode::Agreed, format };
        let (database, options, action) = match action {
            AnchorActionArgs::Create(args) => {
                let wal_budget = args.wal_budget.wal_budget;
                let one = AnchorAction::Create { name: args.name, wal_budget };
                (args.database, unasked(args.output.output), one)
            }
            AnchorActionArgs::List(args) => {
                let wal_budget = args.wal_budget.wal_budget;
                (args.database, unasked(args.output.output), AnchorAction::List { wal_budget })
            }
            AnchorActionArgs::Advance(args) => {
                let to = Place::of(args.to_lsn, args.to_time);
                let one = AnchorAction::Advance { name: args.name, to };
                (args.database, args.change.options(), one)
            }
            AnchorActionArgs::Drop(args) => {
                let one = AnchorAction::Drop { name: args.name };
                (args.database, args.change.options(), one)
            }
        };
        Some(AnchorConfig { database: self.database(&database)?, action, options })
    }
}
