//! The arguments of `anchor` and `slot reset`: anchor names, positions and times.

use std::time::{Duration, SystemTime};

use pgoutput_parser::Position;
use walrelay_outbox_admin::Again;
use walrelay_relay::observe::report::parse_rfc3339;

use super::super::builder::ConfigBuilder;
use super::super::command::{AnchorAction, AnchorConfig, SlotAction};
use super::super::names::is_slot_name;
use super::super::settings::wal_budget;
use super::replay_orders::{Place, ResetOrder, SkipConsent};
use crate::cli;
use crate::options::units::parse_duration;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn anchor(
        &mut self,
        action: &cli::AnchorActionArgs,
    ) -> Option<AnchorConfig> {
        let action = match action {
            cli::AnchorActionArgs::Create(args) => {
                let name = self.anchor_name("name", &args.name);
                AnchorAction::Create { name, wal_budget: wal_budget(&mut self.problems) }
            }
            cli::AnchorActionArgs::List(args) => {
                let format = self.problems.choice("format", &args.format, &super::actions::FORMATS);
                AnchorAction::List { wal_budget: wal_budget(&mut self.problems), format }
            }
            cli::AnchorActionArgs::Advance(args) => {
                let name = self.anchor_name("name", &args.name);
                let to = self.place(
                    ("to-lsn", args.to_lsn.as_deref()),
                    ("to-time", args.to_time.as_deref()),
                );
                AnchorAction::Advance { name, to }
            }
            cli::AnchorActionArgs::Drop(args) => {
                AnchorAction::Drop { name: self.anchor_name("name", &args.name) }
            }
        };
        Some(AnchorConfig { database: self.database()?, action })
    }

    pub(in crate::config) fn slot_reset(
        &mut self,
        args: &cli::SlotResetArgs,
    ) -> Option<SlotAction> {
        let to =
            self.place(("to-lsn", args.to_lsn.as_deref()), ("to-time", args.to_time.as_deref()));
        let Some(name) = &args.to_anchor else {
            let allowed = "not set; `walrelay anchor list` shows what there is";
            self.problems.report_without_value("to-anchor", allowed);
            return None;
        };
        let again = match args.include_dead {
            true => Again::PublishedAndDead,
            false => Again::Published,
        };
        let skipping = if args.skip_events { SkipConsent::Agreed } else { SkipConsent::Refused };
        let anchor = self.anchor_name("to-anchor", name);
        let discard_rows = self.problems.count("discard-rows", &args.discard_rows, 0..=u64::MAX);
        let columns = Box::new(self.columns());
        let order = ResetOrder { anchor, to, again, skipping, discard_rows, columns };
        Some(SlotAction::Reset(order))
    }

    pub(in crate::config) fn anchor_name(&mut self, argument: &str, name: &str) -> String {
        if !is_slot_name(name) {
            self.problems.wrong(argument, name, "lower-case letters, digits and underscores");
        }
        name.to_owned()
    }

    /// Reads a position or a time, depending on the option given.
    pub(in crate::config) fn place(
        &mut self,
        (lsn_option, lsn): (&str, Option<&str>),
        (time_option, time): (&str, Option<&str>),
    ) -> Option<Place> {
        if let Some(text) = lsn {
            let Ok(position) = text.parse() else {
                // Log messages and `dispatch list` show positions of rows.
                let allowed = match text.parse::<Position>() {
                    Ok(Position { commit_lsn, .. }) => format!(
                        "{commit_lsn}, without the row's index: a transaction is taken whole"
                    ),
                    Err(_) => "a position such as 16/B374D848".to_owned(),
                };
                self.problems.wrong(lsn_option, text, allowed);
                return None;
            };
            return Some(Place::Lsn(position));
        }
        self.moment(time_option, time).map(Place::Time)
    }

    /// Reads a time or an age.
    pub(in crate::config) fn moment(
        &mut self,
        option: &str,
        time: Option<&str>,
    ) -> Option<SystemTime> {
        let text = time?;
        let ago = parse_duration(text).filter(|ago| *ago <= LONGEST_AGO);
        let moment = match ago {
            Some(ago) => SystemTime::now().checked_sub(ago),
            None => parse_rfc3339(text),
        };
        if moment.is_none() {
            let allowed = "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 6h";
            self.problems.wrong(option, text, allowed);
        }
        moment
    }
}

/// Longest accepted age. No WAL and no recorded time is older.
const LONGEST_AGO: Duration = Duration::from_hours(24 * 3650);
