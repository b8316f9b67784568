//! The text about outbox rows whose topic can never exist.

use walrelay_outbox_admin::protocols::routes::InvalidTopicRows;

use crate::output::text::{shortened, visible};

/// Most characters of an invalid topic name in a message.
const SHOWN_CHARACTERS: usize = 64;

/// The fix. The finding stays until the rows are deleted, because outbox rows never change.
pub(crate) const INVALID_TOPIC_FIX: &str = "correct --topic-template, or the producer of these rows; `walrelay dispatch list` has the ones \
     that are dead, and `walrelay dispatch edit ID --set-topic NAME` gives one of them a topic; this finding stays until \
     they are deleted from the outbox";

/// Returns the step that creates a topic, in any service. A relay publishes as soon as the topic exists,
/// and a subscription of the deleted topic does not receive that.
pub(crate) fn creation_of(topic: &str) -> String {
    let topic = visible(topic);
    format!(
        "create the topic: walrelay init --create-topics={topic}; if the topic was deleted, stop the relay first, and replace its \
         subscriptions as walrelay explain topic-not-found shows"
    )
}

pub(crate) fn invalid_topic_text(found: &InvalidTopicRows) -> String {
    let InvalidTopicRows { rows, example } = found;
    let example = shortened(&visible(example), SHOWN_CHARACTERS);
    let lead = if *rows == 1 { "row leads" } else { "rows lead" };
    format!(
        "{rows} {lead} to a name that no topic can have, as in \"{example}\": the relay records them as dead, and \
         publishes all others"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_counts_the_rows_and_shows_a_harmless_example() {
        let text = |rows, example: &str| {
            invalid_topic_text(&InvalidTopicRows { rows, example: example.to_owned() })
        };
        let begins = "3 rows lead to a name that no topic can have, as in \"projects/p/topics/bad topic!.events\"";
        assert!(text(3, "projects/p/topics/bad topic!.events").starts_with(begins));
        let one = text(1, "a\nb");
        assert!(one.starts_with("1 row leads") && one.contains("a\\nb"), "{one}");
    }
}
