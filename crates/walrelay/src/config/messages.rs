//! Options for messages: the column names, and how a row becomes a message.

use walrelay_core::{
    AttributeStyle, ColumnNames, EditedMessages, RouterConfig, SystemIdentifierMode, Template,
};

use super::checks::Checks;
use crate::options::values::topic_name;
use crate::options::{AttributeNames, MessageOptions, ProjectOption};

impl Checks<'_> {
    pub(crate) fn router(&mut self, options: &MessageOptions) -> RouterConfig {
        let columns = self.definition.columns.clone();
        self.require_columns("topic-template", &options.topic_template, &columns);
        self.require_columns("ordering-key", &options.ordering_key, &columns);
        let source = options.cloudevents_source.clone().unwrap_or_default();
        RouterConfig {
            project: project(&options.project),
            topic: options.topic_template.clone(),
            ordering_key: options.ordering_key.clone(),
            columns,
            style: match options.attributes {
                AttributeNames::Default => AttributeStyle::Default,
                // An empty source means the name of the row's table.
                AttributeNames::CloudEvents => AttributeStyle::CloudEvents { source },
            },
            replay_id: None,
            edited: EditedMessages::default(),
            log_name: match options.system_identifier {
                true => SystemIdentifierMode::Told,
                false => SystemIdentifierMode::Untold,
            },
        }
    }

    /// Requires that the outbox tables have the columns that a template names.
    pub(crate) fn require_columns(
        &mut self,
        option: &str,
        template: &Template,
        columns: &ColumnNames,
    ) {
        for name in template.columns().filter(|name| columns.resolve(name).is_none()) {
            let allowed = format!("the outbox tables have no column for {{{name}}}");
            self.wrong(option, &template.to_string(), allowed);
        }
    }

    /// Requires a column for the time of an event.
    pub(crate) fn require_time(&mut self, columns: &ColumnNames, reason: &str) {
        if columns.occurred_at.is_none() {
            self.wrong_or_missing("column-occurred-at", reason);
        }
    }

    /// Requires a project, unless the topic template contains one.
    pub(crate) fn require_project(&mut self, router: &RouterConfig) {
        if router.project.is_empty() && !router.topic.names_project() {
            let allowed = "not set, also as PUBSUB_PROJECT_ID; needed unless --topic-template is a full projects/…/topics/… name";
            self.wrong_or_missing("project", allowed);
        }
    }

    /// Returns the full name of a topic or subscription. Both have the same rule.
    pub(crate) fn full_name(
        &mut self,
        option: &str,
        given: &str,
        project_option: &ProjectOption,
        kind: ResourceKind,
    ) -> Option<String> {
        let (kind, project) = (kind.collection(), project(project_option));
        let is_id = |name: &str| topic_name(&format!("projects/p/topics/{name}")).is_ok();
        let parts: Vec<&str> = given.split('/').collect();
        match parts.as_slice() {
            ["projects", owner, found, name]
                if *found == kind && !owner.is_empty() && is_id(name) =>
            {
                Some(given.to_owned())
            }
            [name] if is_id(name) => {
                if project.is_empty() {
                    let allowed = format!("not set; needed for the short name of a {option}");
                    self.wrong_or_missing("project", allowed);
                    return None;
                }
                Some(format!("projects/{project}/{kind}/{name}"))
            }
            _ => {
                let allowed = format!(
                    "a name, or projects/PROJECT/{kind}/NAME; a name has 3 to 255 letters, digits and -_.~+%, \
                     and begins with a letter"
                );
                self.wrong(option, given, allowed);
                None
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    Topic,
    Subscription,
}

impl ResourceKind {
    /// Returns the part of a full name before the short name.
    const fn collection(self) -> &'static str {
        match self {
            Self::Topic => "topics",
            Self::Subscription => "subscriptions",
        }
    }
}

/// Returns the project, or an empty text.
pub(crate) fn project(option: &ProjectOption) -> String {
    option.project.clone().unwrap_or_default()
}
