//! The arguments of `backfill`.

use walrelay_core::ColumnFilter;
use walrelay_relay::replay::{DeadRows, Destination, Keeping, Rate};
use walrelay_relay::settings::{Settings, Until};

use super::super::problem::ConfigBuilder;
use super::replay_orders::{BackfillAction, BackfillConfig, BackfillOrder};
use crate::cli::BackfillArgs;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn backfill(&mut self, args: BackfillArgs) -> Option<BackfillConfig> {
        let connect = self.connect(&args.database.connection);
        let outbox = self.outbox(&args.database);
        let router = self.router(&args.messages, &args.columns);
        let relay = self.streaming(&args.stream, outbox, router);
        let pubsub = self.pubsub(&args.pubsub);
        if args.since.is_some() {
            let reason = "needed by --since: the time of an event is read from it";
            self.require_time(&relay.router.columns, reason);
        }
        let action = match (args.resume, args.abandon) {
            (Some(id), _) => {
                let dead_rows = args.skip_dead.then_some(DeadRows::LeaveOut);
                Some(BackfillAction::Resume { id, dead_rows })
            }
            (None, Some(id)) => Some(BackfillAction::Abandon { id }),
            (None, None) => {
                let destination = match args.in_place {
                    true => Some(Destination::InPlace),
                    false => self
                        .topic_of_a_replay((args.to_topic, args.dry_run), &relay.router)
                        .map(Destination::Topic),
                };
                destination.map(|destination| {
                    BackfillAction::Begin(BackfillOrder {
                        since: args.since,
                        matching: ColumnFilter {
                            aggregate_types: args.aggregate_type,
                            aggregate_ids: args.aggregate_id,
                            event_types: Vec::new(),
                        },
                        event_ids: args.event_id,
                        destination,
                        order_by: args.order_by,
                        rate: args.rate.and_then(Rate::new),
                        dead_rows: dead_rows(args.skip_dead),
                        keeping: if args.dry_run { Keeping::Nothing } else { Keeping::OnRecord },
                    })
                })
            }
        };
        let settings = Settings { connect: connect?, relay, pubsub, until: Until::CaughtUp };
        Some(BackfillConfig { settings, action: action? })
    }
}

/// Returns the treatment of dead rows that the switch `--skip-dead` means.
pub(super) const fn dead_rows(skip: bool) -> DeadRows {
    if skip { DeadRows::LeaveOut } else { DeadRows::Stop }
}
