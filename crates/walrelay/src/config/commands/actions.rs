//! The arguments of `dispatch` and `slot`.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use walrelay_outbox_store::{DispatchQuery, DispatchStatus, StateFilter};

use super::super::builder::ConfigBuilder;
use super::super::command::{
    DispatchAction, DispatchConfig, DispatchEdit, DispatchList, RowSelection, SlotAction,
    SlotConfig, SlotKind,
};
use super::super::consent::Consent;
use super::super::output_format::OutputFormat;
use super::replay_orders::{AdvanceOrder, RecoverOrder};
use crate::{cli, options};

/// Output formats of every command except `list`.
pub(in crate::config) const FORMATS: [(&str, OutputFormat); 2] =
    [("text", OutputFormat::Text), ("json", OutputFormat::Json)];

/// Rows on one page of `list`.
const LIMIT: u32 = 100;

const DEAD: StateFilter = StateFilter::Only(DispatchStatus::Dead);

/// The values of `dispatch --status`.
pub(crate) const STATES: [(&str, StateFilter); 5] = [
    ("retrying", StateFilter::Only(DispatchStatus::Retrying)),
    ("dead", DEAD),
    ("published", StateFilter::Only(DispatchStatus::Published)),
    ("discarded", StateFilter::Only(DispatchStatus::Discarded)),
    ("all", StateFilter::Any),
];

impl ConfigBuilder<'_> {
    pub(in crate::config) fn dispatch(
        &mut self,
        action: &cli::DispatchActionArgs,
    ) -> Option<DispatchConfig> {
        let action = match action {
            cli::DispatchActionArgs::List(args) => {
                Some(DispatchAction::List(self.dispatch_list(args)))
            }
            cli::DispatchActionArgs::Show(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                Some(DispatchAction::Show { id: as_recorded(&args.id), format })
            }
            cli::DispatchActionArgs::Retry(args) => {
                if let Some(status) = args.rows.filters.status.as_deref().filter(|_| args.all_dead)
                {
                    let allowed = "not with --all-dead, which says that the rows are dead";
                    self.problems.wrong("status", status, allowed);
                }
                let state = if args.all_dead { DEAD } else { StateFilter::Open };
                let chosen = self.chosen((&args.ids, &args.rows), (args.all_dead, state));
                chosen.map(DispatchAction::Retry)
            }
            cli::DispatchActionArgs::Edit(args) => {
                self.dispatch_edit(args).map(DispatchAction::Edit)
            }
            cli::DispatchActionArgs::Discard(args) => self.dispatch_discard(args),
        };
        let database = self.database()?;
        Some(DispatchConfig { database, action: action? })
    }

    fn dispatch_list(&mut self, args: &cli::DispatchListArgs) -> DispatchList {
        let formats = [("table", OutputFormat::Text), ("json", OutputFormat::Json)];
        // With `--error`, rows in every state are listed: rows with the error may need no person.
        let state = match args.rows.error {
            Some(_) => StateFilter::Any,
            None => StateFilter::NeedsPerson,
        };
        let query = self.query(&args.rows, state);
        let after = args.after.as_deref().and_then(|text| {
            let position = behind(text);
            if position.is_none() {
                let allowed = "a position such as 16/B374D848#3, or 16/B374D848";
                self.problems.wrong("after", text, allowed);
            }
            position
        });
        let limit = match &args.limit {
            None => LIMIT,
            Some(text) if args.all => {
                self.problems.wrong("limit", text, "not with --all, which lists every row");
                LIMIT
            }
            Some(text) => self.problems.count("limit", text, 1..=100_000),
        };
        let format = self.problems.choice("format", &args.format, &formats);
        DispatchList { query, after, limit: (!args.all).then_some(limit), format }
    }

    /// Returns the query for the filters. `state` applies if no status is given.
    fn query(&mut self, args: &cli::DispatchRowsArgs, state: StateFilter) -> DispatchQuery {
        let decade = Duration::from_hours(24 * 3650);
        let status = args.status.as_deref();
        let age = args.older_than.as_deref();
        DispatchQuery {
            state: status.map_or(state, |text| self.problems.choice("status", text, &STATES)),
            topic: args.topic.as_deref().map(|topic| self.full_topic(topic)),
            ordering_key: args.key.clone(),
            error_code: args.error.clone(),
            older_than: age
                .map(|age| self.problems.duration("older-than", age, Duration::ZERO..=decade)),
            until: None,
        }
    }

    /// Returns the chosen rows, by ids or by filters. Without either it refuses, so that nobody
    /// selects all rows by mistake.
    fn chosen(
        &mut self,
        (ids, rows): (&[String], &cli::BulkArgs),
        (all_dead, state): (bool, StateFilter),
    ) -> Option<RowSelection> {
        let is_filtered = rows.filters.is_given() || all_dead;
        match (ids, is_filtered) {
            ([_, ..], false) => {
                Some(RowSelection::Ids(ids.iter().map(|id| as_recorded(id)).collect()))
            }
            ([], true) => {
                let query = self.query(&rows.filters, state);
                let consent = if rows.yes { Consent::Given } else { Consent::Asked };
                Some(RowSelection::Matching { query, consent })
            }
            ([], false) | ([_, ..], true) => {
                let allowed =
                    "give event ids, or filters such as --status dead and --topic, not both";
                self.problems.report_without_value("id", allowed);
                None
            }
        }
    }

    /// Returns the full name of a topic, as dispatch state stores it.
    fn full_topic(&mut self, topic: &str) -> String {
        if topic.starts_with("projects/") {
            return topic.to_owned();
        }
        let project = self.problems.read(options::PROJECT).unwrap_or_default();
        if project.is_empty() {
            let allowed = "a full projects/…/topics/… name, or set --project";
            self.problems.wrong("topic", topic, allowed);
        }
        format!("projects/{project}/topics/{topic}")
    }

    fn dispatch_edit(&mut self, args: &cli::DispatchEditArgs) -> Option<DispatchEdit> {
        let files = [&args.payload_file, &args.attributes_file];
        let routes = [&args.topic, &args.key];
        if files.into_iter().chain(routes).all(Option::is_none) {
            let allowed = "not set; give --payload-file, --attributes-file, --topic or --key";
            self.problems.report_without_value("payload-file", allowed);
            return None;
        }
        Some(DispatchEdit {
            id: as_recorded(&args.id),
            payload_file: args.payload_file.as_deref().map(Into::into),
            attributes_file: args.attributes_file.as_deref().map(Into::into),
            topic: args.topic.as_deref().map(|topic| self.full_topic(topic)),
            key: args.key.clone(),
        })
    }

    fn dispatch_discard(&mut self, args: &cli::DispatchDiscardArgs) -> Option<DispatchAction> {
        let chosen = self.chosen((&args.ids, &args.rows), (false, DEAD));
        match args.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()) {
            Some(reason) => {
                Some(DispatchAction::Discard { chosen: chosen?, reason: reason.to_owned() })
            }
            None => {
                let allowed = "not set; say why, for whoever finds the row later";
                self.problems.report_without_value("reason", allowed);
                None
            }
        }
    }

    pub(in crate::config) fn slot(&mut self, action: &cli::SlotActionArgs) -> Option<SlotConfig> {
        let action = match action {
            cli::SlotActionArgs::Show(args) => {
                let format = self.problems.choice("format", &args.format, &FORMATS);
                Some(SlotAction::Show(format))
            }
            cli::SlotActionArgs::Create(args) => {
                let kind = if args.failover { SlotKind::Failover } else { SlotKind::PlainHarness };
                Some(SlotAction::Create(kind))
            }
            cli::SlotActionArgs::Drop(args) => self.slot_drop(args),
            cli::SlotActionArgs::Advance(args) => self.slot_advance(args),
            cli::SlotActionArgs::Reset(args) => self.slot_reset(args),
            cli::SlotActionArgs::Recover(args) => {
                let since = self.moment("since", args.since.as_deref());
                let columns = Box::new(self.columns());
                Some(SlotAction::Recover(RecoverOrder { since, columns }))
            }
            cli::SlotActionArgs::CarryOver(_) => Some(SlotAction::CarryOver),
            cli::SlotActionArgs::Adopt(_) => Some(SlotAction::Adopt),
        };
        let database = self.database()?;
        Some(SlotConfig { database, action: action? })
    }

    fn slot_drop(&mut self, args: &cli::SlotDropArgs) -> Option<SlotAction> {
        if !args.yes {
            let allowed =
                "not given; what the slot has not confirmed can then not be read from the log";
            self.problems.report_without_value("yes", allowed);
        }
        let discard_rows = self.problems.count("discard-rows", &args.discard_rows, 0..=u64::MAX);
        args.yes.then_some(SlotAction::Drop { discard_rows })
    }

    fn slot_advance(&mut self, args: &cli::SlotAdvanceArgs) -> Option<SlotAction> {
        if !args.skip_events {
            let allowed = "not given; the rows of that transaction are then never published";
            self.problems.report_without_value("skip-events", allowed);
        }
        let discard_rows = self.problems.count("discard-rows", &args.discard_rows, 0..=u64::MAX);
        let text = args.to_lsn.as_deref().unwrap_or_default();
        // Log messages, `dispatch list` and the demo show row positions, which contain the commit
        // position.
        let position = text.parse::<Position>().map(|position| position.commit_lsn);
        match text.parse().or(position) {
            Ok(to) => {
                let columns = Box::new(self.columns());
                let order = AdvanceOrder { to, discard_rows, columns };
                args.skip_events.then_some(SlotAction::Advance(order))
            }
            Err(_) => {
                self.problems.wrong(
                    "to-lsn",
                    text,
                    "a position such as 16/B374D848 or 16/B374D848#3",
                );
                None
            }
        }
    }
}

