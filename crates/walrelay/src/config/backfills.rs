//! The arguments of `backfill`.

use walrelay_core::Matching;
use walrelay_relay::replay::{DeadRows, Keeping, Rate};
use walrelay_relay::settings::{Settings, Until};

use super::builder::Builder;
use super::orders::{BackfillAction, BackfillConfig, BackfillOrder};
use crate::cli::BackfillArgs;

impl Builder<'_> {
    pub(super) fn backfill(&mut self, args: &BackfillArgs) -> Option<BackfillConfig> {
        let connect = self.connect();
        let relay = self.relay_of_a_replay();
        let pubsub = self.pubsub();
        let action = match &args.resume {
            Some(id) => self.replay_id(id).map(|id| BackfillAction::Resume { id }),
            None => {
                let to = (args.to_topic.as_deref(), args.dry_run);
                let to_topic = self.topic_of_a_replay(to, &relay.router);
                self.backfill_order(args, to_topic)
            }
        };
        if args.since.is_some() && relay.router.columns.occurred_at.is_none() {
            let allowed = "needed by --since: the time of an event is read from it";
            self.problems.wrong_unseen("column-occurred-at", allowed);
        }
        let settings = Settings { connect: connect?, relay, pubsub, until: Until::CaughtUp };
        Some(BackfillConfig { settings, action: action? })
    }

    fn backfill_order(
        &mut self,
        args: &BackfillArgs,
        to_topic: Option<String>,
    ) -> Option<BackfillAction> {
        let since = self.moment("since", args.since.as_deref());
        let rate = args.rate.as_deref().map(|text| self.problems.count("rate", text, 1..=u32::MAX));
        let matching = Matching {
            aggregate_types: args.aggregate_type.clone(),
            aggregate_ids: args.aggregate_id.clone(),
            event_types: Vec::new(),
        };
        Some(BackfillAction::Begin(BackfillOrder {
            since,
            matching,
            to_topic: to_topic?,
            order_by: args.order_by.clone(),
            rate: rate.and_then(Rate::new),
            dead_rows: if args.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop },
            keeping: if args.dry_run { Keeping::Nothing } else { Keeping::OnRecord },
        }))
    }
}
