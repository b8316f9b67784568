//! Reports how far back a rebuild from a topic reaches, before it begins. Older events are not
//! applied again, and a reset that empties the projection would silently lose them.

use std::time::SystemTime;

use walrelay_inbox::operator::event_commands::{ConsumerGeneration, EarlierEvents};
use walrelay_pg_client::SqlClient;
use walrelay_relay::observe::report::rfc3339;

use crate::config::Rebuild;
use crate::error::Error;
use crate::output::print;

/// Prints the reach, and warns if older events exist.
pub(in crate::commands) async fn tell(
    client: &SqlClient,
    (order, since): (&Rebuild, SystemTime),
) -> Result<(), Error> {
    print(&reach(since))?;
    if order.reset_sql.is_none() {
        // Without a reset nothing is emptied.
        return Ok(());
    }
    let place = ConsumerGeneration::find(client, Some(&order.name)).await?;
    let earlier = place.earlier(client, since).await?;
    if let Some(text) = lost(earlier, place.generation()) {
        tracing::warn!("{text}");
    }
    Ok(())
}

fn reach(since: SystemTime) -> String {
    format!(
        "what was published from {} on is applied again, as far as the topic kept it by then; what came before is not, and a \
         --reset-sql that empties the projection loses it. `walrelay audit` shows what is missing afterwards, and \
         --from-outbox TOPIC, in place of --from-time, applies every row of the outbox\n",
        rfc3339(since)
    )
}

/// Describes the events that are known to be too old.
fn lost(earlier: EarlierEvents, generation: i32) -> Option<String> {
    let counted = earlier.first.map(|first| {
        format!(
            "generation {generation} has {} event(s) that occurred before that, the first at {}: they are not applied again",
            earlier.events,
            rfc3339(first)
        )
    });
    let pruned = earlier.pruned_before.map(|moment| {
        format!("events of before {} were pruned, which nobody counts", rfc3339(moment))
    });
    let parts: Vec<String> = counted.into_iter().chain(pruned).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rebuild_does_not_reach_is_counted_and_what_was_pruned_is_said() {
        assert_eq!(lost(EarlierEvents::default(), 1), None);
        let moment = Some(SystemTime::UNIX_EPOCH);
        let counted = EarlierEvents { events: 3, first: moment, pruned_before: None };
        let text = lost(counted, 2).expect("three");
        assert!(
            text.starts_with("generation 2 has 3 event(s)") && text.contains("1970-01-01"),
            "{text}"
        );
        let pruned = lost(EarlierEvents { pruned_before: moment, ..EarlierEvents::default() }, 1);
        assert!(pruned.is_some_and(|it| it.starts_with("events of before 1970")));
    }
}
