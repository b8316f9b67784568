//! The arguments of `anchor`.

use super::super::command::{AnchorAction, AnchorConfig};
use super::super::problem::ConfigBuilder;
use super::replay_orders::Place;
use crate::cli::AnchorActionArgs;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn anchor(&mut self, action: AnchorActionArgs) -> Option<AnchorConfig> {
        let (database, action) = match action {
            AnchorActionArgs::Create(args) => {
                let wal_budget = args.wal_budget.wal_budget;
                (args.database, AnchorAction::Create { name: args.name, wal_budget })
            }
            AnchorActionArgs::List(args) => {
                let (wal_budget, format) = (args.wal_budget.wal_budget, args.output.output);
                (args.database, AnchorAction::List { wal_budget, format })
            }
            AnchorActionArgs::Advance(args) => {
                let to = Place::of(args.to_lsn, args.to_time);
                (args.database, AnchorAction::Advance { name: args.name, to })
            }
            AnchorActionArgs::Drop(args) => {
                (args.database, AnchorAction::Drop { name: args.name, mode: args.confirm.mode() })
            }
        };
        Some(AnchorConfig { database: self.database(&database)?, action })
    }
}
