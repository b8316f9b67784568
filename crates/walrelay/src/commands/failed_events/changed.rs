//! The result of a retry, an edit or a discard, as `-o json` prints it.

use serde::Serialize;

use crate::commands::shared::operator::dry_run_text;
use crate::config::{ChangeMode, ChangeOptions, OutputFormat};
use crate::error::Error;
use crate::options::ChangeArgs;
use crate::output::json::json_text;

#[derive(Debug, Serialize)]
pub(super) struct ChangedEventsJson {
    pub(super) result: &'static str,
    pub(super) events: u64,
    /// Matching events that only an edit can complete.
    pub(super) need_edit: u64,
    /// The changed attributes among those that the relay writes.
    pub(super) attributes: Vec<String>,
}

impl ChangedEventsJson {
    pub(super) const fn new(result: &'static str, events: u64) -> Self {
        Self { result, events, need_edit: 0, attributes: Vec::new() }
    }
}

/// A checked edit.
#[derive(Debug)]
pub(in crate::commands) struct Edited {
    pub(in crate::commands) id: String,
    /// The attributes that describe the event, and that the edit changes.
    pub(in crate::commands) described: Vec<String>,
}

impl Edited {
    pub(in crate::commands) fn output(self, options: ChangeOptions) -> Result<String, Error> {
        let Self { id, described } = self;
        let changed = match described.as_slice() {
            [] => String::new(),
            names => {
                format!("changed of the attributes that the relay writes: {}\n", names.join(", "))
            }
        };
        match (options.mode, options.format) {
            (ChangeMode::DryRun, format) => {
                let would = format!("edit {id} and make it due\n{changed}");
                dry_run_text(would.trim_end(), format)
            }
            (ChangeMode::Ask | ChangeMode::Agreed, OutputFormat::Json) => {
                let attributes = described;
                json_text(&ChangedEventsJson { attributes, ..ChangedEventsJson::new("edited", 1) })
            }
            (ChangeMode::Ask | ChangeMode::Agreed, OutputFormat::Text) => {
                Ok(format!("{id} is edited and due now\n{changed}"))
            }
        }
    }
}

/// Returns the options of an edit. To name an event and its new content is consent.
pub(in crate::commands) const fn options_of_edit(change: &ChangeArgs) -> ChangeOptions {
    let ChangeOptions { mode, format } = change.options();
    let mode = match mode {
        ChangeMode::DryRun => ChangeMode::DryRun,
        ChangeMode::Agreed | ChangeMode::Ask => ChangeMode::Agreed,
    };
    ChangeOptions { mode, format }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let changed = ChangedEventsJson {
            attributes: vec!["event_type".to_owned()],
            ..ChangedEventsJson::new("edited", 1)
        };
        assert_documented("dispatch and inbox retry, edit and discard", &changed);
    }
}
