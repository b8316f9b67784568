//! Fills the placeholders of a fix, such as `NAME`, with the names of the error.

use walrelay_inbox::InboxError;
use walrelay_inbox_admin::RebuildError;
use walrelay_outbox_admin::protocols::ProtocolError;
use walrelay_outbox_store::StoreError;

/// A placeholder and the name that replaces it.
pub(crate) type Named<'a> = (&'static str, &'a str);

#[expect(clippy::wildcard_enum_match_arm, reason = "the others name nothing that a fix has")]
pub(crate) fn name_in_protocol(error: &ProtocolError) -> Option<Named<'_>> {
    match error {
        ProtocolError::TopicMissing { topic } => Some(("TOPIC", topic)),
        ProtocolError::AnchorExists { anchor } => Some(("NAME", anchor)),
        _ => None,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others name nothing that a fix has")]
pub(crate) fn name_in_rebuild(error: &RebuildError) -> Option<Named<'_>> {
    match error {
        RebuildError::TopicRetainsNothing { consumer, .. }
        | RebuildError::TopicRetainsLess { consumer, .. }
        | RebuildError::RebuildRunning { consumer, .. }
        | RebuildError::RebuildUnfinished { consumer, .. } => Some(("NAME", consumer)),
        _ => None,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others name nothing that a fix has")]
pub(crate) fn name_in_inbox(error: &InboxError) -> Option<Named<'_>> {
    match error {
        InboxError::Unregistered { consumer } | InboxError::Paused { consumer } => {
            Some(("NAME", consumer))
        }
        InboxError::SubscriptionMissing { subscription } => Some(("SUBSCRIPTION", subscription)),
        InboxError::AlreadyFinished { event_id, .. } => Some(("EVENT_ID", event_id)),
        _ => None,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others name nothing that a fix has")]
pub(crate) fn name_in_store(error: &StoreError) -> Option<Named<'_>> {
    match error {
        StoreError::WithoutHeaders { event_id } | StoreError::WithoutValue { event_id } => {
            Some(("ID", event_id))
        }
        StoreError::AlreadyFinished { event_id, .. } => Some(("EVENT_ID", event_id)),
        StoreError::AnchorLost { anchor } => Some(("NAME", anchor)),
        _ => None,
    }
}

/// Replaces a placeholder where it is a whole word.
pub(crate) fn replaced(fix: &str, placeholder: &str, name: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut text, mut rest) = (String::new(), fix);
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (part, next) = rest.split_at(end);
        text.push_str(if part == placeholder { name } else { part });
        rest = next;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_are_placeholders() {
        assert_eq!(replaced("`x NAME`, RENAME, NAMES", "NAME", "a-b"), "`x a-b`, RENAME, NAMES");
    }

    #[test]
    fn the_fixes_of_a_rebuild_name_the_consumer() {
        let (consumer, topic) = ("billing".to_owned(), "t".to_owned());
        let retention = std::time::Duration::from_secs(60);
        for error in [
            RebuildError::TopicRetainsNothing { consumer: consumer.clone(), topic: topic.clone() },
            RebuildError::TopicRetainsLess { consumer, topic, retention },
        ] {
            let report = crate::error::Error::from(error).report();
            assert!(report.contains("walrelay consumer rebuild billing --into"), "{report}");
            assert!(!report.contains("NAME"), "{report}");
        }
    }
}
