//! The arguments of `dispatch` and `slot`.

use walrelay_outbox_admin::Again;
use walrelay_outbox_admin::protocols::{Place, ResetOrder, SkipConsent};
use walrelay_outbox_store::{DispatchQuery, DispatchStatus, StateFilter};

use super::super::command::{
    DispatchAction, DispatchConfig, DispatchEdit, DispatchList, RowSelection, SlotAction,
    SlotConfig,
};
use super::super::messages::{column_names, project};
use super::super::problem::ConfigBuilder;
use super::replay_orders::{AdvanceOrder, RecoverOrder};
use crate::cli::{self, DispatchActionArgs, SlotActionArgs};
use crate::options::ProjectOption;
use crate::options::choices::Consent;

/// Rows on one page of `list`.
const LIMIT: u32 = 100;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn dispatch(
        &mut self,
        action: DispatchActionArgs,
    ) -> Option<DispatchConfig> {
        let (database, action) = match action {
            DispatchActionArgs::List(args) => {
                // With `--error`, rows in every state are listed: rows with the error may need no
                // person.
                let state = match args.rows.error {
                    Some(_) => StateFilter::Any,
                    None => StateFilter::NeedsPerson,
                };
                let query = self.query(args.rows, &args.project, state);
                let limit = (!args.all).then_some(args.limit.unwrap_or(LIMIT));
                let format = args.output.output;
                let list = DispatchList { query, after: args.after, limit, format };
                (args.database, DispatchAction::List(list))
            }
            DispatchActionArgs::Show(args) => {
                (args.database, DispatchAction::Show { id: args.id, format: args.output.output })
            }
            DispatchActionArgs::Retry(args) => {
                let state = match args.all_dead {
                    true => Some(StateFilter::Only(DispatchStatus::Dead)),
                    false => None,
                };
                let default = (state, StateFilter::Open);
                let chosen = self.chosen((args.ids, args.rows), &args.project, default)?;
                (args.database, DispatchAction::Retry(chosen))
            }
            DispatchActionArgs::Edit(args) => {
                let topic = args.set_topic.as_deref().map(|it| self.full_topic(it, &args.project));
                let edit = DispatchEdit {
                    id: args.id,
                    payload_file: args.payload_file,
                    attributes_file: args.attributes_file,
                    topic,
                    key: args.set_key,
                };
                (args.database, DispatchAction::Edit(edit))
            }
            DispatchActionArgs::Discard(args) => {
                let default = (None, StateFilter::Only(DispatchStatus::Dead));
                let chosen = self.chosen((args.ids, args.rows), &args.project, default)?;
                (args.database, DispatchAction::Discard { chosen, reason: args.reason })
            }
        };
        Some(DispatchConfig { database: self.database(&database)?, action })
    }

    /// Returns the query for the filters. `state` applies if no status is given.
    fn query(
        &mut self,
        args: cli::DispatchRowsArgs,
        project: &ProjectOption,
        state: StateFilter,
    ) -> DispatchQuery {
        DispatchQuery {
            state: args.status.unwrap_or(state),
            topic: args.topic.as_deref().map(|topic| self.full_topic(topic, project)),
            ordering_key: args.key,
            error_code: args.error,
            older_than: args.older_than,
            until: None,
        }
    }

    /// Returns the chosen rows, by ids or by filters. Without either it refuses, so that nobody
    /// selects all rows by mistake. `all` is the state of `--all-dead`.
    fn chosen(
        &mut self,
        (ids, rows): (Vec<String>, cli::BulkArgs),
        project: &ProjectOption,
        (all, default): (Option<StateFilter>, StateFilter),
    ) -> Option<RowSelection> {
        match (ids.is_empty(), rows.filters.is_given() || all.is_some()) {
            (false, false) => Some(RowSelection::Ids(ids)),
            (true, true) => {
                let query = self.query(rows.filters, project, all.unwrap_or(default));
                Some(RowSelection::Matching {
                    query,
                    consent: if rows.yes { Consent::Given } else { Consent::Asked },
                })
            }
            (true, false) | (false, true) => {
                let allowed =
                    "give event ids, or filters such as --status dead and --topic, not both";
                self.wrong_or_missing("id", allowed);
                None
            }
        }
    }

    /// Returns the full name of a topic, as dispatch state stores it.
    fn full_topic(&mut self, topic: &str, option: &ProjectOption) -> String {
        if topic.starts_with("projects/") {
            return topic.to_owned();
        }
        let project = project(option);
        if project.is_empty() {
            self.wrong("topic", topic, "a full projects/…/topics/… name, or set --project");
        }
        format!("projects/{project}/topics/{topic}")
    }

    pub(in crate::config) fn slot(&mut self, given: SlotActionArgs) -> Option<SlotConfig> {
        let (database, options, action) = match given {
            SlotActionArgs::Drop(args) => {
                let drop = SlotAction::Drop { discard_rows: args.discard_rows };
                (args.database, args.change.options(), drop)
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
                    skipping: match args.skip_events {
                        true => SkipConsent::Agreed,
                        false => SkipConsent::Refused,
                    },
                    discard_rows: args.discard_rows,
                    columns: Box::new(column_names(&args.columns)),
                };
                (args.database, args.change.options(), SlotAction::Reset(order))
            }
            SlotActionArgs::Recover(args) => {
                let columns = Box::new(column_names(&args.columns));
                let order = RecoverOrder { since: args.from_time, columns };
                (args.database, args.change.options(), SlotAction::Recover(order))
            }
        };
        Some(SlotConfig { database: self.database(&database)?, action, options })
    }
}
