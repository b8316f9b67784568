//! The arguments of `slot`.

use walrelay_outbox_admin::Again;

use super::super::command::{SlotAction, SlotConfig};
use super::super::messages::column_names;
use super::super::problem::ConfigBuilder;
use super::replay_orders::{AdvanceOrder, Place, RecoverOrder, ResetOrder, SkipConsent};
use crate::cli::SlotActionArgs;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn slot(&mut self, action: SlotActionArgs) -> Option<SlotConfig> {
        let (database, action) = match action {
            SlotActionArgs::Drop(args) => {
                let (mode, discard_rows) = (args.confirm.mode(), args.discard_rows);
                (args.database, SlotAction::Drop { mode, discard_rows })
            }
            SlotActionArgs::Advance(args) => {
                if !args.skip_events {
                    let allowed =
                        "not given; the rows of that transaction are then never published";
                    self.wrong_or_missing("skip-events", allowed);
                }
                let columns = Box::new(column_names(&args.columns));
                let order =
                    AdvanceOrder { to: args.to_lsn, discard_rows: args.discard_rows, columns };
                (args.database, SlotAction::Advance(order))
            }
            SlotActionArgs::Reset(args) => {
                let order = ResetOrder {
                    anchor: args.to_anchor,
                    to: Place::of(args.to_lsn, args.to_time),
                    again: match args.include_dead {
                        true => Again::PublishedAndDead,
                        false => Again::Published,
                    },
                    skipping: match args.skip_events {
                        true => SkipConsent::Agreed,
                        false => SkipConsent::Refused,
                    },
                    discard_rows: args.discard_rows,
                    columns: Box::new(column_names(&args.columns)),
                    mode: args.confirm.mode(),
                };
                (args.database, SlotAction::Reset(order))
            }
            SlotActionArgs::Recover(args) => {
                let columns = Box::new(column_names(&args.columns));
                let order = RecoverOrder { since: args.from_time, columns };
                (args.database, SlotAction::Recover(order))
            }
        };
        Some(SlotConfig { database: self.database(&database)?, action })
    }
}
