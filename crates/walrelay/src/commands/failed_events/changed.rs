//! The result of a retry, an edit or a discard, as `-o json` prints it.

use serde::Serialize;

/// The events that a command changed.
#[derive(Debug, Serialize)]
pub(super) struct ChangedEventsJson {
    pub(super) result: &'static str,
    /// The number of changed events.
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
