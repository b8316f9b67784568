//! The arguments of `dispatch` and `inbox`.

use walrelay_inbox_admin::event_commands::{InboxQuery, InboxState};
use walrelay_outbox_store::{DispatchQuery, DispatchStatus, StateFilter};

use super::super::builder::ConfigBuilder;
use super::super::command::{DispatchConfig, DispatchEdit};
use super::super::messages::project;
use super::consumer_commands::{InboxConfig, InboxEdit};
use super::event_actions::{EventAction, EventList, EventSelection, SelectedEvents};
use crate::cli::{
    ChangeArgs, DispatchActionArgs, DispatchRowsArgs, EditFiles, InboxActionArgs, InboxEventsArgs,
    PageArgs,
};
use crate::options::ProjectOption;
use crate::options::choices::{ChangeMode, ChangeOptions, OutputFormat};

/// Events on one page of `list`.
const LIMIT: u32 = 100;

fn listed<Q>(query: Q, page: &PageArgs, format: OutputFormat) -> EventList<Q> {
    let limit = (!page.all).then_some(page.limit.unwrap_or(LIMIT));
    EventList { query, after: page.after, limit, format }
}

/// Returns the options of an edit. To name an event and its new content is consent.
const fn options_of_edit(change: &ChangeArgs) -> ChangeOptions {
    let ChangeOptions { mode, format } = change.options();
    let mode = match mode {
        ChangeMode::DryRun => ChangeMode::DryRun,
        ChangeMode::Agreed | ChangeMode::Ask => ChangeMode::Agreed,
    };
    ChangeOptions { mode, format }
}

impl ConfigBuilder<'_> {
    pub(in crate::config) fn dispatch(
        &mut self,
        action: DispatchActionArgs,
    ) -> Option<DispatchConfig> {
        let (database, action) = match action {
            DispatchActionArgs::List(args) => {
                // With `--error`, rows in every state are listed: rows with the error may need no
                // person.
                let state = match args.rows.filters.error {
                    Some(_) => StateFilter::Any,
                    None => StateFilter::NeedsPerson,
                };
                let query = self.dispatch_query(&args.rows, &args.project, state);
                let list = listed(query, &args.page, args.output.output);
                (args.database, EventAction::List(list))
            }
            DispatchActionArgs::Show(args) => {
                (args.database, EventAction::Show { id: args.id, format: args.output.output })
            }
            DispatchActionArgs::Retry(args) => {
                let state = match args.all_dead {
                    true => StateFilter::Only(DispatchStatus::Dead),
                    false => StateFilter::Open,
                };
                let is_given = args.rows.is_given() || args.all_dead;
                let query = self.dispatch_query(&args.rows, &args.project, state);
                let chosen =
                    self.chosen(args.ids, is_given.then_some(query), args.change.options())?;
                (args.database, EventAction::Retry(chosen))
            }
            DispatchActionArgs::Edit(args) => {
                let topic = args.set_topic.as_deref().map(|it| self.full_topic(it, &args.project));
                let is_rerouted = topic.is_some() || args.set_key.is_some();
                if !is_rerouted {
                    self.require_file(&args.files);
                }
                let options = options_of_edit(&args.change);
                let edit =
                    DispatchEdit { id: args.id, files: args.files, topic, key: args.set_key };
                (args.database, EventAction::Edit { edit, options })
            }
            DispatchActionArgs::Discard(args) => {
                let state = StateFilter::Only(DispatchStatus::Dead);
                let is_given = args.rows.is_given();
                let query = self.dispatch_query(&args.rows, &args.project, state);
                let chosen =
                    self.chosen(args.ids, is_given.then_some(query), args.change.options())?;
                (args.database, EventAction::Discard { chosen, reason: args.reason })
            }
        };
        Some(DispatchConfig { database: self.database(&database)?, action })
    }

    pub(in crate::config) fn inbox(&mut self, action: InboxActionArgs) -> Option<InboxConfig> {
        let (place, action) = match action {
            InboxActionArgs::List(args) => {
                let state = match args.events.filters.error {
                    Some(_) => InboxState::Any,
                    None => InboxState::Open,
                };
                let query = inbox_query(args.events, state);
                (args.place, EventAction::List(listed(query, &args.page, args.output.output)))
            }
            InboxActionArgs::Show(args) => {
                (args.place, EventAction::Show { id: args.id, format: args.output.output })
            }
            InboxActionArgs::Retry(args) => {
                let state = match args.all_dead {
                    true => InboxState::Only("dead"),
                    false => InboxState::Open,
                };
                let is_given = args.events.is_given() || args.all_dead;
                let query = inbox_query(args.events, state);
                let chosen =
                    self.chosen(args.ids, is_given.then_some(query), args.change.options())?;
                (args.place, EventAction::Retry(chosen))
            }
            InboxActionArgs::Edit(args) => {
                self.require_file(&args.files);
                let options = options_of_edit(&args.change);
                let edit = InboxEdit { id: args.id, files: args.files };
                (args.place, EventAction::Edit { edit, options })
            }
            InboxActionArgs::Discard(args) => {
                let is_given = args.events.is_given();
                let query = inbox_query(args.events, InboxState::Only("dead"));
                let chosen =
                    self.chosen(args.ids, is_given.then_some(query), args.change.options())?;
                (args.place, EventAction::Discard { chosen, reason: args.reason })
            }
        };
        let connect = self.connect(&place.connection)?;
        Some(InboxConfig { connect, consumer: place.consumer, action })
    }

    /// Returns the query for the filters. `state` applies if no status is given.
    fn dispatch_query(
        &mut self,
        args: &DispatchRowsArgs,
        project: &ProjectOption,
        state: StateFilter,
    ) -> DispatchQuery {
        DispatchQuery {
            state: args.status.unwrap_or(state),
            topic: args.topic.as_deref().map(|topic| self.full_topic(topic, project)),
            ordering_key: args.filters.key.clone(),
            error_code: args.filters.error.clone(),
            older_than: args.filters.older_than,
            until: None,
        }
    }

    /// Returns the chosen events, by ids or by filters. Without either it refuses, so that nobody
    /// selects all events by mistake.
    fn chosen<Q>(
        &mut self,
        ids: Vec<String>,
        query: Option<Q>,
        options: ChangeOptions,
    ) -> Option<EventSelection<Q>> {
        let events = match (ids.is_empty(), query) {
            (false, None) => SelectedEvents::Ids(ids),
            (true, Some(query)) => SelectedEvents::Matching(query),
            (true, None) | (false, Some(_)) => {
                let allowed = "give event ids, or filters such as --all-dead, --status dead and --key, not both";
                self.wrong_variable("ID", allowed);
                return None;
            }
        };
        Some(EventSelection { events, options })
    }

    fn require_file(&mut self, files: &EditFiles) {
        if files.payload_file.is_none() && files.attributes_file.is_none() {
            self.wrong_or_missing("payload-file", "not set; give it or --attributes-file");
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
}

fn inbox_query(args: InboxEventsArgs, state: InboxState) -> InboxQuery {
    InboxQuery {
        state: args.status.unwrap_or(state),
        ordering_key: args.filters.key,
        error_code: args.filters.error,
        older_than: args.filters.older_than,
        until: None,
    }
}
