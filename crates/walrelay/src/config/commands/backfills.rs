//! The arguments of `backfill`.

use walrelay_core::ColumnFilter;
use walrelay_relay::replay::{DeadRows, Destination, Keeping, Rate};
use walrelay_relay::settings::{Settings, Until};

use super::super::builder::ConfigBuilder;
use super::replay_orders::{BackfillAction, BackfillConfig, BackfillOrder};
use crate::cli::BackfillArgs;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn backfill(&mut self, args: &BackfillArgs) -> Option<BackfillConfig> {
        let connect = self.connect();
        let relay = self.replay_relay_settings();
        let pubsub = self.pubsub();
        let action = match (&args.resume, &args.abandon) {
            (Some(id), _) => {
                let dead_rows = args.skip_dead.then_some(DeadRows::LeaveOut);
                self.replay_id("resume", id).map(|id| BackfillAction::Resume { id, dead_rows })
            }
            (None, Some(id)) => {
                self.replay_id("abandon", id).map(|id| BackfillAction::Abandon { id })
            }
            (None, None) => {
                let to = (args.to_topic.as_deref(), args.dry_run);
                let destination = match args.in_place {
                    true => Some(Destination::InPlace),
                    false => self.topic_of_a_replay(to, &relay.router).map(Destination::Topic),
                };
                self.backfill_order(args, destination)
            }
        };
        if args.since.is_some() && relay.router.columns.occurred_at.is_none() {
            let allowed = "needed by --since: the time of an event is read from it";
            self.problems.report_without_value("column-occurred-at", allowed);
        }
        let settings = Settings { connect: connect?, relay, pubsub, until: Until::CaughtUp };
        Some(BackfillConfig { settings, action: action? })
    }

    fn backfill_order(
        &mut self,
        args: &BackfillArgs,
        destination: Option<Destination>,
    ) -> Option<BackfillAction> {
        let since = self.moment("since", args.since.as_deref());
        let rate = args.rate.as_deref().map(|text| self.problems.count("rate", text, 1..=u32::MAX));
        let matching = ColumnFilter {
            aggregate_types: args.aggregate_type.clone(),
            aggregate_ids: args.aggregate_id.clone(),
            event_types: Vec::new(),
        };
        Some(BackfillAction::Begin(BackfillOrder {
            since,
            matching,
            event_ids: args.event_id.clone(),
            destination: destination?,
            order_by: args.order_by.clone(),
            rate: rate.and_then(Rate::new),
            dead_rows: if args.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop },
            keeping: if args.dry_run { Keeping::Nothing } else { Keeping::OnRecord },
        }))
    }
}