/// Normalizes an event id that was recorded with its position, in either spelling of the position.
fn as_recorded(id: &str) -> String {
    match id.rsplit_once('@') {
        Some((event, position))
            if position.contains('#') && position.parse::<Position>().is_ok() =>
        {
            format!("{event}@{}", position.replace('#', "/"))
        }
        Some(_) | None => id.to_owned(),
    }
}

/// Parses a position. A commit LSN alone means the position after all rows of its transaction.
fn behind(text: &str) -> Option<Position> {
    let whole = |commit_lsn: Lsn| Position { commit_lsn, tx_index: i32::MAX.unsigned_abs() };
    text.parse().ok().or_else(|| text.parse().ok().map(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_with_a_position_is_found_in_either_spelling() {
        assert_eq!(as_recorded("e-1@16/B374D848#3"), "e-1@16/B374D848/3");
        for id in ["e-1", "", "e-1@16/B374D848/3", "a@b#3", "e-1@REPLAY"] {
            assert_eq!(as_recorded(id), id);
        }
    }

    #[test]
    fn a_transaction_alone_is_a_place_behind_all_its_rows() {
        let place = |text| behind(text).map(|place| (place.commit_lsn.as_u64(), place.tx_index));
        assert_eq!(place("0/10#3"), Some((16, 3)));
        assert_eq!(place("0/10/3"), Some((16, 3)));
        assert_eq!(place("0/10"), Some((16, 0x7FFF_FFFF)));
        assert_eq!(place("latest"), None);
    }
}
