//! The arguments of `slot`.

use walrelay_outbox_admin::protocols::{Place, ResetOrder};
use walrelay_outbox_replay::Again;
use walrelay_relay::settings::Until;

use super::super::builder::ConfigBuilder;
use super::super::command::{SlotAction, SlotConfig};
use super::replay_orders::{AdvanceOrder, RecoverOrder};
use crate::cli::SlotActionArgs;
use crate::options::choices::OnSlotLost;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn slot(&mut self, given: SlotActionArgs) -> Option<SlotConfig> {
        let (database, options, action) = match given {
            SlotActionArgs::Drop(args) => {
                let drop = SlotAction::Drop { discard_rows: args.discard_rows };
                (args.database, args.change.options(), drop)
            }
            SlotActionArgs::Advance(args) => {
                let columns = Box::new(self.definition.columns.clone());
                let order =
                    AdvanceOrder { to: args.to_lsn, discard_rows: args.discard_rows, columns };
                (args.database, args.change.options(), SlotAction::Advance(order))
            }
            SlotActionArgs::Reset(args) => {
                let order = ResetOrder {
                    anchor: args.to_anchor,
                    to: Place::of(args.to_lsn, args.to_time),
                    again: match args.include_dead {
                        true => Again::PublishedAndDead,
                        false => Again::Published,
                    },
                };
                (args.database, args.change.options(), SlotAction::Reset(order))
            }
            SlotActionArgs::Release(args) => {
                let run = self.run(&args.options, Until::CaughtUp, OnSlotLost::Stop)?;
                let release = SlotAction::Release(Box::new(run.settings));
                (args.options.database, args.change.options(), release)
            }
            SlotActionArgs::Recover(args) => {
                let columns = Box::new(self.definition.columns.clone());
                let order = RecoverOrder { since: args.from_time, columns };
                (args.database, args.change.options(), SlotAction::Recover(order))
            }
        };
        let selection = self.selection.clone();
        Some(SlotConfig { database: self.database(&database)?, action, options, selection })
    }
}
