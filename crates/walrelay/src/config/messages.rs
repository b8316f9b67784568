//! Options for messages: the column names, and how a row becomes a message.

use walrelay_core::limits::is_topic_name;
use walrelay_core::{
    AttributeStyle, ColumnAliases, ColumnNames, EditedMessages, RouterConfig, SystemIdentifierMode,
    Template,
};

use super::builder::ConfigBuilder;
use super::names::is_identifier;
use crate::options;
use crate::options::declaration::Setting;

/// The source of the default column names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preset {
    Walrelay,
    Debezium,
}

impl ConfigBuilder<'_> {
    pub(super) fn router(&mut self) -> RouterConfig {
        let columns = self.columns();
        let style = match self.problems.read(options::ATTRIBUTES) {
            "cloudevents" => AttributeStyle::CloudEvents { source: self.cloudevents_source() },
            _ => AttributeStyle::Default,
        };
        let topic = self.template(options::TOPIC, &columns);
        if topic.columns().next().is_none() {
            self.require_topic_name("topic", &topic.to_string());
        }
        let log_name = match self.problems.read(options::SYSTEM_IDENTIFIER) {
            true => SystemIdentifierMode::Told,
            false => SystemIdentifierMode::Untold,
        };
        RouterConfig {
            project: self.project(),
            topic,
            ordering_key: self.template(options::ORDERING_KEY, &columns),
            columns,
            style,
            replay_id: None,
            edited: EditedMessages::default(),
            log_name,
        }
    }

    fn template(&mut self, setting: Setting<String>, columns: &ColumnNames) -> Template {
        let (option, text) = (setting.declaration.name, self.problems.read(setting));
        if option == "topic" && text.trim().is_empty() {
            self.problems.wrong(option, &text, "a topic, columns in braces");
        }
        match Template::parse(&text) {
            Ok(template) => {
                for name in template.columns().filter(|name| columns.resolve(name).is_none()) {
                    let allowed = format!("the outbox tables have no column for {{{name}}}");
                    self.problems.wrong(option, &text, allowed);
                }
                template
            }
            Err(error) => {
                self.problems.wrong(option, &text, error.to_string());
                Template::parse("").expect("the empty template has no braces to be wrong")
            }
        }
    }

    /// Requires a valid topic name, either full or only its last part.
    pub(super) fn require_topic_name(&mut self, option: &'static str, name: &str) {
        let is_full = name.starts_with("projects/");
        let in_some_project = format!("projects/p/topics/{name}");
        // An empty name is already reported.
        if !name.trim().is_empty() && !is_topic_name(if is_full { name } else { &in_some_project })
        {
            let allowed =
                "3 to 255 letters, digits and -_.~+%, beginning with a letter and not with goog";
            self.problems.wrong(option, name, allowed);
        }
    }

    /// Returns the CloudEvents source. Empty means the name of the row's table.
    fn cloudevents_source(&mut self) -> String {
        let source = self.problems.read(options::CLOUDEVENTS_SOURCE).unwrap_or_default();
        // Pub/Sub's limit for an attribute's value is 1,024 bytes.
        if source.len() > 1024 || source.contains(char::is_whitespace) {
            let allowed = "a URI reference of at most 1024 bytes";
            self.problems.wrong("cloudevents-source", &source, allowed);
        }
        source
    }

    pub(super) fn project(&mut self) -> String {
        let project = self.problems.read(options::PROJECT).unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if !project.chars().all(fits) {
            self.problems.wrong("project", &project, "a project id, such as my-project");
        }
        project
    }

    /// Requires a project, unless the topic template contains one.
    pub(super) fn require_project(&mut self, router: &RouterConfig) {
        if router.project.is_empty() && !router.topic.to_string().starts_with("projects/") {
            let allowed = "not set; needed unless --topic is a full projects/…/topics/… name";
            self.problems.report_without_value("project", allowed);
        }
    }

    pub(super) fn columns(&mut self) -> ColumnNames {
        let preset = match self.problems.read(options::PRESET) {
            "debezium" => Preset::Debezium,
            _ => Preset::Walrelay,
        };
        let mut optional = |setting, debezium| self.optional_column(setting, preset, debezium);
        let aggregate_type = optional(options::COLUMN_AGGREGATE_TYPE, "aggregatetype");
        let aggregate_id = optional(options::COLUMN_AGGREGATE_ID, "aggregateid");
        let event_type = optional(options::COLUMN_EVENT_TYPE, "type");
        let version = optional(options::COLUMN_VERSION, "");
        let schema_version = optional(options::COLUMN_SCHEMA_VERSION, "");
        let headers = optional(options::COLUMN_HEADERS, "");
        let occurred_at = optional(options::COLUMN_OCCURRED_AT, "timestamp");
        ColumnNames {
            id: self.column(options::COLUMN_ID),
            payload: self.column(options::COLUMN_PAYLOAD),
            aggregate_type,
            aggregate_id,
            event_type,
            version,
            schema_version,
            headers,
            occurred_at,
        }
    }

    fn column(&mut self, setting: Setting<String>) -> ColumnAliases {
        let text = self.problems.read(setting);
        let names = ColumnAliases::parse(&text);
        if names.iter().next().is_none() || !names.iter().all(is_identifier) {
            let allowed = "the name of a column, 1 to 63 bytes, or several with commas";
            self.problems.wrong(setting.declaration.name, &text, allowed);
        }
        names
    }

    /// Returns a column that the table may lack. The preset's name applies only if the option is
    /// not set.
    fn optional_column(
        &mut self,
        setting: Setting<String>,
        preset: Preset,
        debezium: &str,
    ) -> Option<ColumnAliases> {
        let is_default = self.problems.is_default(setting.declaration.name);
        if preset == Preset::Debezium && is_default {
            return (!debezium.is_empty()).then(|| ColumnAliases::parse(debezium));
        }
        let is_given = !self.problems.read(setting).is_empty();
        is_given.then(|| self.column(setting))
    }
}
